"""Parameters, multiply-adds and memory of a run, without allocating or compiling any of it."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr
from jaxtyping import PyTree

from fastr.config import TrainConfig
from fastr.learner import Learner
from fastr.spec import EnvSpec


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


def products(config: TrainConfig, spec: EnvSpec) -> Products:
    """The matrix products of one update of one seed, counted in the program."""
    clock = jax.ShapeDtypeStruct((), jnp.int32)
    program = jax.make_jaxpr(Learner.improve)(abstract_learner(config, spec), clock, clock)
    multiply_adds, moved = Counter(), 0
    for equation in _equations(program.jaxpr):
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            arrays = [variable.aval for variable in (*equation.invars, *equation.outvars)]
            depth = math.prod(shape(arrays[0])[axis] for axis in contracted)
            multiply_adds[str(arrays[0].dtype)] += depth * math.prod(shape(arrays[-1]))
            moved += sum(math.prod(shape(array)) * array.dtype.itemsize for array in arrays)
    return Products(dict(multiply_adds), moved)


def multiply_adds(config: TrainConfig, spec: EnvSpec) -> int:
    """Multiply-adds of all matrix products in one update of one seed."""
    return sum(products(config, spec).multiply_adds.values())


def _equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """Every operation of a program and of the programs it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in _called(equation.params):
            yield from _equations(inner)


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

    The largest are the activations of the next-state factor over levels x batch rows: six per
    residual block and four around them are alive at once, and three matrices of scores.
    """
    representation = config.agent.representation
    width = 2 if representation.precision == "bfloat16" else 4
    rows = representation.noise_levels * config.agent.batch_size
    activations = rows * representation.hidden_dim * (6 * representation.blocks + 4) * width
    scores = 3 * 4 * rows * config.agent.batch_size
    noise = 2 * 4 * rows * spec.state_dim
    return activations + scores + noise


def seed_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Device memory of one more seed, at full replay and in the middle of an update."""
    return sum(state_bytes(config, spec).values()) + working_bytes(config, spec)


def program_bytes() -> int:
    """Device memory that an update takes once for all seeds.

    On a GPU, scratch space of 32 MiB for each matrix product that may run beside others: measured
    on an H200, the compiled update of one seed holds about 14 of them.
    """
    return 16 * 32 * 2**20 if jax.default_backend() == "gpu" else 0


def info(config: TrainConfig, spec: EnvSpec) -> dict[str, Any]:
    """Everything `fastr info` reports."""
    networks = network_parameters(config, spec)
    memory = state_bytes(config, spec) | {"intermediate_estimate": working_bytes(config, spec)}
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
        "multiply_adds_per_update": multiply_adds(config, spec),
        "device_bytes_per_seed": memory,
        "seeds": seeds,
        "device_bytes_total": seeds * sum(memory.values()) + program_bytes(),
    }
