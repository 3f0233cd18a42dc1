"""Soft actor-critic with a learned temperature (App. SAC)."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from fastr.agents.actor_critic import (
    bootstrapped,
    plain_critics,
    plain_q,
    squared_error,
    worst_error,
)
from fastr.agents.base import AbstractAgent, AbstractPolicy, AgentConfig
from fastr.core import DEEPEST, LARGEST_BATCH, EnvSpec, require
from fastr.nn.activations import elu
from fastr.nn.networks import MLP
from fastr.nn.optim import Adam, Layout, Metrics, Parameters, Trainable, polyak
from fastr.nn.precision import Precision
from fastr.transition import Transition

LOG_STD_BOUNDS = (-20.0, 2.0)
"""Of the Gaussian before tanh, as in the public code."""


@dataclass(frozen=True)
class SACConfig(AgentConfig):
    """Soft actor-critic; defaults are the paper's three-layer variant (App. SAC)."""

    hidden_dim: int = 1024
    """Units in every hidden layer of actor and critics (App. SAC)."""
    hidden_layers: int = 3
    """Hidden layers of actor and critics: 3, or 2 in SAC(2-layer) (App. SAC)."""
    batch_size: int = 512
    """Transitions per update (App. SAC)."""
    discount: float = 0.99
    """Discount gamma per agent step (App. Shared Training Protocol)."""
    target_rate: float = 0.005
    """Polyak factor tau of the target critics (App. SAC)."""
    critic_learning_rate: float = 3e-4
    """Adam's rate for the twin critics (App. SAC)."""
    actor_learning_rate: float = 3e-4
    """Adam's rate for the actor (App. SAC)."""
    temperature_learning_rate: float = 3e-4
    """Adam's rate for the logarithm of the temperature (App. SAC)."""
    initial_temperature: float = 0.2
    """Entropy coefficient alpha at the start (App. SAC; the public code starts at 1)."""
    normalize_observations: bool = False
    """Scale observations by running statistics (App. Shared Training Protocol)."""
    precision: Precision = "float32"
    """Arithmetic of matrix products: float32, tf32 (on a CPU the same), or bfloat16 in hidden
    layers with float32 parameters, sums and outputs."""

    def __post_init__(self):
        require(self, "batch_size", low=1, high=LARGEST_BATCH)
        require(self, "hidden_dim", low=1)
        require(self, "hidden_layers", low=1, high=DEEPEST)
        require(self, "discount", "target_rate", low=0, high=1)
        rates = ("critic_learning_rate", "actor_learning_rate", "temperature_learning_rate")
        require(self, *rates, low=0)
        require(self, "initial_temperature", low=1e-6)

    def laptop(self) -> "SACConfig":
        """Small networks and batches, at higher rates."""
        return replace(
            self,
            hidden_dim=128,
            hidden_layers=2,
            batch_size=64,
            critic_learning_rate=1e-3,
            actor_learning_rate=1e-3,
            target_rate=0.01,
            normalize_observations=True,
        )

    def accelerated(self) -> "SACConfig":
        """With the arithmetic that is fastest on an accelerator."""
        return replace(self, precision="bfloat16")

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "SAC":
        """A fresh agent for this environment."""
        critic_key, actor_key = jax.random.split(key)
        hidden = [self.hidden_dim] * self.hidden_layers
        critics = Trainable.of(
            plain_critics(spec, hidden, key=critic_key), Adam(self.critic_learning_rate)
        )
        sizes = (spec.state_dim, *hidden, 2 * spec.action_dim)
        actor = Trainable.of(MLP(sizes, elu, key=actor_key), Adam(self.actor_learning_rate))
        temperature = Trainable.of(
            jnp.asarray(math.log(self.initial_temperature), jnp.float32),
            Adam(self.temperature_learning_rate),
        )
        return SAC(critics, actor, temperature, critics.parameters, self)


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


