"""Options of a process that trains: what it is watched by, not what it learns."""

from dataclasses import dataclass
from typing import Literal

from fastr.cli.show import Several
from fastr.core import require
from fastr.envs.processes import PATIENCE_SECONDS

PATIENCE_LIMIT = 86_400.0
"""A day."""


@dataclass(frozen=True)
class Watching:
    """How the training is watched; no part of the run, so every start of it may choose anew."""

    track: Several[Literal["tensorboard", "wandb"]] = ()
    """Also log to TensorBoard (into the run directory) or Weights & Biases."""
    patience: float = PATIENCE_SECONDS
    """Seconds that a simulator may be silent within one agent step, in training or evaluation,
    before the run stops with a sentence that names it (docs/survival.md)."""

    def __post_init__(self):
        require(self, "patience", low=1, high=PATIENCE_LIMIT)


USUAL = Watching()
