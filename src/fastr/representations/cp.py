"""FaStR: the transition kernel as a three-way CP tensor, one encoder per mode (Sec. Method)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.representations.factored import Factored, Factors
from fastr.representations.ranking import RankingConfig, Score, against
from fastr.spec import EnvSpec
from fastr.types import Metrics, Transition


@dataclass(frozen=True)
class CPConfig(RankingConfig):
    """FaStR's representation: psi(s, a) = phi_s(s) * phi_a(a), Eq. (cp)."""

    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "CP":
        """Fresh encoders for this environment."""
        return CP(*Factors.init(spec, self, self.feature_dim, key))


class CP(Factored):
    """State, action and next-state factors, joined by a Hadamard product, Eq. (cp)."""

    def combine(
        self, context: Float[Array, " feature"], action: Float[Array, " action"]
    ) -> Float[Array, " feature"]:
        """psi(s, a) = phi_s(s) * phi_a(a), in the form of the score."""
        return self.contrast.anchor(context * self.action_factor(action))

    def loss(self, batch: Transition, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """Eq. (nce) for the trilinear score, plus reward regression, Eq. (reward)."""
        state_factors = jax.vmap(self.context)(batch.state)
        action_factors = jax.vmap(self.action_factor)(batch.action)
        features = jax.vmap(self.contrast.anchor)(state_factors * action_factors)
        score = self.score(state_factors, action_factors)
        loss, metrics = self.contrast.loss(score, features, batch, key)
        # psi has a scale gauge per coordinate that no loss pins: watch the factors' norms.
        norms = {
            "state_factor_norm": jnp.mean(jnp.linalg.norm(state_factors, axis=-1)),
            "action_factor_norm": jnp.mean(jnp.linalg.norm(action_factors, axis=-1)),
        }
        return loss, metrics | norms

    def score(
        self,
        state_factors: Float[Array, "batch feature"],
        action_factors: Float[Array, "batch feature"],
    ) -> Score:
        """(phi_s * phi_a)^T m, Eq. (cp)."""
        return against(jax.vmap(self.contrast.anchor)(state_factors * action_factors))