class SAC(AbstractAgent):
    """Twin critics on (s, a), a tanh-Gaussian actor and a temperature."""

    critics: Trainable[MLP]
    actor: Trainable[MLP]
    temperature: Trainable[Array]
    """The logarithm of alpha."""
    target_critics: Parameters
    config: SACConfig = eqx.field(static=True)

    def policy(self) -> MeanPolicy:
        """The mean of the online actor."""
        return MeanPolicy(self.actor.parameters, self.actor.layout)

    def explore(self, state: Float[Array, " state"], key: PRNGKeyArray) -> Float[Array, " action"]:
        """A sample of the policy, with no noise on top (App. SAC)."""
        return TanhGaussian.of(self.actor.net, state).sample(key)[0]

    def update(
        self,
        batch: Transition,
        key: PRNGKeyArray,
        step: Int[Array, ""],  # noqa: ARG002  (every update is the same)
    ) -> tuple["SAC", Float[Array, " batch"], Metrics]:
        """Critics, actor, temperature, target critics."""
        target_key, actor_key = jax.random.split(key)
        batch = batch.seen_in(self.config.precision)
        with jax.named_scope("critic"):
            td_target = self.td_target(batch, target_key)
            values = plain_q(self.critics.net, batch.state, batch.action)
            critics, fitted = self.critics.step(
                lambda net: squared_error(plain_q(net, batch.state, batch.action), td_target)
            )
        with jax.named_scope("actor"):
            alpha = jnp.exp(self.temperature.net)
            actor, gained = self.actor.step(
                lambda net: actor_loss(net, critics.net, alpha, batch.state, actor_key)
            )
            temperature, tuned = self.temperature.step(
                lambda log_alpha: temperature_loss(
                    log_alpha, gained["entropy"], batch.action.shape[1]
                )
            )
        with jax.named_scope("optimiser"):
            rate = self.config.target_rate
            target_critics = polyak(self.target_critics, critics.parameters, rate)
        agent = SAC(critics, actor, temperature, target_critics, self.config)
        return agent, worst_error(values, td_target), fitted | gained | tuned

    def td_target(self, batch: Transition, key: PRNGKeyArray) -> Float[Array, " batch"]:
        """r + discount * (min_k Q_k(s', a') - alpha log pi(a'|s')), as in App. SAC."""
        actions, log_density = sampled(self.actor.net, batch.next_state, key)
        critics = self.critics.layout.unpack(self.target_critics)
        values = jnp.min(plain_q(critics, batch.next_state, actions), axis=0)
        soft = values - jnp.exp(self.temperature.net) * log_density
        return bootstrapped(batch, soft, self.config.discount)

    def networks(self) -> dict[str, PyTree]:
        """Every online parameter once, under the name of the network it belongs to."""
        return {
            "critics": self.critics.net,
            "actor": self.actor.net,
            "temperature": self.temperature.net,
        }


def sampled(
    actor: MLP, states: Float[Array, "batch state"], key: PRNGKeyArray
) -> tuple[Float[Array, "batch action"], Float[Array, " batch"]]:
    """An action in every state, and the logarithm of its density."""
    keys = jax.random.split(key, states.shape[0])
    return jax.vmap(lambda state, k: TanhGaussian.of(actor, state).sample(k))(states, keys)


def actor_loss(
    actor: MLP,
    critics: MLP,
    alpha: Float[Array, ""],
    states: Float[Array, "batch state"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], Metrics]:
    """mean of alpha log pi(a|s) - min_k Q_k(s, a) at sampled actions."""
    actions, log_density = sampled(actor, states, key)
    values = jnp.min(plain_q(critics, states, actions), axis=0)
    loss = jnp.mean(alpha * log_density - values)
    return loss, {"actor_loss": loss, "entropy": -jnp.mean(log_density)}


def temperature_loss(
    log_alpha: Float[Array, ""], entropy: Float[Array, ""], action_dim: int
) -> tuple[Float[Array, ""], Metrics]:
    """log alpha (entropy - target), with target -dim(A) (App. SAC)."""
    loss = log_alpha * (entropy + action_dim)
    return loss, {"temperature": jnp.exp(log_alpha)}
