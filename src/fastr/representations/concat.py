"""Separate encoders joined by a layer instead of a product (App. Ablation, condition b)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from fastr.checks import require_even
from fastr.networks import Linear
from fastr.representations.base import AbstractRepresentation
from fastr.representations.ranking import Contrast, FactorEncoder, RankingConfig, against
from fastr.spec import EnvSpec
from fastr.types import Metrics, Transition


@dataclass(frozen=True)
class ConcatConfig(RankingConfig):
    """psi(s, a) = mish(W [phi_s(s); phi_a(a)] + b), each factor half as wide as psi."""

    def __post_init__(self):
        super().__post_init__()
        require_even(self, "feature_dim")

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Concat":
        """Fresh encoders for this environment."""
        state_key, action_key, projection_key, contrast_key = jax.random.split(key, 4)
        half = self.feature_dim // 2
        return Concat(
            FactorEncoder(spec.state_dim, half, self, key=state_key),
            FactorEncoder(spec.action_dim, half, self, key=action_key),
            Linear(self.feature_dim, self.feature_dim, key=projection_key),
            Contrast(spec, self, key=contrast_key),
        )


class Concat(AbstractRepresentation):
    """State and action encoders that meet in one layer; the score is bilinear as CTRL-SR's."""

    state_encoder: FactorEncoder
    action_encoder: FactorEncoder
    projection: Linear
    contrast: Contrast

    def context(self, state: Float[Array, " state"]) -> Float[Array, " half"]:
        """phi_s(s)."""
        return self.contrast.encode(self.state_encoder, state)

    def combine(
        self, context: Float[Array, " half"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """mish(W [phi_s(s); phi_a(a)] + b), in the form of the score."""
        factor = self.contrast.encode(self.action_encoder, action)
        return self.contrast.anchor(self.projection.mish(jnp.concatenate([context, factor])))

    def loss(self, batch: Transition, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """Eq. (nce-prelim) for this feature, plus reward regression."""
        features = jax.vmap(self.feature)(batch.state, batch.action)
        return self.contrast.loss(against(features), features, batch, key)

    def networks(self) -> dict[str, PyTree]:
        """Every parameter once, under the name of the network it belongs to."""
        own = {
            "state_encoder": self.state_encoder,
            "action_encoder": self.action_encoder,
            "projection": self.projection,
        }
        return own | self.contrast.networks()
