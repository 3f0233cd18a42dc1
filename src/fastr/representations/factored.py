"""Shared by all representations with one encoder for states and one for actions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from fastr.core import EnvSpec
from fastr.representations.ranking import (
    Contrast,
    Contrastive,
    Encoder,
    FactorEncoder,
    RankingConfig,
)
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
