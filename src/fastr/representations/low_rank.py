"""CP plus a core of low rank: the first step from a diagonal to a full core."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.core import EnvSpec, require
from fastr.nn.activations import inverse_norm
from fastr.nn.precision import widen
from fastr.representations.cp import CP, CPConfig
from fastr.representations.scores import Score, contrasted


@dataclass(frozen=True)
class LowRankConfig(CPConfig):
    """phi_s^T (diag(m(s')) + U(s') V(s')^T) phi_a: CP plus cross products of a given rank."""

    rank: int = 4
    """Columns r of U and V: 0 is CP, growing r approaches a full core."""

    def __post_init__(self):
        super().__post_init__()
        require(self, "rank", low=0)

    @property
    def candidate_dim(self) -> int:
        """The diagonal, and two thin matrices."""
        return self.feature_dim * (1 + 2 * self.rank)

    @property
    def unseen_dim(self) -> int:
        """The diagonal: a constant in U or V takes part in products."""
        return self.feature_dim

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "LowRank":
        """Fresh encoders for this environment."""
        plain = super().init(spec, key)
        return LowRank(plain.contrast, plain.state_encoder, plain.action_encoder)


class LowRank(CP):
    """FaStR's factors and feature under a score with cross products."""

    def score(
        self,
        state_factors: Float[Array, "batch feature"],
        action_factors: Float[Array, "batch feature"],
    ) -> Score:
        """The diagonal's inner product, and one product of two inner products per rank."""
        size = self.contrast.config.feature_dim
        if self.contrast.config.candidate_dim == size:
            return super().score(state_factors, action_factors)
        features = jax.vmap(self.contrast.anchor)(state_factors * action_factors)
        if self.contrast.config.score == "l2":
            # One scale for the whole score: that of the diagonal, as in CP.
            scale = jax.vmap(inverse_norm)(state_factors * action_factors)
            state_factors = state_factors * scale[:, None]

        def scores(
            candidates: Float[Array, "level candidate dim"],
        ) -> Float[Array, "anchor level candidate"]:
            diagonal, *thin = jnp.split(candidates, candidates.shape[-1] // size, axis=-1)
            total = contrasted(features, diagonal)
            rank = len(thin) // 2
            for left, right in zip(thin[:rank], thin[rank:], strict=True):
                total = total + products(state_factors, left) * products(action_factors, right)
            return total

        return scores


def products(
    anchors: Float[Array, "anchor factor"], candidates: Float[Array, "level candidate factor"]
) -> Float[Array, "anchor level candidate"]:
    """Every anchor's inner product with every candidate."""
    return jnp.einsum("af,lcf->alc", anchors, widen(candidates))
