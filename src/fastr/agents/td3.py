"""TD3 without a representation: the backbone of the spectral methods, with critics on (s, a).

Everything but the feature is FaStR's (actor, noise, targets, rates), so that the difference between
the two curves is the representation. The paper leaves this ablation out.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from fastr.agents.actor_critic import (
    AbstractDeterministicAgent,
    actor_loss,
    actor_network,
    bootstrapped,
    plain_critics,
    plain_q,
    squared_error,
    worst_error,
)
from fastr.agents.base import AgentConfig
from fastr.core import DEEPEST, LARGEST_BATCH, EnvSpec, require
from fastr.nn.networks import MLP
from fastr.nn.optim import Adam, Metrics, Parameters, Trainable, polyak
from fastr.nn.precision import Precision
from fastr.transition import Transition


@dataclass(frozen=True)
class TD3Config(AgentConfig):
    """TD3 with FaStR's settings and no representation."""

    batch_size: int = 512
    """Transitions per update (App. FaStR)."""
    discount: float = 0.99
    """Discount gamma per agent step (App. Shared Training Protocol)."""
    target_rate: float = 0.005
    """Polyak factor tau of the target copies (App. FaStR, Optimization)."""
    critic_learning_rate: float = 3e-4
    """Adam's rate for the twin critics (App. FaStR, Optimization)."""
    actor_learning_rate: float = 3e-4
    """Adam's rate for the actor (App. FaStR, Optimization)."""
    hidden_dim: int = 512
    """Units in every hidden layer of actor and critics."""
    hidden_layers: int = 3
    """Hidden layers of actor and critics."""
    exploration_noise: float = 0.2
    """Standard deviation of the Gaussian noise on collected actions (App. FaStR)."""
    target_noise: float = 0.2
    """Standard deviation of the noise on target actions (App. FaStR, Optimization)."""
    target_noise_clip: float = 0.3
    """Bound of the noise on target actions (App. FaStR, Optimization)."""
    actor_updates: int = 1
    """Updates of the critics for one of the actor."""
    imitation: float = 0.0
    """Weight of the actor's distance from the actions in the batch, beside values scaled to 1: 0.4
    in TD3+BC, and with --offline unless given; 0 leaves values as they are."""
    normalize_observations: bool = True
    """Scale observations by running statistics, as FaStR does."""
    precision: Precision = "float32"
    """Arithmetic of matrix products: float32, tf32 (on a CPU the same), or bfloat16 in hidden
    layers with float32 parameters, sums and outputs."""

    def __post_init__(self):
        require(self, "batch_size", low=1, high=LARGEST_BATCH)
        require(self, "hidden_dim", "actor_updates", low=1)
        require(self, "hidden_layers", low=1, high=DEEPEST)
        require(self, "discount", "target_rate", low=0, high=1)
        require(self, "exploration_noise", "target_noise", "target_noise_clip", low=0)
        require(self, "imitation", low=0)
        require(self, "critic_learning_rate", "actor_learning_rate", low=0)

    def laptop(self) -> "TD3Config":
        """Small networks and batches, at higher rates."""
        return replace(
            self,
            hidden_dim=128,
            hidden_layers=2,
            batch_size=64,
            critic_learning_rate=1e-3,
            actor_learning_rate=1e-3,
            target_rate=0.01,
            actor_updates=2,
        )

    def accelerated(self) -> "TD3Config":
        """With the arithmetic that is fastest on an accelerator."""
        return replace(self, precision="bfloat16")

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "TD3":
        """A fresh agent for this environment."""
        critic_key, actor_key = jax.random.split(key)
        hidden = [self.hidden_dim] * self.hidden_layers
        critics = Trainable.of(
            plain_critics(spec, hidden, key=critic_key), Adam(self.critic_learning_rate)
        )
        actor = Trainable.of(
            actor_network(spec, hidden, key=actor_key), Adam(self.actor_learning_rate)
        )
        return TD3(
            critics=critics,
            actor=actor,
            target_critics=critics.parameters,
            target_actor=actor.parameters,
            config=self,
        )


class TD3(AbstractDeterministicAgent):
    """Twin critics on (s, a) and a deterministic actor, with target copies of both."""

    critics: Trainable[MLP]
    actor: Trainable[MLP]
    target_critics: Parameters
    target_actor: Parameters
    config: TD3Config = eqx.field(static=True)

    def update(
        self,
        batch: Transition,
        key: PRNGKeyArray,
        step: Int[Array, ""],
    ) -> tuple["TD3", Float[Array, " batch"], Metrics]:
        """Critics, actor, targets; the actor is not delayed unless `actor_updates` says so."""
        batch = batch.seen_in(self.config.precision)
        with jax.named_scope("critic"):
            td_target = self.td_target(batch, key)
            values = plain_q(self.critics.net, batch.state, batch.action)
            critics, fitted = self.critics.step(
                lambda net: squared_error(plain_q(net, batch.state, batch.action), td_target)
            )
        with jax.named_scope("actor"):
            actor, gained = self.actor.step_every(
                self.config.actor_updates,
                step,
                lambda net: actor_loss(
                    net,
                    lambda actions: plain_q(critics.net, batch.state, actions),
                    batch,
                    self.config.imitation,
                ),
            )
        with jax.named_scope("optimiser"):
            rate = self.config.target_rate
            target_critics = polyak(self.target_critics, critics.parameters, rate)
            target_actor = polyak(self.target_actor, actor.parameters, rate)
        agent = replace(
            self,
            critics=critics,
            actor=actor,
            target_critics=target_critics,
            target_actor=target_actor,
        )
        return agent, worst_error(values, td_target), fitted | gained

    def td_target(self, batch: Transition, key: PRNGKeyArray) -> Float[Array, " batch"]:
        """r + discount * min_k Q_k(s', a') at the target actor's action with clipped noise."""
        actions = self.smoothed_actions(self.target_actor, batch.next_state, key)
        critics = self.critics.layout.unpack(self.target_critics)
        values = jnp.min(plain_q(critics, batch.next_state, actions), axis=0)
        return bootstrapped(batch, values, self.config.discount)

    def networks(self) -> dict[str, PyTree]:
        """Every online parameter once, under the name of the network it belongs to."""
        return {"critics": self.critics.net, "actor": self.actor.net}
