"""Your own agent: REDQ's ensemble of critics (arXiv 2101.05982) in the place of TD3's twins.

PYTHONPATH=examples fastr --import redq train walker-walk --method redq --preset laptop

An agent from scratch implements `fastr.agents.base.AbstractAgent`; `fastr.agents.td3` is one.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

import fastr
from fastr.agents.actor_critic import actor_network, bootstrapped, plain_critics, plain_q
from fastr.agents.td3 import TD3, TD3Config
from fastr.core import EnvSpec, require
from fastr.nn.optim import Adam, Trainable
from fastr.transition import Transition


@dataclass(frozen=True)
class REDQConfig(TD3Config):
    """TD3's settings and two more; each one is an option, as in `--ensemble 5`."""

    ensemble: int = 10
    """Critics."""
    subset: int = 2
    """Critics whose minimum is the target, drawn anew for each update."""

    def __post_init__(self):
        super().__post_init__()
        require(self, "ensemble", low=1)
        require(self, "subset", low=1, high=self.ensemble)

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "REDQ":
        """A fresh agent for this environment."""
        critic_key, actor_key = jax.random.split(key)
        hidden = [self.hidden_dim] * 3
        critics = plain_critics(spec, hidden, count=self.ensemble, key=critic_key)
        actor = actor_network(spec, hidden, key=actor_key)
        learned = Trainable.of(critics, Adam(self.critic_learning_rate))
        acting = Trainable.of(actor, Adam(self.actor_learning_rate))
        return REDQ(learned, acting, learned.parameters, acting.parameters, self)

    def laptop(self) -> "REDQConfig":
        """Half the critics, each as small as TD3's."""
        return replace(super().laptop(), ensemble=self.ensemble // 2)


class REDQ(TD3):
    """The update, exploration and export are TD3's; only the target differs."""

    config: REDQConfig = eqx.field(static=True)

    def td_target(self, batch: Transition, key: PRNGKeyArray) -> Float[Array, " batch"]:
        """r + discount * the minimum of a random subset of the critics, REDQ Eq. (1)."""
        noise_key, subset_key = jax.random.split(key)
        actions = self.smoothed_actions(self.target_actor, batch.next_state, noise_key)
        critics = self.critics.layout.unpack(self.target_critics)
        values = plain_q(critics, batch.next_state, actions)
        chosen = jax.random.permutation(subset_key, values)[: self.config.subset]
        return bootstrapped(batch, jnp.min(chosen, axis=0), self.config.discount)


fastr.register("redq", REDQConfig())
