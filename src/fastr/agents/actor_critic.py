"""Shared by the actor-critics: critics on (s, a), their losses, and deterministic actors."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.agents.base import AbstractAgent, AbstractPolicy
from fastr.core import EnvSpec
from fastr.nn.activations import elu
from fastr.nn.networks import MLP
from fastr.nn.optim import Adam, Layout, Metrics, Parameters, Trainable
from fastr.transition import Transition

LOG_STD_BOUNDS = (-20.0, 2.0)
"""Of the Gaussian before tanh, as in the public code."""


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


def mean_value_loss(values: Float[Array, "critic batch"]) -> tuple[Float[Array, ""], Metrics]:
    """-mean of Q over batch and critics, at the actor's actions (Algorithm 1, line 6)."""
    loss = -jnp.mean(values)
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


class TanhGaussian(NamedTuple):
    """The distribution of tanh(u), u ~ N(mean, diag(std^2))."""

    mean: Float[Array, " action"]
    log_std: Float[Array, " action"]

    @classmethod
    def of(cls, actor: MLP, state: Float[Array, " state"]) -> "TanhGaussian":
        """The policy in this state."""
        mean, log_std = jnp.split(actor(state), 2)
        return cls(mean, jnp.clip(log_std, *LOG_STD_BOUNDS))

    def sample(self, key: PRNGKeyArray) -> tuple[Float[Array, " action"], Float[Array, ""]]:
        """An action and the logarithm of its density."""
        noise = jax.random.normal(key, self.mean.shape)
        before = self.mean + jnp.exp(self.log_std) * noise
        return jnp.tanh(before), self.log_density(before)

    def log_density(self, before: Float[Array, " action"]) -> Float[Array, ""]:
        """log p(tanh(u)) at u: the Gaussian's, less the logarithm of tanh's slope.

        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which does not round to log 0.
        """
        noise = (before - self.mean) * jnp.exp(-self.log_std)
        gaussian = -0.5 * jnp.square(noise) - self.log_std - 0.5 * math.log(2 * math.pi)
        slope = 2.0 * (math.log(2.0) - before - jax.nn.softplus(-2.0 * before))
        return jnp.sum(gaussian - slope)


class MeanPolicy(AbstractPolicy):
    """tanh of the Gaussian's mean (App. Shared Training Protocol)."""

    parameters: Parameters
    layout: Layout[MLP] = eqx.field(static=True)

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " action"]:
        """The action in this state."""
        return jnp.tanh(TanhGaussian.of(self.layout.unpack(self.parameters), state).mean)

    def write(self, program: Any, value: str, action_dim: int) -> str:
        """The actor's layers, without the standard deviations at the end of the last."""
        return program.mlp(self.layout.unpack(self.parameters), value, "actor", action_dim)


def sampled(
    actor: MLP, states: Float[Array, "batch state"], key: PRNGKeyArray
) -> tuple[Float[Array, "batch action"], Float[Array, " batch"]]:
    """An action in every state, and the logarithm of its density."""
    keys = jax.random.split(key, states.shape[0])
    return jax.vmap(lambda state, k: TanhGaussian.of(actor, state).sample(k))(states, keys)


def soft_actor_loss(
    actor: MLP,
    values: Callable[[Array], Array],
    alpha: Float[Array, ""],
    states: Float[Array, "batch state"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], Metrics]:
    """mean of alpha log pi(a|s) - min_k Q_k(s, a) at sampled actions."""
    actions, log_density = sampled(actor, states, key)
    loss = jnp.mean(alpha * log_density - jnp.min(values(actions), axis=0))
    return loss, {"actor_loss": loss, "entropy": -jnp.mean(log_density)}


def initial_temperature(learning_rate: float, alpha: float = 0.2) -> Trainable[Array]:
    """The logarithm of the entropy coefficient alpha."""
    return Trainable.of(jnp.asarray(math.log(alpha), jnp.float32), Adam(learning_rate))


def temperature_loss(
    log_alpha: Float[Array, ""], entropy: Float[Array, ""], action_dim: int
) -> tuple[Float[Array, ""], Metrics]:
    """log alpha (entropy - target), with target -dim(A) (App. SAC)."""
    loss = log_alpha * (entropy + action_dim)
    return loss, {"temperature": jnp.exp(log_alpha)}
