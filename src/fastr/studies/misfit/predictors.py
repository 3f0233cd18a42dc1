"""The two predictors and what they are asked: rank next states, and predict their moments.

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
from fastr.data.base import About
from fastr.nn.networks import Linear
from fastr.nn.optim import Metrics
from fastr.representations.cp import CP
from fastr.representations.joint import Joint
from fastr.representations.schedule import perturb
from fastr.representations.scores import InnerProduct, ranking_loss, ranking_losses
from fastr.studies.misfit.config import Kind, PredictorConfig

SAMPLE_ROWS = 65_536
"""Training rows from which all statistics are taken, if there are more."""
CONSTANT = 1e-6
"""A coordinate that varies less than this, relative to its mean, is taken to be constant."""
NOISE = 1e-9
"""So is one that varies less than this, relative to the one that varies most: simulators round."""


class Scales(eqx.Module):
    """How a dataset's packed rows become network inputs and targets; from training rows alone."""

    shift: Float[Array, " packed"]
    scale: Float[Array, " packed"]
    """Reciprocal standard deviations of states, reciprocal half widths of actions."""
    frequencies: Float[Array, "state fourier"]
    phases: Float[Array, " fourier"]
    target_mean: Float[Array, " target"]
    target_scale: Float[Array, " target"]
    target_weight: Float[Array, " target"]
    """Shares in the moment loss: half of it the state's, half its waves', nothing a constant's."""

    def batch(self, rows: Float[Array, "batch packed"], spec: EnvSpec) -> "Batch":
        """Normalised inputs and standardised targets of packed rows."""
        ends = (spec.state_dim, spec.state_dim + spec.action_dim)
        normalised = (rows - self.shift[None]) * self.scale[None]
        state, action, next_state = jnp.split(normalised, ends, axis=1)
        targets = features_of(next_state, self.frequencies, self.phases)
        standardised = (targets - self.target_mean[None]) * self.target_scale[None]
        return Batch(state, action, next_state, standardised, self.target_weight)


class Batch(eqx.Module):
    """Normalised transitions and what the moment head should say of them."""

    state: Float[Array, "batch state"]
    action: Float[Array, "batch action"]
    next_state: Float[Array, "batch state"]
    targets: Float[Array, "batch target"]
    weights: Float[Array, " target"]


def features_of(
    next_state: Float[Array, "batch state"],
    frequencies: Float[Array, "state fourier"],
    phases: Float[Array, " fourier"],
) -> Float[Array, "batch target"]:
    """The normalised next state, then cosines of random projections of it."""
    waves = math.sqrt(2.0) * jnp.cos(next_state @ frequencies + phases[None])
    return jnp.concatenate([next_state, waves], axis=1)


def scales_of(
    rows: Float[np.ndarray, "rows packed"],
    bounds: tuple[np.ndarray, np.ndarray],
    about: About,
    fourier: int,
    generator: np.random.Generator,
) -> Scales:
    """Statistics of some training rows; constant coordinates are shifted and not scaled."""
    spec = about.spec
    states = rows[:, : spec.state_dim].astype(np.float64)
    mean, scale = states.mean(axis=0), reciprocal(states.std(axis=0), states.mean(axis=0))
    low, high = (bound.astype(np.float64) for bound in bounds)
    centre, half = (low + high) / 2, reciprocal((high - low) / 2, np.zeros_like(low))
    # Projections of unit length on average: the kernel's width is the distance between two states.
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
        reciprocal(spread, target_mean),
        moment_weights(~constant(spread, target_mean), spec.state_dim),
    )
    return Scales(*(jnp.asarray(array, jnp.float32) for array in arrays))


def reciprocal(spread: np.ndarray, size: np.ndarray) -> np.ndarray:
    """1 / spread, or 1 where the spread is no more than rounding."""
    return 1.0 / np.where(constant(spread, size), 1.0, spread)


def constant(spread: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Where the spread is no more than rounding."""
    return spread <= np.maximum(CONSTANT * np.abs(size), NOISE * spread.max(initial=0.0))


def moment_weights(varies: np.ndarray, state_dim: int) -> np.ndarray:
    """Half in equal shares to the state's coordinates that vary, half to its waves.

    A constant is predicted by knowing nothing: counted, it would pass for variance explained.
    """
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
        """Fresh networks; the reward head, which nothing here trains, is left out."""
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
        """Squared errors of the predicted moments: half for the state, half for its waves.

        Coordinates that are constant do not count.

        Under "l2" the head reads features of unit mean square instead of unit length. Under
        "layernorm" they start so; under "raw" they are as they are, CP's the smaller ones.
        """
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
