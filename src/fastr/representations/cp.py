"""FaStR: the transition kernel as a three-way CP tensor, one encoder per mode (Sec. Method)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.core import EnvSpec
from fastr.representations.factored import Factored, Factors
from fastr.representations.ranking import RankingConfig, Scored
from fastr.representations.scores import InnerProduct, Score
from fastr.transition import Transition


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
        # Here and now: left to the compiler, their sums slow down an optimiser's pass.
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
