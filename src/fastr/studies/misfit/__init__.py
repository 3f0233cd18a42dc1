"""Whether the CP factorization fits a dataset (App. Empirical CP Misfit Diagnostic).

This file has the options and their presets; `data` splits, scales and batches, `training` has the
two predictors and their fit, `verdict` the intervals and their meaning, `report` the whole
diagnosis (`diagnose`) with its numbers and its page.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from fastr.core import DEEPEST, LARGEST_BATCH, MOST_LEVELS, Preset, require, require_seeds
from fastr.nn.precision import Precision
from fastr.representations.interactions import CPConfig
from fastr.representations.joint import JointConfig
from fastr.representations.ranking import ScoreForm

Kind = Literal["cp", "joint"]
KINDS: tuple[Kind, ...] = ("cp", "joint")
NAMES: dict[Kind, str] = {"cp": "CP", "joint": "joint"}
SplitBy = Literal["episode", "transition"]
MOST_RESAMPLES = 1_000_000
LAPTOP: dict[str, Any] = {"feature_dim": 128, "hidden_dim": 128, "blocks": 1, "noise_levels": 4}
LAPTOP |= {"fourier_targets": 64, "learning_rate": 5e-4, "batch_size": 256, "epochs": 8}


@dataclass(frozen=True)
class PredictorConfig:
    """Sizes and training of both predictors (App. Empirical CP Misfit Diagnostic)."""

    feature_dim: int = 512
    """Coordinates d of the feature."""
    hidden_dim: int = 512
    """Units in every layer of the encoders."""
    blocks: int = 2
    """Residual blocks, with LayerNorm and Mish, in every encoder."""
    noise_levels: int = 25
    """Levels of the variance-preserving schedule."""
    score: ScoreForm = "l2"
    """Form of the contrastive score, as in training (docs/deviations.md)."""
    fourier_targets: int = 256
    """Random Fourier projections of the next state that the moment head predicts (ours: the paper
    gives no number)."""
    moment_weight: float = 0.1
    """Weight of the moment loss in the sum with the ranking loss."""
    learning_rate: float = 1e-4
    """Adam's step size."""
    batch_size: int = 512
    """Transitions per update; each is ranked against all next states of its batch."""
    epochs: int = 50
    """Passes over the training part."""
    precision: Precision = "float32"
    """Arithmetic of matrix products: float32, tf32 (on a CPU the same) or bfloat16."""

    def __post_init__(self):
        require(self, "feature_dim", "hidden_dim", "fourier_targets", "epochs", low=1)
        require(self, "noise_levels", low=1, high=MOST_LEVELS)
        require(self, "batch_size", low=2, high=LARGEST_BATCH)
        require(self, "blocks", low=0, high=DEEPEST)
        require(self, "moment_weight", "learning_rate", low=0)

    def representation(self, kind: Kind) -> CPConfig | JointConfig:
        """The representation whose feature predicts; its reward head stays untrained."""
        config = CPConfig if kind == "cp" else JointConfig
        return config(
            feature_dim=self.feature_dim,
            hidden_dim=self.hidden_dim,
            blocks=self.blocks,
            noise_levels=self.noise_levels,
            score=self.score,
            reward_weight=0.0,
            precision=self.precision,
        )


@dataclass(frozen=True)
class MisfitConfig:
    """How to split, train, select and compare."""

    preset: Preset
    """Sizes: paper (the paper's) or laptop (scaled down for a CPU)."""
    predictor: PredictorConfig
    split: SplitBy = "episode"
    """Unit of the 70/15/15 split: whole episodes, so that no neighbour of a test transition is in
    the training part, or transitions, as in the paper."""
    split_seed: int = 0
    """Seed of the split, of --limit and of the Fourier projections: the same for all --seeds."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Training seeds: initial parameters, order of batches, noise."""
    limit: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: all)")] = None
    """Use at most this many transitions of each dataset, in randomly chosen whole episodes."""
    action_scale: Literal["bounds", "observed"] = "bounds"
    """What to map onto [-1, 1]: the action bounds of the dataset (-1 and 1 if it has none), or the
    smallest and largest value observed."""
    bootstrap: int = 2_000
    """Resamples for every interval."""

    def __post_init__(self):
        require(self, "bootstrap", low=100, high=MOST_RESAMPLES)
        require(self, "split_seed", low=0)
        if self.limit is not None:
            require(self, "limit", low=1)
        require_seeds(self.seeds)


def preset(name: Preset) -> MisfitConfig:
    """The configuration of a preset."""
    return MisfitConfig(name, PredictorConfig(**(LAPTOP if name == "laptop" else {})))
