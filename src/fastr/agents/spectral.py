"""Twin Fourier critics and a deterministic actor on any spectral representation (Algorithm 1)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from fastr.agents.actor_critic import (
    AbstractDeterministicAgent,
    actor_loss,
    actor_network,
    bootstrapped,
    squared_error,
    stacked_critics,
    worst_error,
)
from fastr.agents.base import AbstractAgent, AgentConfig, Part
from fastr.core import DEEPEST, LARGEST_BATCH, EnvSpec, UserError, require
from fastr.nn.networks import MLP, Head
from fastr.nn.optim import Adam, Layout, Metrics, Parameters, Trainable, polyak
from fastr.nn.precision import Precision, lowered
from fastr.representations.base import AbstractRepresentation, Keep, RepresentationConfig
from fastr.representations.interactions import CPConfig
from fastr.representations.ranking import Encoder
from fastr.transition import Transition

ENCODERS: dict[Keep, str] = {"state-factor": "state_encoder", "encoder": "encoder"}
"""The network of each part that can be kept."""


def with_kept(
    net: AbstractRepresentation, keep: Keep, change: Callable[[Encoder], Encoder]
) -> AbstractRepresentation:
    """The representation with its kept part changed."""
    if keep == "nothing":
        return net
    name = ENCODERS[keep]
    # Not by `replace_fn`, which is shown Equinox's stand-ins for empty tuples.
    return eqx.tree_at(lambda net: getattr(net, name), net, change(getattr(net, name)))


@dataclass(frozen=True)
class SpectralConfig(AgentConfig):
    """TD3 on a spectral feature; defaults are the paper's (App. FaStR, Table hyperparams)."""

    representation: RepresentationConfig = field(default_factory=CPConfig)
    """How the feature is learned: FaStR's factors, CTRL-SR's joint encoder, Diff-SR's, or another
    interaction of the factors (docs/methods.md)."""
    batch_size: int = 512
    """Transitions N per update; also the candidates K of the ranking loss (App. FaStR)."""
    discount: float = 0.99
    """Discount gamma per agent step (App. Shared Training Protocol)."""
    target_rate: float = 0.005
    """Polyak factor tau of all target copies (App. FaStR, Optimization)."""
    representation_learning_rate: float = 1e-4
    """Adam's rate for encoders, temperatures and reward head (App. FaStR, Optimization)."""
    critic_learning_rate: float = 3e-4
    """Adam's rate for the twin critics (App. FaStR, Optimization)."""
    actor_learning_rate: float = 3e-4
    """Adam's rate for the actor (App. FaStR, Optimization)."""
    hidden_layers: int = 3
    """Hidden layers of the actor (App. FaStR, Architecture), and of critics that read all."""
    actor_dim: int = 512
    """Units in each of them."""
    exploration_noise: float = 0.2
    """Standard deviation of the Gaussian noise on collected actions (App. FaStR)."""
    target_noise: float = 0.2
    """Standard deviation of the noise on target actions (App. FaStR, Optimization)."""
    target_noise_clip: float = 0.3
    """Bound of the noise on target actions (App. FaStR, Optimization)."""
    feature_source: Literal["target", "online"] = "target"
    """Copy of the representation that critic and actor read at (s, a): the public code's
    target copy, or Algorithm 1's online one (docs/deviations.md)."""
    critic_reads: Literal["feature", "all"] = "feature"
    """Input of the critics: psi(s, a), through Fourier features as in the paper; or psi(s, a), s
    and a, through hidden layers as in TD3."""
    representation_updates: int = 1
    """Updates of the critics for one of the representation."""
    actor_updates: int = 1
    """Updates of the critics for one of the actor."""
    imitation: float = 0.0
    """Weight of the actor's distance from the actions in the batch, beside values scaled to 1: 0.4
    in TD3+BC, and with --offline unless given; 0 leaves values as they are."""
    learns: Literal["all", "representation"] = "all"
    """All networks, or the representation alone (fastr fit)."""
    normalize_observations: bool = True
    """Scale observations by running statistics (App. Shared Training Protocol)."""
    keep: Keep = "nothing"
    """The part of the representation that stays fixed, with the observation statistics: the
    state factor phi_s, or a joint encoder as a whole (Sec. Modular Reuse). Comes with --init."""

    @property
    def precision(self) -> Precision:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Arithmetic of matrix products."""
        return self.representation.precision

    def laptop(self) -> "SpectralConfig":
        """Small networks and batches; a representation that learns now and then, but faster."""
        return replace(
            self,
            representation=self.representation.laptop(),
            representation_learning_rate=3e-4,
            representation_updates=4,
            critic_learning_rate=1e-3,
            actor_learning_rate=1e-3,
            target_rate=0.01,
            critic_reads="all",
            hidden_layers=2,
            actor_dim=128,
            actor_updates=2,
            batch_size=64,
        )

    def accelerated(self) -> "SpectralConfig":
        """With the arithmetic that is fastest on an accelerator."""
        return replace(self, representation=self.representation.accelerated())

    def __post_init__(self):
        require(self, "batch_size", low=1, high=LARGEST_BATCH)
        require(self, "actor_dim", "representation_updates", "actor_updates", low=1)
        require(self, "hidden_layers", low=1, high=DEEPEST)
        require(self, "discount", "target_rate", low=0, high=1)
        require(self, "exploration_noise", "target_noise", "target_noise_clip", low=0)
        require(self, "imitation", low=0)
        if self.keep not in ("nothing", self.representation.keepable):
            raise UserError(
                f"--keep {self.keep} is not possible with this representation; "
                f"it can keep {self.representation.keepable}."
            )
        rates = ("representation_learning_rate", "critic_learning_rate", "actor_learning_rate")
        require(self, *rates, low=0)

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Spectral":
        """A fresh agent for this environment."""
        representation_key, critic_key, actor_key = jax.random.split(key, 3)
        sizes = self.representation
        net = sizes.init(spec, representation_key)
        hidden = [self.actor_dim] * self.hidden_layers
        if self.critic_reads == "all":
            state, action = jnp.zeros(spec.state_dim), jnp.zeros(spec.action_dim)
            width = (
                spec.state_dim + spec.action_dim + jax.eval_shape(net.feature, state, action).size
            )
            critics = stacked_critics((width, *hidden, 1), key=critic_key)
        else:
            critics = jax.vmap(sizes.head)(jax.random.split(critic_key))
        actor = actor_network(spec, hidden, key=actor_key)
        return Spectral.of(
            self,
            Trainable.of(net, Adam(self.representation_learning_rate)),
            Trainable.of(critics, Adam(self.critic_learning_rate)),
            Trainable.of(actor, Adam(self.actor_learning_rate)),
        )


def readable(representation: Trainable[AbstractRepresentation]) -> Parameters:
    """The parameters of what features need of a representation."""
    net = representation.net.readable()
    return Layout.of(net).pack(net)


class Target(eqx.Module):
    """Target copies of everything that critics and actor read."""

    representation: Parameters
    critics: Parameters
    actor: Parameters


def twin_q(critics: Head | MLP, read: Float[Array, "batch read"]) -> Float[Array, "2 batch"]:
    """Both critics at every row of what they read."""
    values = jax.vmap(lambda critic: jax.vmap(critic)(read))(critics)
    return values.reshape(2, -1)


class Spectral(AbstractDeterministicAgent):
    """Representation, twin critics and actor, with target copies of what they read."""

    representation: Trainable[AbstractRepresentation]
    critics: Trainable[Head] | Trainable[MLP]
    actor: Trainable[MLP]
    target: Target
    config: SpectralConfig = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        config: SpectralConfig,
        representation: Trainable[AbstractRepresentation],
        critics: Trainable[Head] | Trainable[MLP],
        actor: Trainable[MLP],
    ) -> "Spectral":
        """An agent whose target copies start at the online networks."""
        target = Target(readable(representation), critics.parameters, actor.parameters)
        return cls(
            representation=representation,
            critics=critics,
            actor=actor,
            target=target,
            config=config,
        )

    def update(
        self,
        batch: Transition,
        key: PRNGKeyArray,
        step: Int[Array, ""],
    ) -> tuple["Spectral", Float[Array, " batch"], Metrics]:
        """Algorithm 1: representation, critics, actor, targets; one batch for all."""
        representation_key, target_key = jax.random.split(key)
        alone = self.config.learns == "representation"
        with jax.named_scope("representation"):
            representation, learned = self.representation.step_every(
                1 if alone else self.config.representation_updates,
                step,
                lambda net: with_kept(net, self.config.keep, jax.lax.stop_gradient).loss(
                    batch, representation_key
                ),
            )
        if alone:
            followed = polyak(
                self.target.representation, readable(representation), self.config.target_rate
            )
            target = replace(self.target, representation=followed)
            fitted = replace(self, representation=representation, target=target)
            return fitted, jnp.zeros_like(batch.reward), learned
        with jax.named_scope("critic"):
            next_actions = self.target_actions(batch.next_state, target_key)
            source, contexts, features, next_features = self.features(
                representation.net, batch, next_actions
            )
            if self.config.critic_reads == "all":
                features = jnp.concatenate([features, batch.state, batch.action], axis=1)
                following = [next_features, batch.next_state, next_actions]
                next_features = jnp.concatenate(following, axis=1)
            td_target = self.td_target(batch, next_features)
            features = lowered(features, self.config.precision)
            values = twin_q(self.critics.net, features)
            critics, fitted = self.critics.step(
                lambda net: squared_error(twin_q(net, features), td_target)
            )
        with jax.named_scope("actor"):
            states = lowered(batch.state, self.config.precision)
            actor, gained = self.actor.step_every(
                self.config.actor_updates,
                step,
                lambda net: actor_loss(
                    net,
                    lambda actions: action_values(critics.net, source, states, contexts, actions),
                    replace(batch, state=states),
                    self.config.imitation,
                ),
            )
        # After all that reads the targets: see Trainable.step.
        target, critics, actor = jax.lax.optimization_barrier((self.target, critics, actor))
        with jax.named_scope("optimiser"):
            rate = self.config.target_rate
            target = Target(
                polyak(target.representation, readable(representation), rate),
                polyak(target.critics, critics.parameters, rate),
                polyak(target.actor, actor.parameters, rate),
            )
        agent = replace(
            self, representation=representation, critics=critics, actor=actor, target=target
        )
        return agent, worst_error(values, td_target), learned | fitted | gained

    def feature_map(self) -> AbstractRepresentation:
        """The copy of the representation that the critics learn on."""
        online = self.config.feature_source == "online"
        return self.representation.net if online else self.target_representation

    @property
    def kept_networks(self) -> tuple[str, ...]:
        """The encoder that the configuration keeps."""
        names = {"nothing": (), "state-factor": ("state_encoder",), "encoder": ("joint_encoder",)}
        return names[self.config.keep]

    def inherit(self, source: AbstractAgent, part: Part) -> AbstractAgent:
        """With a part of another agent, target copy included; optimisers start anew."""
        if part == "all":
            return super().inherit(source, part)
        assert isinstance(source, Spectral)
        if part == "representation":
            online = replace(self.representation, parameters=source.representation.parameters)
            target = replace(self.target, representation=source.target.representation)
            return replace(self, representation=online, target=target)
        if part != (keep := self.config.representation.keepable):
            raise UserError(
                f"--init-parts {part} is not possible with this representation; "
                f"all, representation or {keep} is."
            )
        kept = getattr(source.representation.net, ENCODERS[keep])
        online, target = (
            Layout.of(net).pack(with_kept(net, keep, lambda _: kept))
            for net in (self.representation.net, self.target_representation)
        )
        # The target starts at the online copy: the average of equals never moves.
        return replace(
            self,
            representation=replace(self.representation, parameters=online),
            target=replace(self.target, representation=target),
        )

    @property
    def target_representation(self) -> AbstractRepresentation:
        """The target copy of what features need of the representation."""
        layout = Layout.of(self.representation.net.readable())
        return layout.unpack(self.target.representation)

    def target_actions(
        self, states: Float[Array, "batch state"], key: PRNGKeyArray
    ) -> Float[Array, "batch action"]:
        """The target actor's actions plus clipped noise (App. FaStR, Optimization)."""
        seen = lowered(states, self.config.precision)
        return self.smoothed_actions(self.target.actor, seen, key)

    def features(
        self,
        online: AbstractRepresentation,
        batch: Transition,
        next_actions: Float[Array, "batch action"],
    ) -> tuple[AbstractRepresentation, Array, Array, Array]:
        """What critic and actor read: source, contexts of s, features of (s, a) and of (s', a').

        Where both come from the target copy, in one pass of twice the rows.
        """
        target = self.target_representation
        if self.config.feature_source == "online":
            contexts = jax.vmap(online.context)(batch.state)
            features = jax.vmap(online.combine)(contexts, batch.action)
            next_features = jax.vmap(target.feature)(batch.next_state, next_actions)
            return online, contexts, features, next_features
        contexts = jax.vmap(target.context)(jnp.concatenate([batch.state, batch.next_state]))
        actions = jnp.concatenate([batch.action, next_actions])
        features, next_features = jnp.split(jax.vmap(target.combine)(contexts, actions), 2)
        return target, contexts[: batch.state.shape[0]], features, next_features

    def td_target(
        self, batch: Transition, next_features: Float[Array, "batch feature"]
    ) -> Float[Array, " batch"]:
        """r + discount * min_k Q_k(psi(s', a')); all from the targets.

        Algorithm 1, line 4, sketches one Q and the online actor; the paper's text has twin critics
        and target smoothing.
        """
        critics = self.critics.layout.unpack(self.target.critics)
        values = twin_q(critics, lowered(next_features, self.config.precision))
        return bootstrapped(batch, jnp.min(values, axis=0), self.config.discount)

    def networks(self) -> dict[str, PyTree]:
        """Every online parameter once, under the name of the network it belongs to."""
        return self.representation.net.networks() | {
            "critics": self.critics.net,
            "actor": self.actor.net,
        }


def action_values(
    critics: Head | MLP,
    representation: AbstractRepresentation,
    states: Float[Array, "batch state"],
    contexts: Float[Array, "batch context"],
    actions: Float[Array, "batch action"],
) -> Float[Array, "2 batch"]:
    """Q(psi(s, a)) of both critics at an actor's actions.

    The paper's stop-gradient around phi_a(pi(s)) would leave the actor no gradient at all. It is
    read as holding the encoders' parameters fixed; the gradient reaches pi through phi_a. Actor and
    critics are in the precision of the states.
    """
    features = jax.vmap(representation.combine)(contexts, actions).astype(states.dtype)
    if isinstance(critics, MLP):
        read = [features, states, actions.astype(states.dtype)]
        features = jnp.concatenate(read, axis=1)
    return twin_q(critics, features)
