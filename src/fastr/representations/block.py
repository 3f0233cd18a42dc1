"""A block-diagonal core between CP's diagonal and Tucker's full one."""

from dataclasses import dataclass, replace
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.core import EnvSpec, UserError, require
from fastr.representations.factored import Factored, Factors, block_products
from fastr.representations.ranking import RankingConfig


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

    def quick(self) -> "BlockConfig":
        """With blocks of the same size, a quarter as many."""
        sizes = self.quick_sizes | {"feature_dim": self.feature_dim // 4}
        return replace(
            self, factor_dim=self.factor_dim // 4, hidden_dim=self.hidden_dim // 4, **sizes
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
