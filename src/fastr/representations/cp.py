"""FaStR: the transition kernel as a three-way CP tensor, one encoder per mode (Sec. Method)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from fastr.representations.base import AbstractRepresentation
from fastr.representations.ranking import Contrast, FactorEncoder, RankingConfig, Score, against
from fastr.spec import EnvSpec
from fastr.types import Metrics, Transition


@dataclass(frozen=True)
class CPConfig(RankingConfig):
    """FaStR's representation: psi(s, a) = phi_s(s) * phi_a(a), Eq. (cp)."""

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "CP":
        """Fresh encoders for this environment."""
        state_key, action_key, contrast_key = jax.random.split(key, 3)
        return CP(
            FactorEncoder(spec.state_dim, self.feature_dim, self, key=state_key),
            FactorEncoder(spec.action_dim, self.feature_dim, self, key=action_key),
            Contrast(spec, self, key=contrast_key),
        )


class CP(AbstractRepresentation):
    """State, action and next-state factors, joined by a Hadamard product, Eq. (cp)."""

    state_encoder: FactorEncoder
    action_encoder: FactorEncoder
    contrast: Contrast

    def context(self, state: Float[Array, " state"]) -> Float[Array, " feature"]:
        """phi_s(s)."""
        return self.contrast.encode(self.state_encoder, state)

    def action_factor(self, action: Float[Array, " action"]) -> Float[Array, " feature"]:
        """phi_a(a)."""
        return self.contrast.encode(self.action_encoder, action)

    def combine(
        self, context: Float[Array, " feature"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """psi(s, a) = phi_s(s) * phi_a(a), in the form of the score."""
        return self.contrast.anchor(context * self.action_factor(action))

    def loss(self, batch: Transition, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """Eq. (nce) for the trilinear score, plus reward regression, Eq. (reward)."""
        state_factors = jax.vmap(self.context)(batch.state)
        action_factors = jax.vmap(self.action_factor)(batch.action)
        features = jax.vmap(self.contrast.anchor)(state_factors * action_factors)
        score = self.score(state_factors, action_factors)
        loss, metrics = self.contrast.loss(score, features, batch, key)
        # psi has a scale gauge per coordinate that no loss pins: watch the factors' norms.
        norms = {
            "state_factor_norm": jnp.mean(jnp.linalg.norm(state_factors, axis=-1)),
            "action_factor_norm": jnp.mean(jnp.linalg.norm(action_factors, axis=-1)),
        }
        return loss, metrics | norms

    def score(
        self,
        state_factors: Float[Array, "batch feature"],
        action_factors: Float[Array, "batch feature"],
    ) -> Score:
        """(phi_s * phi_a)^T m, Eq. (cp)."""
        return against(jax.vmap(self.contrast.anchor)(state_factors * action_factors))

    def networks(self) -> dict[str, PyTree]:
        """Every parameter once, under the name of the network it belongs to."""
        own = {"state_encoder": self.state_encoder, "action_encoder": self.action_encoder}
        return own | self.contrast.networks()
