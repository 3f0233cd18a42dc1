"""A full core: phi_s(s)^T M(s') phi_a(a) (App. Ablation, condition c)."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.core import EnvSpec
from fastr.nn.networks import BilinearHead, Head
from fastr.representations.factored import Factored, Factors, block_products
from fastr.representations.ranking import RankingConfig, Scored
from fastr.representations.scores import InnerProduct
from fastr.transition import Transition


@dataclass(frozen=True)
class TuckerConfig(RankingConfig):
    """phi_s(s)^T M(s') phi_a(a) with a full core, critics bilinear plus a Fourier residual."""

    feature_dim: int = 64
    """Coordinates of each factor, d_s = d_a; the core has their square (App. Ablation)."""

    def quick(self) -> "TuckerConfig":
        """A quarter of each factor."""
        sizes = self.quick_sizes | {"feature_dim": self.feature_dim // 4}
        return replace(self, hidden_dim=self.hidden_dim // 4, **sizes)

    @property
    def candidate_dim(self) -> int:
        """The entries of the core."""
        return self.feature_dim**2

    def head(self, key: PRNGKeyArray) -> Head:
        """A fresh head on both factors: the Hadamard critic does not fit a full core."""
        return BilinearHead(self.feature_dim, self.fourier_dim, self.head_dim, key=key)

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Tucker":
        """Fresh encoders for this environment."""
        return Tucker(*Factors.init(spec, self, self.feature_dim, key))


class Tucker(Factored):
    """All products of state and action coordinates, weighted by the next state."""

    def context(self, state: Float[Array, " state"]) -> Float[Array, " factor"]:
        """phi_s(s), in the form of the score."""
        return self.contrast.anchor(super().context(state))

    def combine(
        self, context: Float[Array, " factor"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """[phi_s(s); phi_a(a)]: normalising each normalises all their products."""
        factor = self.contrast.anchor(self.action_factor(action))
        return jnp.concatenate([context, factor])

    def scored(self, batch: Transition) -> Scored:
        """The batch as anchors of a full core: all products of coordinates."""
        features = jax.vmap(self.feature)(batch.state, batch.action)
        first, second = jnp.split(features, 2, axis=1)
        anchors = jax.vmap(lambda x, y: block_products(x, y, x.size))(first, second)
        return Scored(InnerProduct(anchors), features, {})
