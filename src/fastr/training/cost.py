"""What a run costs: parameters, multiply-adds, memory; and whether it fits on this machine."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr
from jaxtyping import PyTree

from fastr.core import EnvSpec, UserError, counted
from fastr.training.config import TrainConfig
from fastr.training.learner import Learner, seed_sharding

MEBIBYTE = 2**20


def parameters(tree: PyTree) -> int:
    """Numbers in all leaves."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def abstract_learner(config: TrainConfig, spec: EnvSpec) -> Learner:
    """One seed's state on the device, as shapes."""
    seed = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.eval_shape(
        lambda seed: Learner.init(config.agent, spec, config.capacity, seed), seed
    )


def network_parameters(config: TrainConfig, spec: EnvSpec) -> dict[str, int]:
    """Parameters of every online network, by name."""
    agent = abstract_learner(config, spec).agent
    networks = jax.eval_shape(lambda agent: agent.networks(), agent)
    return {name: parameters(network) for name, network in networks.items()}


def kept_parameters(config: TrainConfig, spec: EnvSpec) -> int:
    """Parameters that training never moves."""
    networks = network_parameters(config, spec)
    return sum(networks[name] for name in abstract_learner(config, spec).agent.kept_networks)


@dataclass(frozen=True)
class Products:
    """All matrix products of one update of one seed."""

    multiply_adds: dict[str, int]
    """By the precision of their operands."""
    bytes: int
    """Operands and results, each once."""


def update_program(config: TrainConfig, spec: EnvSpec) -> Jaxpr:
    """List the operations of one update of one seed."""
    clock = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.make_jaxpr(Learner.improve)(abstract_learner(config, spec), clock, clock).jaxpr


def products(config: TrainConfig, spec: EnvSpec) -> Products:
    """Count the matrix products in one update of one seed."""
    multiply_adds, moved = Counter(), 0
    for equation in equations(update_program(config, spec)):
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            arrays = [variable.aval for variable in (*equation.invars, *equation.outvars)]
            depth = math.prod(arrays[0].shape[axis] for axis in contracted)
            multiply_adds[str(arrays[0].dtype)] += depth * math.prod(arrays[-1].shape)
            moved += sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)
    return Products(dict(multiply_adds), moved)


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """Every operation of a program and of the programs it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(value):
                yield from equations(getattr(value, "jaxpr", value))


def _is_program(value: Any) -> bool:
    return isinstance(value, ClosedJaxpr | Jaxpr)


def cpu_seconds(config: TrainConfig, spec: EnvSpec) -> float:
    """A whole run on this CPU, roughly: twice as long as its matrix products take alone."""
    size, repeats = 1024, 4
    square = jnp.ones((size, size))
    product = jax.jit(jnp.matmul)
    product(square, square).block_until_ready()
    start = time.perf_counter()
    for _ in range(repeats):
        product(square, square).block_until_ready()
    rate = repeats * size**3 / (time.perf_counter() - start)
    work = sum(products(config, spec).multiply_adds.values())
    return 2 * config.updates * len(config.seeds) * work / rate


def state_bytes(config: TrainConfig, spec: EnvSpec) -> dict[str, int]:
    """Device memory of one seed with a full replay."""
    learner = abstract_learner(config, spec)
    replay = 4 * parameters(learner.replay)
    return {"replay": replay, "networks_and_optimisers": 4 * parameters(learner) - replay}


def working_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Device memory for intermediate values of one seed's update, by the compiler's account."""
    clock = jax.ShapeDtypeStruct((), jnp.int32)
    program = jax.jit(Learner.improve, donate_argnums=0)
    compiled = program.lower(abstract_learner(config, spec), clock, clock).compile()
    analysis = compiled.memory_analysis()
    return 0 if analysis is None else analysis.temp_size_in_bytes


def check_fits(config: TrainConfig, spec: EnvSpec) -> None:
    """Raise UserError if replay and networks of all seeds exceed the free memory."""
    free = free_bytes()
    if free is None:
        return
    seeds, devices = len(config.seeds), seed_sharding(len(config.seeds)).num_devices
    each = sum(state_bytes(config, spec).values())
    if seeds // devices * each <= free:
        return
    most = free // each * devices
    advice = f"take at most {most} --seeds, or" if most else "one seed alone does not fit;"
    raise UserError(
        f"{counted(seeds, 'seed')} of {config.method} would take about "
        f"{seeds // devices * each // MEBIBYTE:,} MiB of memory per device "
        f"({each // MEBIBYTE:,} MiB each), and {free // MEBIBYTE:,} MiB are free: {advice} use a "
        "smaller --replay-capacity or network."
    )


def free_bytes() -> int | None:
    """Free memory of the fullest local device; None where it is unknown."""
    if jax.default_backend() == "cpu":
        meminfo = Path("/proc/meminfo")
        lines = meminfo.read_text().splitlines() if meminfo.exists() else []
        free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        return min(free, default=None)
    statistics = [device.memory_stats() for device in jax.local_devices()]
    known = [entry for entry in statistics if entry and "bytes_limit" in entry]
    return min((entry["bytes_limit"] - entry["bytes_in_use"] for entry in known), default=None)


def info(config: TrainConfig, spec: EnvSpec) -> dict[str, Any]:
    """Everything `fastr info` reports."""
    networks = network_parameters(config, spec)
    memory = state_bytes(config, spec) | {"update": working_bytes(config, spec)}
    seeds = len(config.seeds)
    return {
        "task": config.task,
        "method": config.method,
        "preset": config.preset,
        "state_dim": spec.state_dim,
        "action_dim": spec.action_dim,
        "frames": config.frames,
        "agent_steps": config.agent_steps,
        "updates": config.updates,
        "batch_size": config.agent.batch_size,
        "evaluations": config.evaluations,
        "parameters": networks,
        "parameters_total": sum(networks.values()),
        "parameters_kept": kept_parameters(config, spec),
        "multiply_adds_per_update": sum(products(config, spec).multiply_adds.values()),
        "device_bytes_per_seed": memory,
        "seeds": seeds,
        "device_bytes_total": seeds * sum(memory.values()),
    }
