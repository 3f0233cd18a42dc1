"""What the deterministic actors share: the policy, and noise on its actions (TD3)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.agents.base import AbstractAgent, AbstractPolicy
from fastr.core import EnvSpec
from fastr.nn.activations import elu
from fastr.nn.networks import MLP
from fastr.nn.optim import Layout, Parameters, Trainable


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


def actor_network(spec: EnvSpec, hidden_dim: int, *, key: PRNGKeyArray) -> MLP:
    """Three hidden layers with LayerNorm and ELU (App. FaStR; the public code has ReLU)."""
    return MLP((spec.state_dim, *[hidden_dim] * 3, spec.action_dim), elu, key=key)


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
