"""Twin critics: on any feature, or on states and actions as they are."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.core import EnvSpec
from fastr.nn.activations import elu
from fastr.nn.networks import MLP
from fastr.transition import Metrics, Transition


def plain_critics(spec: EnvSpec, hidden: Sequence[int], *, key: PRNGKeyArray) -> MLP:
    """Two networks with LayerNorm and ELU on [s; a], their parameters stacked."""
    sizes = (spec.state_dim + spec.action_dim, *hidden, 1)
    return jax.vmap(lambda critic_key: MLP(sizes, elu, key=critic_key))(jax.random.split(key))


def plain_q(
    critics: MLP, states: Float[Array, "batch state"], actions: Float[Array, "batch action"]
) -> Float[Array, "2 batch"]:
    """Both critics at every state and action, in the precision of the states."""
    pairs = jnp.concatenate([states, actions.astype(states.dtype)], axis=1)
    return jax.vmap(lambda critic: jax.vmap(critic)(pairs)[:, 0])(critics)


def bootstrapped(
    batch: Transition, next_values: Float[Array, " batch"], discount: float
) -> Float[Array, " batch"]:
    """r + discount * V(s'), and r alone where the next state is terminal."""
    return batch.reward + discount * batch.continues * next_values


def squared_error(
    values: Float[Array, "2 batch"], td_target: Float[Array, " batch"]
) -> tuple[Float[Array, ""], Metrics]:
    """Sum over the twins of the mean squared error (Algorithm 1, line 5)."""
    loss = jnp.sum(jnp.mean(jnp.square(values - td_target[None]), axis=1))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(values)}


def worst_error(
    values: Float[Array, "2 batch"], td_target: Float[Array, " batch"]
) -> Float[Array, " batch"]:
    """Each row's larger |TD error| of the twins."""
    return jnp.max(jnp.abs(td_target[None] - values), axis=0)


def mean_value_loss(values: Float[Array, "2 batch"]) -> tuple[Float[Array, ""], Metrics]:
    """-mean of Q over batch and twins, at the actor's actions (Algorithm 1, line 6)."""
    loss = -jnp.mean(values)
    return loss, {"actor_loss": loss}
