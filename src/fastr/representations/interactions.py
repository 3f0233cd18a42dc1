"""How the factors of state and action interact: FaStR's CP form and its ablations.

All have one encoder for states and one for actions (Sec. Method, App. Ablation). From the
fewest products to the most: `CP`, `Block`, `LowRank`, `Tucker`; `Concat` has none.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from fastr.core import EnvSpec, UserError, require, require_even
from fastr.nn.activations import inverse_norm
from fastr.nn.networks import BilinearHead, Head, Linear
from fastr.nn.precision import widen
from fastr.representations.ranking import (
    Contrast,
    Contrastive,
    Encoder,
    FactorEncoder,
    RankingConfig,
    Scored,
)
from fastr.representations.scores import InnerProduct, Score, contrasted
from fastr.transition import Transition


class Factors(NamedTuple):
    """Fresh encoders of the three modes: next state, state and action."""

    contrast: Contrast
    state_encoder: FactorEncoder
    action_encoder: FactorEncoder

    @classmethod
    def init(cls, spec: EnvSpec, config: RankingConfig, width: int, key: PRNGKeyArray) -> "Factors":
        """For this environment, with factors of this width."""
        state_key, action_key, contrast_key = jax.random.split(key, 3)
        return cls(
            Contrast(spec, config, key=contrast_key),
            FactorEncoder(spec.state_dim, width, config, key=state_key),
            FactorEncoder(spec.action_dim, width, config, key=action_key),
        )


class Factored(Contrastive):
    """phi_s and phi_a; subclasses define how they are combined."""

    state_encoder: Encoder
    action_encoder: Encoder

    def context(self, state: Float[Array, " state"]) -> Float[Array, " factor"]:
        """phi_s(s)."""
        return self.contrast.encode(self.state_encoder, state)

    def action_factor(self, action: Float[Array, " action"]) -> Float[Array, " factor"]:
        """phi_a(a)."""
        return self.contrast.encode(self.action_encoder, action)

    def components(self, batch: Transition) -> dict[str, Float[Array, "batch _"]]:
        """The feature and all three factors."""
        return super().components(batch) | {
            "state factor": jax.vmap(self.context)(batch.state),
            "action factor": jax.vmap(self.action_factor)(batch.action),
        }

    def networks(self) -> dict[str, PyTree]:
        """Every parameter once, under the name of the network it belongs to."""
        own = {"state_encoder": self.state_encoder, "action_encoder": self.action_encoder}
        return own | self.contrast.networks()


def block_products(
    first: Float[Array, " factor"], second: Float[Array, " factor"], size: int
) -> Float[Array, " product"]:
    """x_i y_j for all i and j of the same block of this size, block by block, row by row."""
    blocks = first.reshape(-1, size, 1) * second.reshape(-1, 1, size)
    return jnp.ravel(blocks)


@dataclass(frozen=True)
class CPConfig(RankingConfig):
    """FaStR's representation: psi(s, a) = phi_s(s) * phi_a(a), Eq. (cp)."""

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "CP":
        """Fresh encoders for this environment."""
        return CP(*Factors.init(spec, self, self.feature_dim, key))


class CP(Factored):
    """State, action and next-state factors, joined by a Hadamard product, Eq. (cp)."""

    product_features: ClassVar[bool] = True

    def combine(
        self, context: Float[Array, " feature"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """psi(s, a) = phi_s(s) * phi_a(a), in the form of the score."""
        return self.contrast.anchor(context * self.action_factor(action))

    def scored(self, batch: Transition) -> Scored:
        """The batch as anchors of the trilinear score, Eq. (cp)."""
        state_factors = jax.vmap(self.context)(batch.state)
        action_factors = jax.vmap(self.action_factor)(batch.action)
        # psi has a scale gauge per coordinate that no loss pins: watch the factors' norms.
        norms = {
            "state_factor_norm": jnp.mean(jnp.linalg.norm(state_factors, axis=-1)),
            "action_factor_norm": jnp.mean(jnp.linalg.norm(action_factors, axis=-1)),
        }
        # The barrier computes the norms here: fused into the optimiser's pass they slow it down.
        state_factors, action_factors, norms = jax.lax.optimization_barrier(
            (state_factors, action_factors, norms)
        )
        features = jax.vmap(self.contrast.anchor)(state_factors * action_factors)
        return Scored(self.score(state_factors, action_factors), features, norms)

    def score(
        self,
        state_factors: Float[Array, "batch feature"],
        action_factors: Float[Array, "batch feature"],
    ) -> Score:
        """(phi_s * phi_a)^T m, Eq. (cp)."""
        return InnerProduct(jax.vmap(self.contrast.anchor)(state_factors * action_factors))


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


@dataclass(frozen=True)
class TuckerConfig(RankingConfig):
    """phi_s(s)^T M(s') phi_a(a) with a full core, critics bilinear plus a Fourier residual."""

    feature_dim: int = 64
    """Coordinates of each factor, d_s = d_a; the core has their square (App. Ablation)."""

    def laptop(self) -> "TuckerConfig":
        """A quarter of each factor."""
        sizes = self.laptop_sizes | {"feature_dim": self.feature_dim // 4}
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


@dataclass(frozen=True)
class BlockConfig(RankingConfig):
    """phi_s(s)^T M(s') phi_a(a) with a block-diagonal core: between CP and Tucker."""

    factor_dim: int = 64
    """Coordinates of each factor."""
    block_dim: int = 8
    """Coordinates in each block: 1 is CP, factor-dim is a full core."""

    def __post_init__(self):
        super().__post_init__()
        require(self, "factor_dim", "block_dim", low=1)
        if self.factor_dim % self.block_dim:
            raise UserError(
                f"--block-dim is {self.block_dim}; it must divide --factor-dim {self.factor_dim}."
            )
        if self.feature_dim != self.factor_dim * self.block_dim:
            raise UserError(
                f"--feature-dim is {self.feature_dim}; it must be --factor-dim times --block-dim, "
                f"{self.factor_dim * self.block_dim}."
            )

    def laptop(self) -> "BlockConfig":
        """With blocks of the same size, an eighth as many."""
        sizes = self.laptop_sizes | {"feature_dim": self.feature_dim // 8}
        return replace(
            self, factor_dim=self.factor_dim // 8, hidden_dim=self.hidden_dim // 4, **sizes
        )

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Block":
        """Fresh encoders for this environment."""
        return Block(*Factors.init(spec, self, self.factor_dim, key), self.block_dim)


class Block(Factored):
    """Products of coordinates within blocks: the feature that critics read too."""

    product_features: ClassVar[bool] = True

    block_dim: int = eqx.field(static=True)

    def combine(
        self, context: Float[Array, " factor"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """All products within blocks, in the form of the score."""
        products = block_products(context, self.action_factor(action), self.block_dim)
        return self.contrast.anchor(products)


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
