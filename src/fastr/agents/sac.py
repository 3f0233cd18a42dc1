"""Soft actor-critic with a learned temperature (App. SAC)."""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from fastr.agents.actor_critic import (
    MeanPolicy,
    TanhGaussian,
    bootstrapped,
    initial_temperature,
    plain_critics,
    plain_q,
    sampled,
    soft_actor_loss,
    squared_error,
    temperature_loss,
    worst_error,
)
from fastr.agents.base import AbstractAgent, AgentConfig
from fastr.core import DEEPEST, LARGEST_BATCH, EnvSpec, require
from fastr.nn.activations import elu
from fastr.nn.networks import MLP
from fastr.nn.optim import Adam, Metrics, Parameters, Trainable, polyak
from fastr.nn.precision import Precision
from fastr.transition import Transition


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
    actor_updates: int = 1
    """Updates of the critics for one of the actor."""
    normalize_observations: bool = False
    """Scale observations by running statistics (App. Shared Training Protocol)."""
    precision: Precision = "float32"
    """Arithmetic of matrix products: float32, tf32 (on a CPU the same), or bfloat16 in hidden
    layers with float32 parameters, sums and outputs."""

    def __post_init__(self):
        require(self, "batch_size", low=1, high=LARGEST_BATCH)
        require(self, "hidden_dim", "actor_updates", low=1)
        require(self, "hidden_layers", low=1, high=DEEPEST)
        require(self, "discount", "target_rate", low=0, high=1)
        rates = ("critic_learning_rate", "actor_learning_rate", "temperature_learning_rate")
        require(self, *rates, low=0)
        require(self, "initial_temperature", low=1e-6)

    def laptop(self) -> "SACConfig":
        """Small networks and batches."""
        return replace(self, hidden_dim=128, batch_size=64)

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
        temperature = initial_temperature(self.temperature_learning_rate, self.initial_temperature)
        return SAC(critics, actor, temperature, critics.parameters, self)


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
        step: Int[Array, ""],
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
            every = self.config.actor_updates
            actor, gained = self.actor.step_every(
                every,
                step,
                lambda net: soft_actor_loss(
                    net,
                    lambda actions: plain_q(critics.net, batch.state, actions),
                    alpha,
                    batch.state,
                    actor_key,
                ),
            )
            temperature, tuned = self.temperature.step_every(
                every,
                step,
                lambda log_alpha: temperature_loss(
                    log_alpha, gained["entropy"], batch.action.shape[1]
                ),
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
