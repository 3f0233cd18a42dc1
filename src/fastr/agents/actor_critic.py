"""Shared by the actor-critics: critics on (s, a), their losses, and deterministic actors."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.agents.base import AbstractAgent, AbstractPolicy
from fastr.core import EnvSpec
from fastr.nn.activations import elu
from fastr.nn.networks import MLP
from fastr.nn.optim import Layout, Metrics, Parameters, Trainable
from fastr.transition import Transition


def plain_critics(
    spec: EnvSpec, hidden: Sequence[int], *, count: int = 2, key: PRNGKeyArray
) -> MLP:
    """Networks with LayerNorm and ELU on [s; a], their parameters stacked."""
    sizes = (spec.state_dim + spec.action_dim, *hidden, 1)
    return stacked_critics(sizes, count=count, key=key)


def stacked_critics(sizes: Sequence[int], *, count: int = 2, key: PRNGKeyArray) -> MLP:
    """Networks with LayerNorm and ELU of these sizes, their parameters stacked."""
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


def actor_loss(
    actor: MLP,
    values: Callable[[Array], Float[Array, "critic batch"]],
    batch: Transition,
    imitation: float = 0.0,
) -> tuple[Float[Array, ""], Metrics]:
    """-mean of Q over batch and critics, at the actor's actions (Algorithm 1, line 6).

    With imitation, as in TD3+BC: values scaled to a mean size of 1, and that weight on the squared
    distance from the batch's actions.
    """
    actions = jax.vmap(lambda state: jnp.tanh(actor(state)))(batch.state)
    found = values(actions)
    loss = -jnp.mean(found)
    if imitation:
        size = jax.lax.stop_gradient(jnp.mean(jnp.abs(found)))
        distance = jnp.mean(jnp.square(actions - batch.action))
        loss = loss / jnp.maximum(size, 1e-6) + imitation * distance
    return loss, {"actor_loss": loss}


class DeterministicPolicy(AbstractPolicy):
    """tanh of a network on the state alone (App. FaStR, Architecture)."""

    parameters: Parameters
    layout: Layout[MLP] = eqx.field(static=True)

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " action"]:
        """The action in this state."""
        return jnp.tanh(self.layout.unpack(self.parameters)(state))

    def write(self, program: Any, value: str, action_dim: int) -> str:  # noqa: ARG002
        """The actor's layers."""
        return program.mlp(self.layout.unpack(self.parameters), value, "actor")


def actor_network(spec: EnvSpec, hidden: Sequence[int], *, key: PRNGKeyArray) -> MLP:
    """Hidden layers with LayerNorm and ELU (App. FaStR; the public code has ReLU)."""
    return MLP((spec.state_dim, *hidden, spec.action_dim), elu, key=key)


def explored(
    action: Float[Array, " action"], scale: float, key: PRNGKeyArray
) -> Float[Array, " action"]:
    """The action plus Gaussian noise, clipped to [-1, 1]."""
    return jnp.clip(action + scale * jax.random.normal(key, action.shape), -1.0, 1.0)


def smoothed(
    actions: Float[Array, "batch action"], scale: float, bound: float, key: PRNGKeyArray
) -> Float[Array, "batch action"]:
    """Target actions plus clipped Gaussian noise, clipped to [-1, 1]."""
    noise = scale * jax.random.normal(key, actions.shape)
    return jnp.clip(actions + jnp.clip(noise, -bound, bound), -1.0, 1.0)


class AbstractDeterministicAgent(AbstractAgent):
    """An agent that acts by one network on the state: the same with a representation or without."""

    actor: eqx.AbstractVar[Trainable[MLP]]
    config: eqx.AbstractVar[Any]
    """With exploration_noise, target_noise and target_noise_clip."""

    def policy(self) -> DeterministicPolicy:
        """The online actor."""
        return DeterministicPolicy(self.actor.parameters, self.actor.layout)

    def explore(self, state: Float[Array, " state"], key: PRNGKeyArray) -> Float[Array, " action"]:
        """The policy's action plus Gaussian noise, clipped to [-1, 1]."""
        return explored(self.policy()(state), self.config.exploration_noise, key)

    def smoothed_actions(
        self, actor: Parameters, states: Float[Array, "batch state"], key: PRNGKeyArray
    ) -> Float[Array, "batch action"]:
        """The actions of a copy of the actor plus clipped noise (App. FaStR, Optimization)."""
        actions = jax.vmap(DeterministicPolicy(actor, self.actor.layout))(states)
        return smoothed(actions, self.config.target_noise, self.config.target_noise_clip, key)
