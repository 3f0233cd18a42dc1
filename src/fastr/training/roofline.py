"""What this machine could do at best, measured on itself, and what an update needs of it."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fastr.core import EnvSpec
from fastr.nn.precision import Precision, matmul_precision
from fastr.training.config import TrainConfig
from fastr.training.count import Products, state_bytes


def floors(config: TrainConfig, spec: EnvSpec, work: Products) -> dict[str, Any]:
    """Times below which no update of all seeds can go on this device, in milliseconds.

    Arithmetic: every matrix product at the speed of one large product of its precision. Memory:
    operands and results of all products once, and all that is learned (parameters, moments,
    targets) read and written once, at the speed of one large copy.
    """
    seeds = len(config.seeds)
    rates = {name: product_rate(name, config.agent.precision) for name in work.multiply_adds}
    arithmetic = sum(count / rates[name] for name, count in work.multiply_adds.items())
    learned = state_bytes(config, spec)["networks_and_optimisers"]
    bandwidth = copy_rate()
    return {
        "multiply_adds_per_second": rates,
        "bytes_per_second": bandwidth,
        "arithmetic_floor_milliseconds": 1e3 * seeds * arithmetic,
        "memory_floor_milliseconds": 1e3 * seeds * (work.bytes + 2 * learned) / bandwidth,
    }


def product_rate(dtype: str, precision: Precision) -> float:
    """Multiply-adds per second of one large product of this precision."""
    size = 1024 if jax.default_backend() == "cpu" else 8192
    with matmul_precision(precision):
        operands = jnp.ones((2, size, size), dtype)
        seconds = best_seconds(jax.jit(lambda pair: pair[0] @ pair[1]), operands)
    return size**3 / seconds


def copy_rate() -> float:
    """Bytes per second read and written by one pass over a large array."""
    size = 2**25 if jax.default_backend() == "cpu" else 2**29
    seconds = best_seconds(jax.jit(partial(jnp.add, 1.0)), jnp.ones(size, jnp.float32))
    return 2 * 4 * size / seconds


def best_seconds(function: Callable[[jax.Array], jax.Array], argument: jax.Array) -> float:
    """The shortest of several calls, after one to compile."""
    jax.block_until_ready(function(argument))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(function(argument))
        times.append(time.perf_counter() - start)
    return min(times)
