"""TD7: TD3 on learned embeddings, with prioritised replay and policy checkpoints (App. TD7).

Names are those of the TD7 paper: zs embeds a state, zsa a state and an action. Three generations of
the encoder are kept: the one that learns, the fixed one that critics and actor read, and the fixed
one of the targets. Every 250 updates each moves up by one.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from fastr.agents.actor_critic import bootstrapped, explored, smoothed, worst_error
from fastr.agents.base import AbstractAgent, AgentConfig, chosen
from fastr.agents.td7_networks import Actor, Critic, Encoder, KeptPolicy, Pair, Trial, twin_q
from fastr.core import LARGEST_BATCH, EnvSpec, require
from fastr.nn.optim import Adam, Metrics, Parameters, Trainable
from fastr.nn.precision import Arithmetic
from fastr.transition import Transition


@dataclass(frozen=True)
class TD7Config(AgentConfig):
    """TD7; defaults are the paper's (App. TD7), which are the original authors'."""

    random_frames: ClassVar[int] = 50_000

    embedding_dim: int = 256
    """Coordinates of zs and zsa (App. TD7)."""
    hidden_dim: int = 256
    """Units in every hidden layer (App. TD7)."""
    batch_size: int = 256
    """Transitions per update (App. TD7)."""
    discount: float = 0.99
    """Discount gamma per agent step (App. Shared Training Protocol)."""
    learning_rate: float = 3e-4
    """Adam's rate for encoder, critics and actor (App. TD7)."""
    target_updates: int = 250
    """Updates between hard copies into the targets (App. TD7)."""
    actor_updates: int = 2
    """Updates of the critics per update of the actor (App. TD7)."""
    exploration_noise: float = 0.1
    """Standard deviation of the Gaussian noise on collected actions (App. TD7)."""
    target_noise: float = 0.2
    """Standard deviation of the noise on target actions (App. TD7)."""
    target_noise_clip: float = 0.5
    """Bound of the noise on target actions (App. TD7)."""
    cloning_weight: float = 0.0
    """Weight of behaviour cloning in the actor's loss: for offline data; 0 online, as in the
    original code (the paper states 0.1, docs/methods.md)."""
    assessed_episodes: int = 20
    """Episodes a policy must hold its return for, late in training (App. TD7)."""
    late_updates: int = 750_000
    """Updates after which that many episodes are required; one before (App. TD7)."""
    late_relaxation: float = 0.9
    """Factor on the best return when that moment comes (App. TD7)."""
    normalize_observations: bool = False
    """Scale observations by running statistics (App. Shared Training Protocol)."""
    precision: Arithmetic = "float32"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Arithmetic of matrix products: float32, or tf32 (on a CPU the same)."""

    def __post_init__(self):
        require(self, "batch_size", low=1, high=LARGEST_BATCH)
        sizes = ("hidden_dim", "embedding_dim")
        counts = ("target_updates", "actor_updates", "assessed_episodes", "late_updates")
        require(self, *sizes, *counts, low=1)
        require(self, "discount", "late_relaxation", low=0, high=1)
        noises = ("exploration_noise", "target_noise", "target_noise_clip")
        require(self, *noises, "learning_rate", "cloning_weight", low=0)

    def laptop(self) -> "TD7Config":
        """Small networks with larger steps."""
        sizes = {"embedding_dim": 128, "hidden_dim": 128, "batch_size": 128}
        return replace(self, learning_rate=1e-3, **sizes)

    @property
    def priority_updates(self) -> int:
        """The largest priority is renewed at every hard copy (App. TD7)."""
        return self.target_updates

    def accelerated(self) -> "TD7Config":
        """With the arithmetic that is fastest on an accelerator."""
        return replace(self, precision="tf32")

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "TD7":
        """A fresh agent for this environment."""
        encoder_key, critic_key, actor_key = jax.random.split(key, 3)
        adam = Adam(self.learning_rate)
        sizes = (spec, self.hidden_dim, self.embedding_dim)
        encoder = Trainable.of(Encoder(*sizes, key=encoder_key), adam)
        critics = Trainable.of(
            jax.vmap(lambda one: Critic(*sizes, key=one))(jax.random.split(critic_key)), adam
        )
        actor = Trainable.of(Actor(*sizes, key=actor_key), adam)
        pair = Pair(actor.parameters, encoder.parameters)
        return TD7(
            encoder=encoder,
            critics=critics,
            actor=actor,
            fixed_encoder=encoder.parameters,
            target=Target(encoder.parameters, critics.parameters, actor.parameters),
            bounds=Bounds.start(),
            behaviour=pair,
            checkpoint=pair,
            trial=Trial.start(),
            config=self,
        )


class Target(eqx.Module):
    """What the TD targets are computed with: copied every 250 updates, not averaged."""

    encoder: Parameters
    critics: Parameters
    actor: Parameters


class Bounds(eqx.Module):
    """The range of TD targets seen, and the range in use since the last copy."""

    seen: Float[Array, "2"]
    used: Float[Array, "2"]
    """(0, 0) at first: until the first copy, targets are rewards alone."""

    @classmethod
    def start(cls) -> "Bounds":
        """Nothing seen: an empty range."""
        return cls(jnp.asarray([1e8, -1e8]), jnp.zeros(2))

    def clip(self, values: Float[Array, " batch"]) -> Float[Array, " batch"]:
        """Values within the range in use."""
        return jnp.clip(values, self.used[0], self.used[1])

    def extend(self, targets: Float[Array, " batch"]) -> "Bounds":
        """With these targets seen."""
        low = jnp.minimum(self.seen[0], jnp.min(targets))
        high = jnp.maximum(self.seen[1], jnp.max(targets))
        return Bounds(jnp.stack([low, high]), self.used)


class TD7(AbstractAgent):
    """Encoder, twin critics and actor, their fixed and target copies, and the policies kept."""

    encoder: Trainable[Encoder]
    critics: Trainable[Critic]
    actor: Trainable[Actor]
    fixed_encoder: Parameters
    target: Target
    bounds: Bounds
    behaviour: Pair
    """The policy that collects data: it changes between episodes only."""
    checkpoint: Pair
    """The policy that is evaluated."""
    trial: Trial
    config: TD7Config = eqx.field(static=True)

    def kept(self, pair: Pair) -> KeptPolicy:
        """A pair of parameters as a policy."""
        return KeptPolicy(pair, self.actor.layout, self.encoder.layout)

    def policy(self) -> KeptPolicy:
        """The checkpoint."""
        return self.kept(self.checkpoint)

    def explore(self, state: Float[Array, " state"], key: PRNGKeyArray) -> Float[Array, " action"]:
        """The behaviour policy's action plus Gaussian noise, clipped to [-1, 1]."""
        return explored(self.kept(self.behaviour)(state), self.config.exploration_noise, key)

    def update(
        self, batch: Transition, key: PRNGKeyArray, step: Int[Array, ""]
    ) -> tuple["TD7", Float[Array, " batch"], Metrics]:
        """Encoder, critics, every second time the actor, every 250th time the copies."""
        with jax.named_scope("representation"):
            encoder, learned = self.encoder.step(lambda net: encoder_loss(net, batch))
        fixed = self.encoder.layout.unpack(self.fixed_encoder)
        with jax.named_scope("critic"):
            td_target = self.td_target(batch, key)
            zs = jax.vmap(fixed.zs)(batch.state)
            zsa = jax.vmap(fixed.zsa)(zs, batch.action)
            values = twin_q(self.critics.net, batch.state, batch.action, zsa, zs)
            critics, fitted = self.critics.step(
                lambda net: critic_loss(twin_q(net, batch.state, batch.action, zsa, zs), td_target)
            )
        with jax.named_scope("actor"):
            moved, gained = self.actor.step(
                lambda net: actor_loss(net, critics.net, fixed, batch, zs, self.config)
            )
            due = (step + 1) % self.config.actor_updates == 0
            actor = chosen(due, moved, self.actor)
        agent = replace(
            self,
            encoder=encoder,
            critics=critics,
            actor=actor,
            bounds=self.bounds.extend(td_target),
        )
        with jax.named_scope("optimiser"):
            due = (step + 1) % self.config.target_updates == 0
            agent = chosen(due, agent.copied(), agent)
        return agent, worst_error(values, td_target), learned | fitted | gained

    def copied(self) -> "TD7":
        """After the hard copies: each generation of the encoder moves up by one."""
        return replace(
            self,
            target=Target(self.fixed_encoder, self.critics.parameters, self.actor.parameters),
            fixed_encoder=self.encoder.parameters,
            bounds=Bounds(self.bounds.seen, self.bounds.seen),
        )

    def td_target(self, batch: Transition, key: PRNGKeyArray) -> Float[Array, " batch"]:
        """r + discount * min_k Q_k(s', a') within the range of earlier targets (App. TD7)."""
        encoder = self.encoder.layout.unpack(self.target.encoder)
        actor = self.actor.layout.unpack(self.target.actor)
        zs = jax.vmap(encoder.zs)(batch.next_state)
        actions = smoothed(
            jax.vmap(actor)(batch.next_state, zs),
            self.config.target_noise,
            self.config.target_noise_clip,
            key,
        )
        zsa = jax.vmap(encoder.zsa)(zs, actions)
        critics = self.critics.layout.unpack(self.target.critics)
        values = jnp.min(twin_q(critics, batch.next_state, actions, zsa, zs), axis=0)
        return bootstrapped(batch, self.bounds.clip(values), self.config.discount)

    def feature_map(self) -> Encoder:
        """The encoder that the policy reads."""
        return self.encoder.layout.unpack(self.checkpoint.encoder)

    def end_episode(self, episode_return: Float[Array, ""], updates: Int[Array, ""]) -> "TD7":
        """Assess the behaviour policy by one more episode: keep it, continue its trial, or drop it.

        After either end of a trial the newest policy is next (policy checkpointing, App. TD7).
        """
        # The official code trains in bursts between episodes; here updates run during episodes, and
        # the policy that collects data still changes only in between (docs/methods.md).
        started = updates > 0
        judged = self.trial.judged(
            episode_return,
            late=updates >= self.config.late_updates,
            late_episodes=self.config.assessed_episodes,
            relaxation=self.config.late_relaxation,
        )
        newest = Pair(self.actor.parameters, self.fixed_encoder)
        after = replace(
            self,
            behaviour=chosen(judged.over, newest, self.behaviour),
            checkpoint=chosen(judged.kept, self.behaviour, self.checkpoint),
            trial=judged.trial,
        )
        return chosen(started, after, self)

    def networks(self) -> dict[str, PyTree]:
        """Every online parameter once, under the name of the network it belongs to."""
        encoder = self.encoder.net
        return {
            "state_encoder": encoder.state,
            "pair_encoder": encoder.pair,
            "critics": self.critics.net,
            "actor": self.actor.net,
        }


