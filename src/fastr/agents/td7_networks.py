"""TD7's networks, the policies it keeps, and the trial of the next one (App. TD7)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fastr.agents.base import AbstractPolicy
from fastr.core import EnvSpec
from fastr.nn.activations import average_l1_norm, elu
from fastr.nn.networks import MLP, Linear
from fastr.nn.optim import Layout, Parameters


class Encoder(eqx.Module):
    """zs(s) with AvgL1Norm, and zsa(zs, a)."""

    state: MLP
    pair: MLP

    def __init__(self, spec: EnvSpec, hidden: int, embedding: int, *, key: PRNGKeyArray):
        state_key, pair_key = jax.random.split(key)
        after, pair = (hidden, hidden, embedding), embedding + spec.action_dim
        self.state = MLP((spec.state_dim, *after), elu, layer_norm=False, key=state_key)
        self.pair = MLP((pair, *after), elu, layer_norm=False, key=pair_key)

    def zs(self, state: Float[Array, " state"]) -> Float[Array, " feature"]:
        """The embedding of a state."""
        return average_l1_norm(self.state(state))

    def zsa(
        self, zs: Float[Array, " feature"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """The embedding of an action in an embedded state: the prediction of the next zs."""
        return self.pair(jnp.concatenate([zs, action]))

    def feature(
        self, state: Float[Array, " state"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """zsa(zs(s), a)."""
        return self.zsa(self.zs(state), action)


class Actor(eqx.Module):
    """tanh of a network on the state and its embedding."""

    inlet: Linear
    body: MLP

    def __init__(self, spec: EnvSpec, hidden: int, embedding: int, *, key: PRNGKeyArray):
        inlet_key, body_key = jax.random.split(key)
        self.inlet = Linear(spec.state_dim, hidden, key=inlet_key)
        sizes = (hidden + embedding, hidden, hidden, spec.action_dim)
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

    def __init__(self, spec: EnvSpec, hidden: int, embedding: int, *, key: PRNGKeyArray):
        inlet_key, body_key = jax.random.split(key)
        self.inlet = Linear(spec.state_dim + spec.action_dim, hidden, key=inlet_key)
        sizes = (hidden + 2 * embedding, hidden, hidden, 1)
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


def twin_q(
    critics: Critic,
    states: Float[Array, "batch state"],
    actions: Float[Array, "batch action"],
    zsa: Float[Array, "batch feature"],
    zs: Float[Array, "batch feature"],
) -> Float[Array, "2 batch"]:
    """Both critics at every state and action."""
    return jax.vmap(lambda critic: jax.vmap(critic)(states, actions, zsa, zs))(critics)


class Pair(eqx.Module):
    """An actor and the encoder it reads: a policy that can be kept."""

    actor: Parameters
    encoder: Parameters


class KeptPolicy(AbstractPolicy):
    """The actor of a kept pair on its encoder's embedding."""

    pair: Pair
    actor_layout: Layout[Actor] = eqx.field(static=True)
    encoder_layout: Layout[Encoder] = eqx.field(static=True)

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " action"]:
        """The action in this state."""
        encoder = self.encoder_layout.unpack(self.pair.encoder)
        return self.actor_layout.unpack(self.pair.actor)(state, encoder.zs(state))

    def write(self, program: Any, value: str, action_dim: int) -> str:  # noqa: ARG002
        """The actor's layers on the state and its embedding (App. TD7)."""
        encoder = self.encoder_layout.unpack(self.pair.encoder)
        actor = self.actor_layout.unpack(self.pair.actor)
        embedded = program.mlp(encoder.state, value, "encoder")
        embedded = program.add("average_l1", (embedded,), "", {})
        projected = program.linear(actor.inlet, value, "actor.inlet")
        projected = program.add("average_l1", (projected,), "", {})
        both = program.add("concatenate", (projected, embedded), "", {})
        return program.mlp(actor.body, both, "actor.body")


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
        # With their type: an inferred one changes when the first episode ends, and the update would
        # be compiled a second time.
        best, smallest = (jnp.asarray(value, jnp.float32) for value in (-1e8, 1e8))
        return cls(best, smallest, jnp.zeros((), jnp.int32), jnp.zeros((), bool))

    def judged(
        self,
        episode_return: Float[Array, ""],
        *,
        late: Bool[Array, ""],
        late_episodes: int,
        relaxation: float,
    ) -> "Verdict":
        """After one more episode.

        A policy is dropped when a return falls below the kept one's. It is kept after one episode,
        late in training after `late_episodes`. At that switch the kept one's return is multiplied
        by `relaxation`, once.
        """
        best = jnp.where(late & ~self.late, relaxation * self.best, self.best)
        wanted = jnp.where(late, late_episodes, 1)
        smallest = jnp.minimum(self.smallest, episode_return)
        episodes = self.episodes + 1
        dropped = smallest < best
        kept = ~dropped & (episodes >= wanted)
        over = dropped | kept
        fresh = Trial.start()
        trial = Trial(
            best=jnp.where(kept, smallest, best),
            smallest=jnp.where(over, fresh.smallest, smallest),
            episodes=jnp.where(over, fresh.episodes, episodes),
            late=late,
        )
        return Verdict(trial, kept, over)


class Verdict(NamedTuple):
    """The outcome of one episode of a trial."""

    trial: Trial
    kept: Bool[Array, ""]
    over: Bool[Array, ""]
    """Kept or dropped: the next policy's turn."""
