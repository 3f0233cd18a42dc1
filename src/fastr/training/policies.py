"""A policy as plain arrays, to travel between processes, and as a compiled function of them."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fastr.agents.base import AbstractPolicy, AgentConfig
from fastr.core import EnvSpec
from fastr.training.learner import Learner

Leaves = Sequence[np.ndarray]


def template(agent: AgentConfig, spec: EnvSpec) -> AbstractPolicy:
    """The structure of an agent's policy, with shapes in place of arrays."""
    return jax.eval_shape(
        lambda seed: Learner.init(agent, spec, 1, seed).policy(),
        jax.ShapeDtypeStruct((), jnp.int32),
    )


def compiled(agent: AgentConfig, spec: EnvSpec) -> Callable[[Leaves, np.ndarray], jax.Array]:
    """The policy as a function of its arrays and a state."""
    structure = jax.tree.structure(template(agent, spec))
    return jax.jit(lambda leaves, state: jax.tree.unflatten(structure, leaves)(state))


def snapshots(policies: AbstractPolicy, seeds: int) -> list[list[np.ndarray]]:
    """The arrays of each seed's policy, on the host, from policies stacked over seeds."""
    stacked = jax.device_get(jax.tree.leaves(policies))
    return [[np.array(leaf[seed]) for leaf in stacked] for seed in range(seeds)]
