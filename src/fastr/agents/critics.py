"""Critics: on any feature, or on states and actions as they are."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.core import EnvSpec
from fastr.nn.activations import elu
from fastr.nn.networks import MLP
from fastr.nn.optim import Metrics
from fastr.transition import Transition

QUICK = {
    "batch_size": 128,
    "critic_learning_rate": 1e-3,
    "actor_learning_rate": 1e-3,
    "target_rate": 0.01,
}
"""Settings of small networks, which take larger steps."""


def plain_critics(
    spec: EnvSpec, hidden: Sequence[int], *, count: int = 2, key: PRNGKeyArray
) -> MLP:
    """Networks with LayerNorm and ELU on [s; a], their parameters stacked."""
    sizes = (spec.state_dim + spec.action_dim, *hidden, 1)
    keys = jax.random.split(key, count)
    return jax.vmap(lambda critic_key: MLP(sizes, elu, key=critic_key))(keys)


def plain_q(
    critics: MLP, states: Float[Array, "batch state"], actions: Float[Array, "batch action"]
) -> Float[Array, "critic batch"]:
    """Every critic at every state and action, in the precision of the states."""
    pairs = jnp.concatenate([states, actions.astype(states.dtype)], axis=1)
    return jax.vmap(lambda critic: jax.vmap(critic)(pairs)[:, 0])(critics)


def bootstrapped(
    batch: Transition, next_values: Float[Array, " batch"], discount: float
) -> Float[Array, " batch"]:
    """r + discount * V(s'), and r alone where the next state is terminal."""
    return batch.reward + discount * batch.continues * next_values


def squared_error(
    values: Float[Array, "critic batch"], td_target: Float[Array, " batch"]
) -> tuple[Float[Array, ""], Metrics]:
    """Sum over the critics of the mean squared error (Algorithm 1, line 5)."""
    loss = jnp.sum(jnp.mean(jnp.square(values - td_target[None]), axis=1))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(values)}


def worst_error(
    values: Float[Array, "critic batch"], td_target: Float[Array, " batch"]
) -> Float[Array, " batch"]:
    """Each row's largest |TD error| of the critics."""
    return jnp.max(jnp.abs(td_target[None] - values), axis=0)


def mean_value_loss(values: Float[Array, "critic batch"]) -> tuple[Float[Array, ""], Metrics]:
    """-mean of Q over batch and critics, at the actor's actions (Algorithm 1, line 6)."""
    loss = -jnp.mean(values)
    return loss, {"actor_loss": loss}
