"""Your own representation: each action opens and closes the coordinates of the state factor.

PYTHONPATH=examples fastr --import gated train walker-walk --method gated --preset laptop
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

import fastr
from fastr.agents.spectral import SpectralConfig
from fastr.core import EnvSpec, require
from fastr.representations.interactions import Factored, Factors
from fastr.representations.ranking import RankingConfig, Scored
from fastr.transition import Transition


@dataclass(frozen=True)
class GatedConfig(RankingConfig):
    """psi(s, a) = phi_s(s) * tanh(sharpness * phi_a(a)): FaStR with a bounded action factor."""

    sharpness: float = 1.0
    """Slope of the gate at zero; large, and every gate is open or shut."""

    def __post_init__(self):
        super().__post_init__()
        require(self, "sharpness", low=0)

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Gated":
        """Fresh encoders for this environment."""
        return Gated(*Factors.init(spec, self, self.feature_dim, key), self.sharpness)


class Gated(Factored):
    """State and action encoders that meet in a gate; ranking loss and reward head come along."""

    sharpness: float = eqx.field(static=True)

    def gate(self, action: Float[Array, " action"]) -> Float[Array, " feature"]:
        """How far each coordinate is open, from -1 to 1: unlike FaStR's, it cannot grow."""
        return jnp.tanh(self.sharpness * self.action_factor(action))

    def combine(
        self, context: Float[Array, " feature"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """psi(s, a), in the form of the score; the context is phi_s(s)."""
        return self.contrast.anchor(context * self.gate(action))

    def scored(self, batch: Transition) -> Scored:
        """The batch as the ranking loss wants it, and a metric of our own in every row."""
        openness = jnp.mean(jnp.abs(jax.vmap(self.gate)(batch.action)))
        return super().scored(batch)._replace(metrics={"gate_openness": openness})


fastr.register("gated", SpectralConfig(representation=GatedConfig()))
