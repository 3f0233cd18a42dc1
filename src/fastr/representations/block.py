"""A block-diagonal core between CP's diagonal and Tucker's full one."""

from dataclasses import dataclass

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from fastr.checks import require
from fastr.errors import UserError
from fastr.representations.base import AbstractRepresentation
from fastr.representations.ranking import (
    Contrast,
    FactorEncoder,
    RankingConfig,
    against,
    block_products,
)
from fastr.spec import EnvSpec
from fastr.types import Metrics, Transition


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

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Block":
        """Fresh encoders for this environment."""
        state_key, action_key, contrast_key = jax.random.split(key, 3)
        return Block(
            FactorEncoder(spec.state_dim, self.factor_dim, self, key=state_key),
            FactorEncoder(spec.action_dim, self.factor_dim, self, key=action_key),
            Contrast(spec, self, key=contrast_key),
            self.block_dim,
        )


class Block(AbstractRepresentation):
    """Products of coordinates within blocks: the feature that critics read too."""

    state_encoder: FactorEncoder
    action_encoder: FactorEncoder
    contrast: Contrast
    block_dim: int = eqx.field(static=True)

    def context(self, state: Float[Array, " state"]) -> Float[Array, " factor"]:
        """phi_s(s)."""
        return self.contrast.encode(self.state_encoder, state)

    def combine(
        self, context: Float[Array, " factor"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """All products within blocks, in the form of the score."""
        factor = self.contrast.encode(self.action_encoder, action)
        return self.contrast.anchor(block_products(context, factor, self.block_dim))

    def loss(self, batch: Transition, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """Eq. (nce) with a block-diagonal core, plus reward regression."""
        features = jax.vmap(self.feature)(batch.state, batch.action)
        return self.contrast.loss(against(features), features, batch, key)

    def networks(self) -> dict[str, PyTree]:
        """Every parameter once, under the name of the network it belongs to."""
        own = {"state_encoder": self.state_encoder, "action_encoder": self.action_encoder}
        return own | self.contrast.networks()
