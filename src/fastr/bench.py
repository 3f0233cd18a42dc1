"""How fast one update is: the yardstick behind every speed this project states."""

import resource
import sys
import time
from typing import Any

import jax
import numpy as np

from fastr.config import TrainConfig
from fastr.count import multiply_adds
from fastr.learner import Engine
from fastr.spec import EnvSpec


def bench(
    config: TrainConfig, spec: EnvSpec, *, updates: int, repeats: int, rows: int = 5_000
) -> dict[str, Any]:
    """Times of updates of all seeds on random transitions; the median of several repeats."""
    engine = Engine(
        config.agent, spec, config.seeds, capacity=rows, random_steps=config.random_steps
    )
    cohort = engine.init()
    generator = np.random.default_rng(0)
    seeds = len(config.seeds)
    for _ in range(config.agent.batch_size):
        values = generator.standard_normal((seeds, spec.row_dim + spec.state_dim), np.float32)
        cohort, _ = engine.interact(cohort, values)
    start = time.perf_counter()
    cohort, metrics = jax.block_until_ready(engine.improve(cohort))
    compiled = time.perf_counter() - start
    on_cpu = jax.default_backend() == "cpu"
    milliseconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(updates):
            cohort, metrics = engine.improve(cohort)
            if on_cpu:
                # It would hold the working memory of all updates in flight at once.
                jax.block_until_ready(metrics)
        jax.block_until_ready(metrics)
        milliseconds.append((time.perf_counter() - start) / updates * 1e3)
    return report(config, spec, milliseconds, compiled)


def report(
    config: TrainConfig, spec: EnvSpec, milliseconds: list[float], compiled: float
) -> dict[str, Any]:
    """The times in the units people compare."""
    seeds, median = len(config.seeds), float(np.median(milliseconds))
    work = multiply_adds(config, spec)
    return {
        "method": config.method,
        "preset": config.preset,
        "task": config.task,
        "seeds": seeds,
        "precision": config.agent.precision,
        "device": jax.devices()[0].device_kind,
        "milliseconds_per_joint_update": median,
        "milliseconds_each_repeat": milliseconds,
        "joint_updates_per_second": 1e3 / median,
        "seed_updates_per_second": 1e3 * seeds / median,
        "multiply_adds_per_seed_update": work,
        "achieved_gflop_per_second": 2 * work * seeds / median / 1e6,
        "compile_seconds": compiled,
        "peak_memory_bytes": peak_memory(),
    }


def peak_memory() -> int:
    """Most memory held so far: on the accelerator, or by this process where there is none."""
    statistics = jax.devices()[0].memory_stats()
    if statistics:
        return int(statistics["peak_bytes_in_use"])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
