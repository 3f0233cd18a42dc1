"""Parameters, multiply-adds and memory of a run, without allocating or compiling any of it."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import PyTree

from fastr.core import EnvSpec
from fastr.training.config import TrainConfig
from fastr.training.learner import Learner
from fastr.training.ring import SLICE_BYTES


def parameters(tree: PyTree) -> int:
    """Numbers in all leaves."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def network_parameters(config: TrainConfig, spec: EnvSpec) -> dict[str, int]:
    """Parameters of every online network, by name."""
    agent = jax.eval_shape(lambda key: config.agent.init(spec, key), jax.random.key(0))
    networks = jax.eval_shape(lambda agent: agent.networks(), agent)
    return {name: parameters(network) for name, network in networks.items()}


def abstract_learner(config: TrainConfig, spec: EnvSpec) -> Learner:
    """One seed's state on the device, as shapes."""
    seed = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.eval_shape(
        lambda seed: Learner.init(config.agent, spec, config.capacity, seed), seed
    )


@dataclass(frozen=True)
class Products:
    """What all matrix products of one update take, for one seed."""

    multiply_adds: dict[str, int]
    """By the precision of their operands."""
    bytes: int
    """Operands and results, each once."""


def update_program(config: TrainConfig, spec: EnvSpec) -> Jaxpr:
    """One update of one seed, as a list of operations."""
    clock = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.make_jaxpr(Learner.improve)(abstract_learner(config, spec), clock, clock).jaxpr


def products(config: TrainConfig, spec: EnvSpec) -> Products:
    """The matrix products of one update of one seed, counted in the program."""
    multiply_adds, moved = Counter(), 0
    for equation in equations(update_program(config, spec)):
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            arrays = [variable.aval for variable in (*equation.invars, *equation.outvars)]
            depth = math.prod(shape(arrays[0])[axis] for axis in contracted)
            multiply_adds[str(arrays[0].dtype)] += depth * math.prod(shape(arrays[-1]))
            moved += sum(size_in_bytes(array) for array in arrays)
    return Products(dict(multiply_adds), moved)


def multiply_adds(config: TrainConfig, spec: EnvSpec) -> int:
    """Multiply-adds of all matrix products in one update of one seed."""
    return sum(products(config, spec).multiply_adds.values())


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """Every operation of a program and of the programs it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in _called(equation.params):
            yield from equations(inner)


def shape(value: Any) -> tuple[int, ...]:
    """The shape of an operand, which JAX's types do not promise to have."""
    return value.shape


def _called(params: dict[str, Any]) -> list[Jaxpr]:
    """The programs among an operation's parameters."""
    values = [item for value in params.values() for item in _items(value)]
    closed = [value.jaxpr for value in values if isinstance(value, ClosedJaxpr)]
    return closed + [value for value in values if isinstance(value, Jaxpr)]


def _items(value: Any) -> tuple:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def state_bytes(config: TrainConfig, spec: EnvSpec) -> dict[str, int]:
    """Device memory of one seed at full replay: what is learned, and what is remembered."""
    learner = abstract_learner(config, spec)
    replay = 4 * parameters(learner.replay)
    everything = 4 * parameters(learner)
    return {"replay": replay, "networks_and_optimisers": everything - replay}


def working_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Estimated device memory for intermediate values of one seed's update.

    The most that is alive at once if operations run in the order of the program, each storing its
    result. Fusion makes it less, running halves of the program side by side makes it more.
    """
    return peak_bytes(update_program(config, spec))


def saving_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Device memory of one seed's share in saving and resuming.

    A slice of its transitions; where the device is the CPU, also a copy of all since the last
    checkpoint, until they are written.
    """
    between = config.checkpoint_frames // config.frame_skip or config.capacity
    copied = 4 * spec.row_dim * min(between, config.capacity)
    piece = min(copied, SLICE_BYTES // len(config.seeds))
    return piece + copied if jax.default_backend() == "cpu" else piece


def peak_bytes(jaxpr: Jaxpr) -> int:
    """Most bytes of results, results of its own operations only, that are alive at once."""
    last_use = {
        variable: i
        for i, equation in enumerate(jaxpr.eqns)
        for variable in _variables(equation.invars)
    }
    kept = {*_variables(jaxpr.outvars), *jaxpr.invars, *jaxpr.constvars}
    alive = most = 0
    for i, equation in enumerate(jaxpr.eqns):
        made = sum(size_in_bytes(variable.aval) for variable in equation.outvars)
        inside = max((peak_bytes(inner) for inner in _called(equation.params)), default=0)
        most = max(most, alive + max(made, inside))
        alive += made
        done = {v for v in _variables(equation.invars) if last_use[v] == i}
        unused = {v for v in equation.outvars if v not in last_use}
        alive -= sum(size_in_bytes(variable.aval) for variable in (done | unused) - kept)
    return most


def _variables(atoms: Sequence[Any]) -> set[Any]:
    """The operands that are results of something, not constants."""
    return {atom for atom in atoms if not isinstance(atom, Literal)}


def size_in_bytes(array: Any) -> int:
    """Memory of an array, from its type; keys and the like count as nothing."""
    size = getattr(getattr(array, "dtype", None), "itemsize", 0)
    return math.prod(shape(array)) * size if size else 0


def memory_bytes(config: TrainConfig, spec: EnvSpec) -> dict[str, int]:
    """Device memory of one seed at full replay, in the middle of an update, while it is saved."""
    return state_bytes(config, spec) | {
        "intermediate_estimate": working_bytes(config, spec),
        "saving": saving_bytes(config, spec),
    }


def seed_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Device memory of one more seed."""
    return sum(memory_bytes(config, spec).values())


def program_bytes() -> int:
    """Device memory that an update takes once for all seeds.

    On a GPU, scratch space of 32 MiB for each matrix product that may run beside others: measured
    on an H200, the compiled update of one seed holds about 14 of them.
    """
    return 16 * 32 * 2**20 if jax.default_backend() == "gpu" else 0


def kept_networks(config: TrainConfig) -> tuple[str, ...]:
    """Names of the networks that this configuration never moves."""
    names = {"state-factor": ("state_encoder",), "encoder": ("joint_encoder",)}
    return names.get(getattr(config.agent, "keep", "nothing"), ())


def info(config: TrainConfig, spec: EnvSpec) -> dict[str, Any]:
    """Everything `fastr info` reports."""
    networks = network_parameters(config, spec)
    memory = memory_bytes(config, spec)
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
        "evaluations": config.evaluations,
        "parameters": networks,
        "parameters_total": sum(networks.values()),
        "parameters_kept": sum(networks[name] for name in kept_networks(config)),
        "multiply_adds_per_update": multiply_adds(config, spec),
        "device_bytes_per_seed": memory,
        "seeds": seeds,
        "device_bytes_total": seeds * sum(memory.values()) + program_bytes(),
    }
