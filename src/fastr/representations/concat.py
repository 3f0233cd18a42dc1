"""Separate encoders joined by a layer instead of a product (App. Ablation, condition b)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from fastr.core import EnvSpec, require_even
from fastr.nn.networks import Linear
from fastr.representations.factored import Factored, Factors
from fastr.representations.ranking import RankingConfig


@dataclass(frozen=True)
class ConcatConfig(RankingConfig):
    """psi(s, a) = mish(W [phi_s(s); phi_a(a)] + b), each factor half as wide as psi."""

    def __post_init__(self):
        super().__post_init__()
        require_even(self, "feature_dim")

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Concat":
        """Fresh encoders for this environment."""
        factors_key, projection_key = jax.random.split(key)
        projection = Linear(self.feature_dim, self.feature_dim, key=projection_key)
        return Concat(*Factors.init(spec, self, self.feature_dim // 2, factors_key), projection)


class Concat(Factored):
    """State and action encoders that meet in one layer; the score is bilinear as CTRL-SR's."""

    projection: Linear

    def combine(
        self, context: Float[Array, " half"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """mish(W [phi_s(s); phi_a(a)] + b), in the form of the score."""
        pair = jnp.concatenate([context, self.action_factor(action)])
        return self.contrast.anchor(self.projection.mish(pair))

    def networks(self) -> dict[str, PyTree]:
        """Every parameter once, under the name of the network it belongs to."""
        return super().networks() | {"projection": self.projection}
