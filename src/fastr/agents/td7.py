"""TD7: TD3 on learned embeddings, with prioritised replay and policy checkpoints (App. TD7).

Names are those of the TD7 paper: zs embeds a state, zsa a state and an action. Three generations of
the encoder are kept: the one that learns, the fixed one that critics and actor read, and the fixed
one of the targets. Every 250 updates each moves up by one.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from fastr.activations import average_l1_norm, elu
from fastr.agents.base import AbstractAgent, AbstractPolicy, chosen
from fastr.agents.critics import bootstrapped, worst_error
from fastr.agents.deterministic import explored, smoothed
from fastr.checks import require
from fastr.networks import MLP, Linear
from fastr.optim import Adam, Layout, Parameters, Trainable
from fastr.precision import Arithmetic
from fastr.replay import PrioritizedReplay
from fastr.spec import EnvSpec
from fastr.types import Metrics, Transition


@dataclass(frozen=True)
class TD7Config:
    """TD7; defaults are the paper's (App. TD7), which are the original authors'."""

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
    """Updates after which that many episodes are asked for; one before (App. TD7)."""
    late_relaxation: float = 0.9
    """Factor on the best return when that moment comes (App. TD7)."""
    normalize_observations: bool = False
    """Scale observations by running statistics (App. Shared Training Protocol)."""
    precision: Arithmetic = "float32"
    """Arithmetic of matrix products: float32, or tf32 (accelerators only)."""

    def __post_init__(self):
        sizes = ("batch_size", "hidden_dim", "embedding_dim")
        counts = ("target_updates", "actor_updates", "assessed_episodes", "late_updates")
        require(self, *sizes, *counts, low=1)
        require(self, "discount", "late_relaxation", low=0, high=1)
        noises = ("exploration_noise", "target_noise", "target_noise_clip")
        require(self, *noises, "learning_rate", "cloning_weight", low=0)

    def accelerated(self) -> "TD7Config":
        """With the arithmetic that is fastest on an accelerator."""
        return replace(self, precision="tf32")

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "TD7":
        """A fresh agent for this environment."""
        encoder_key, critic_key, actor_key = jax.random.split(key, 3)
        adam = Adam(self.learning_rate)
        encoder = Trainable.of(Encoder(spec, self, key=encoder_key), adam)
        critics = Trainable.of(
            jax.vmap(lambda one: Critic(spec, self, key=one))(jax.random.split(critic_key)), adam
        )
        actor = Trainable.of(Actor(spec, self, key=actor_key), adam)
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


class Encoder(eqx.Module):
    """zs(s) with AvgL1Norm, and zsa(zs, a)."""

    state: MLP
    pair: MLP

    def __init__(self, spec: EnvSpec, config: TD7Config, *, key: PRNGKeyArray):
        state_key, pair_key = jax.random.split(key)
        hidden, size = [config.hidden_dim] * 2, config.embedding_dim
        self.state = MLP((spec.state_dim, *hidden, size), elu, layer_norm=False, key=state_key)
        self.pair = MLP(
            (size + spec.action_dim, *hidden, size), elu, layer_norm=False, key=pair_key
        )

    def zs(self, state: Float[Array, " state"]) -> Float[Array, " feature"]:
        """The embedding of a state."""
        return average_l1_norm(self.state(state))

    def zsa(
        self, zs: Float[Array, " feature"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """The embedding of an action in an embedded state: the prediction of the next zs."""
        return self.pair(jnp.concatenate([zs, action]))


class Actor(eqx.Module):
    """tanh of a network on the state and its embedding."""

    inlet: Linear
    body: MLP

    def __init__(self, spec: EnvSpec, config: TD7Config, *, key: PRNGKeyArray):
        inlet_key, body_key = jax.random.split(key)
        hidden = config.hidden_dim
        self.inlet = Linear(spec.state_dim, hidden, key=inlet_key)
        sizes = (hidden + config.embedding_dim, hidden, hidden, spec.action_dim)
        self.body = MLP(sizes, jax.nn.relu, layer_norm=False, key=body_key)

    def __call__(
        self, state: Float[Array, " state"], zs: Float[Array, " feature"]
    ) -> Float[Array, " action"]:
        """The action in this state."""
        projected = average_l1_norm(self.inlet(state))
        return jnp.tanh(self.body(jnp.concatenate([projected, zs])))


class Critic(eqx.Module):
    """Q from state, action and both embeddings."""

    inlet: Linear
    body: MLP

    def __init__(self, spec: EnvSpec, config: TD7Config, *, key: PRNGKeyArray):
        inlet_key, body_key = jax.random.split(key)
        hidden = config.hidden_dim
        self.inlet = Linear(spec.state_dim + spec.action_dim, hidden, key=inlet_key)
        sizes = (hidden + 2 * config.embedding_dim, hidden, hidden, 1)
        self.body = MLP(sizes, elu, layer_norm=False, key=body_key)

    def __call__(
        self,
        state: Float[Array, " state"],
        action: Float[Array, " action"],
        zsa: Float[Array, " feature"],
        zs: Float[Array, " feature"],
    ) -> Float[Array, ""]:
        """The value of one action in one state."""
        projected = average_l1_norm(self.inlet(jnp.concatenate([state, action])))
        return self.body(jnp.concatenate([projected, zsa, zs]))[0]


class Pair(eqx.Module):
    """An actor and the encoder it reads: a policy that can be kept."""

    actor: Parameters
    encoder: Parameters


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


class Trial(eqx.Module):
    """The assessment of the behaviour policy, episode by episode."""

    best: Float[Array, ""]
    """The smallest return of the policy that is kept, over its assessment."""
    smallest: Float[Array, ""]
    """The smallest return of the policy on trial so far."""
    episodes: Int[Array, ""]
    late: Array
    """Whether the time has come to ask for many episodes."""

    @classmethod
    def start(cls) -> "Trial":
        """Nothing kept, nothing tried."""
        zero = jnp.zeros((), jnp.int32)
        return cls(jnp.asarray(-1e8), jnp.asarray(1e8), zero, jnp.zeros((), bool))


class KeptPolicy(AbstractPolicy):
    """The actor of a kept pair on its encoder's embedding."""

    pair: Pair
    actor_layout: Layout[Actor] = eqx.field(static=True)
    encoder_layout: Layout[Encoder] = eqx.field(static=True)

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " action"]:
        """The action in this state."""
        encoder = self.encoder_layout.unpack(self.pair.encoder)
        return self.actor_layout.unpack(self.pair.actor)(state, encoder.zs(state))


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

    def empty_replay(self, capacity: int, row_dim: int) -> PrioritizedReplay:
        """A replay whose largest priority is renewed at every hard copy (App. TD7)."""
        return PrioritizedReplay.empty(capacity, row_dim, self.config.target_updates)

    def end_episode(self, episode_return: Float[Array, ""], updates: Int[Array, ""]) -> "TD7":
        """Judge the behaviour policy by one more episode; keep it, try on, or drop it.

        A policy whose smallest return falls below the kept one's is dropped at once. One that has
        held out for all its episodes is kept. Either way the next policy on trial is the newest
        (policy checkpointing, App. TD7).
        """
        # The official code trains in bursts between episodes; here updates run beside them, and
        # the policy that collects data still changes only in between (docs/methods.md).
        trial = self.trial
        started = updates > 0
        late = updates >= self.config.late_updates
        best = jnp.where(late & ~trial.late, self.config.late_relaxation * trial.best, trial.best)
        wanted = jnp.where(late, self.config.assessed_episodes, 1)
        smallest = jnp.minimum(trial.smallest, episode_return)
        episodes = trial.episodes + 1
        dropped = smallest < best
        kept = ~dropped & (episodes >= wanted)
        over = dropped | kept
        fresh = Trial.start()
        judged = Trial(
            best=jnp.where(kept, smallest, best),
            smallest=jnp.where(over, fresh.smallest, smallest),
            episodes=jnp.where(over, fresh.episodes, episodes),
            late=late,
        )
        newest = Pair(self.actor.parameters, self.fixed_encoder)
        after = replace(
            self,
            behaviour=chosen(over, newest, self.behaviour),
            checkpoint=chosen(kept, self.behaviour, self.checkpoint),
            trial=judged,
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


def twin_q(
    critics: Critic,
    states: Float[Array, "batch state"],
    actions: Float[Array, "batch action"],
    zsa: Float[Array, "batch feature"],
    zs: Float[Array, "batch feature"],
) -> Float[Array, "2 batch"]:
    """Both critics at every state and action."""
    return jax.vmap(lambda critic: jax.vmap(critic)(states, actions, zsa, zs))(critics)


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
