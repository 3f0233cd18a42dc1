"""TD7's networks: the encoder of states and actions, and the actor and critics that read it."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.core import EnvSpec
from fastr.nn.activations import average_l1_norm, elu
from fastr.nn.networks import MLP, Linear


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
