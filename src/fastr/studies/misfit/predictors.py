"""The two predictors and their losses: rank next states, and predict their moments.

App. Empirical CP Misfit Diagnostic: the ranking loss of Eq. (nce), plus 0.1 times the squared error
of a linear head on the feature that predicts standardised next-state features.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from fastr.core import EnvSpec
from fastr.nn.networks import Linear
from fastr.nn.optim import Metrics
from fastr.representations.interactions import CP
from fastr.representations.joint import Joint
from fastr.representations.scores import InnerProduct, perturb, ranking_loss, ranking_losses
from fastr.studies.misfit.config import Kind, PredictorConfig

SAMPLE_ROWS = 65_536
"""At most this many training rows are used for statistics."""
CONSTANT = 1e-6
"""A coordinate whose standard deviation is below this share of its mean counts as constant."""
NOISE = 1e-9
"""Likewise below this share of the largest standard deviation: simulators round."""


class Scales(eqx.Module):
    """Map a dataset's packed rows to network inputs and targets; taken from training rows alone."""

    shift: Float[Array, " packed"]
    scale: Float[Array, " packed"]
    """Reciprocal standard deviations of states, reciprocal half widths of actions."""
    frequencies: Float[Array, "state fourier"]
    phases: Float[Array, " fourier"]
    target_mean: Float[Array, " target"]
    target_scale: Float[Array, " target"]
    target_weight: Float[Array, " target"]
    """Weights in the moment loss: half for the state, half for its waves, 0 for constants."""

    def batch(self, rows: Float[Array, "batch packed"], spec: EnvSpec) -> "Batch":
        """Normalised inputs and standardised targets of packed rows."""
        ends = (spec.state_dim, spec.state_dim + spec.action_dim)
        normalised = (rows - self.shift[None]) * self.scale[None]
        state, action, next_state = jnp.split(normalised, ends, axis=1)
        targets = _targets(next_state, self.frequencies, self.phases)
        standardised = (targets - self.target_mean[None]) * self.target_scale[None]
        return Batch(state, action, next_state, standardised, self.target_weight)


class Batch(eqx.Module):
    """Normalised transitions, and the targets of the moment head."""

    state: Float[Array, "batch state"]
    action: Float[Array, "batch action"]
    next_state: Float[Array, "batch state"]
    targets: Float[Array, "batch target"]
    weights: Float[Array, " target"]


def _targets(
    next_state: Float[Array, "batch state"],
    frequencies: Float[Array, "state fourier"],
    phases: Float[Array, " fourier"],
) -> Float[Array, "batch target"]:
    """The normalised next state, then sqrt(2) cos(w^T s' + b)."""
    waves = math.sqrt(2.0) * jnp.cos(next_state @ frequencies + phases[None])
    return jnp.concatenate([next_state, waves], axis=1)


def scales_of(
    rows: Float[np.ndarray, "rows packed"],
    bounds: tuple[np.ndarray, np.ndarray],
    spec: EnvSpec,
    fourier: int,
    generator: np.random.Generator,
) -> Scales:
    """Statistics of a sample of training rows; constant coordinates are shifted, not scaled."""
    states = rows[:, : spec.state_dim].astype(np.float64)
    mean, scale = states.mean(axis=0), _reciprocal(states.std(axis=0), states.mean(axis=0))
    low, high = (bound.astype(np.float64) for bound in bounds)
    centre, half = (low + high) / 2, _reciprocal((high - low) / 2, np.zeros_like(low))
    # Of unit length on average: the kernel's width is the distance between two states.
    frequencies = generator.normal(size=(spec.state_dim, fourier)) / math.sqrt(spec.state_dim)
    phases = generator.uniform(0.0, 2.0 * np.pi, size=fourier)
    next_state = (rows[:, -spec.state_dim :] - mean) * scale
    waves = math.sqrt(2.0) * np.cos(next_state @ frequencies + phases)
    targets = np.concatenate([next_state, waves], axis=1)
    target_mean, spread = targets.mean(axis=0), targets.std(axis=0)
    arrays = (
        np.concatenate([mean, centre, mean]),
        np.concatenate([scale, half, scale]),
        frequencies,
        phases,
        target_mean,
        _reciprocal(spread, target_mean),
        _moment_weights(~_constant(spread, target_mean), spec.state_dim),
    )
    return Scales(*(jnp.asarray(array, jnp.float32) for array in arrays))


def _reciprocal(spread: np.ndarray, size: np.ndarray) -> np.ndarray:
    return 1.0 / np.where(_constant(spread, size), 1.0, spread)


def _constant(spread: np.ndarray, size: np.ndarray) -> np.ndarray:
    return spread <= np.maximum(CONSTANT * np.abs(size), NOISE * spread.max(initial=0.0))


def _moment_weights(varies: np.ndarray, state_dim: int) -> np.ndarray:
    # A constant needs no prediction: with a weight it would pass for variance explained.
    halves = [half / max(1, half.sum()) for half in np.split(varies, [state_dim])]
    return np.concatenate(halves) / 2.0


class Predictor(eqx.Module):
    """A representation and a linear head that predicts moments of the next state."""

    representation: CP | Joint
    moment_head: Linear

    @classmethod
    def init(
        cls, config: PredictorConfig, kind: Kind, spec: EnvSpec, key: PRNGKeyArray
    ) -> "Predictor":
        """Fresh networks without the reward head, which is not trained here."""
        representation_key, head_key = jax.random.split(key)
        representation = config.representation(kind).init(spec, representation_key)
        representation = eqx.tree_at(lambda net: net.contrast.reward_head, representation, None)
        targets = spec.state_dim + config.fourier_targets
        return cls(representation, Linear(config.feature_dim, targets, key=head_key))

    def features(self, batch: Batch) -> Float[Array, "batch feature"]:
        """The spectral feature of each transition."""
        return jax.vmap(self.representation.feature)(batch.state, batch.action)

    def logits(
        self, features: Float[Array, "batch feature"], batch: Batch, key: PRNGKeyArray
    ) -> Float[Array, "batch level batch"]:
        """Each transition's score with every perturbed next state of the batch, Eq. (nce)."""
        contrast = self.representation.contrast
        noise = jax.random.normal(key, (contrast.config.noise_levels, *batch.next_state.shape))
        return contrast.logits(InnerProduct(features), perturb(batch.next_state, noise))

    def moment_losses(
        self, features: Float[Array, "batch feature"], batch: Batch
    ) -> Float[Array, " batch"]:
        """Weighted squared errors of the predicted moments."""
        # The head reads features of unit mean square, as "layernorm" gives them, not unit length.
        if self.representation.contrast.config.score == "l2":
            features = features * math.sqrt(features.shape[1])
        errors = jnp.square(jax.vmap(self.moment_head)(features) - batch.targets)
        return jnp.sum(errors * batch.weights[None], axis=1)

    def loss(
        self, batch: Batch, moment_weight: float, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], Metrics]:
        """The training objective (App. Empirical CP Misfit Diagnostic)."""
        features = self.features(batch)
        nce = ranking_loss(self.logits(features, batch, key))
        moment = jnp.mean(self.moment_losses(features, batch))
        return nce + moment_weight * moment, {"nce": nce, "moment": moment}

    def held_out(self, batch: Batch, key: PRNGKeyArray) -> Float[Array, "2 batch"]:
        """Each transition's ranking loss, averaged over levels, and its moment loss."""
        features = self.features(batch)
        nce = jnp.mean(ranking_losses(self.logits(features, batch, key)), axis=1)
        return jnp.stack([nce, self.moment_losses(features, batch)])
