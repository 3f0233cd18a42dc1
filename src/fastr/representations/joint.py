"""CTRL-SR: one encoder of the concatenated state and action (App. CTRL-SR)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from fastr.core import EnvSpec
from fastr.representations.base import Keep
from fastr.representations.ranking import Contrast, Contrastive, FactorEncoder, RankingConfig


@dataclass(frozen=True)
class JointConfig(RankingConfig):
    """CTRL-SR's representation: a monolithic encoder phi([s; a]), Eq. (linear-mdp)."""

    keepable: ClassVar[Keep] = "encoder"

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "Joint":
        """A fresh encoder for this environment."""
        encoder_key, contrast_key = jax.random.split(key)
        inputs = spec.state_dim + spec.action_dim
        return Joint(
            Contrast(spec, self, key=contrast_key),
            FactorEncoder(inputs, self.feature_dim, self, key=encoder_key),
        )


class Joint(Contrastive):
    """A bilinear score phi(s, a)^T mu(s'; beta), Eq. (nce-prelim)."""

    encoder: FactorEncoder

    def context(self, state: Float[Array, " state"]) -> Float[Array, " state"]:
        """The state itself: a joint encoder has no part for the state alone."""
        return state

    def combine(
        self, context: Float[Array, " state"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """phi([s; a]), in the form of the score."""
        pair = jnp.concatenate([context, action])
        return self.contrast.anchor(self.contrast.encode(self.encoder, pair))

    def networks(self) -> dict[str, PyTree]:
        """Every parameter once, under the name of the network it belongs to."""
        return {"joint_encoder": self.encoder} | self.contrast.networks()