def encoder_loss(encoder: Encoder, batch: Transition) -> tuple[Float[Array, ""], Metrics]:
    """mean (zsa(zs(s), a) - zs(s'))^2, with no gradient into zs(s')."""
    predicted = jax.vmap(encoder.zsa)(jax.vmap(encoder.zs)(batch.state), batch.action)
    following = jax.lax.stop_gradient(jax.vmap(encoder.zs)(batch.next_state))
    loss = jnp.mean(jnp.square(predicted - following))
    return loss, {"encoder_loss": loss}


def critic_loss(
    values: Float[Array, "2 batch"], td_target: Float[Array, " batch"]
) -> tuple[Float[Array, ""], Metrics]:
    """Huber loss, summed over the twins: its slope is bounded where priorities grow."""
    error = jnp.abs(values - td_target[None])
    huber = jnp.where(error < 1.0, 0.5 * jnp.square(error), error)
    loss = jnp.sum(jnp.mean(huber, axis=1))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(values)}


def actor_loss(
    actor: Actor,
    critics: Critic,
    fixed: Encoder,
    batch: Transition,
    zs: Float[Array, "batch feature"],
    config: TD7Config,
) -> tuple[Float[Array, ""], Metrics]:
    """-mean Q over batch and twins, plus behaviour cloning scaled by mean |Q| (offline)."""
    actions = jax.vmap(actor)(batch.state, zs)
    zsa = jax.vmap(fixed.zsa)(zs, actions)
    values = twin_q(critics, batch.state, actions, zsa, zs)
    scale = config.cloning_weight * jax.lax.stop_gradient(jnp.mean(jnp.abs(values)))
    cloning = jnp.mean(jnp.square(actions - batch.action))
    loss = -jnp.mean(values) + scale * cloning
    return loss, {"actor_loss": loss}
