"""Logged transitions that a training learns from, checked and packed."""

import hashlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from fastr.core import EnvSpec
from fastr.runs.contract import Contract


@dataclass(frozen=True)
class Log:
    """Transitions as the replay has them: actions in [-1, 1]."""

    rows: Float32[np.ndarray, "logged row"]
    contract: Contract
    """Of the environment; without one, as far as the log tells."""
    doubt: str = ""
    """What looks wrong in it, without being impossible."""

    @property
    def sha256(self) -> str:
        """Checksum: a run is resumed with the log that it began with."""
        return hashlib.sha256(self.rows.tobytes()).hexdigest()

    @property
    def spec(self) -> EnvSpec:
        """Sizes of its states and actions."""
        return EnvSpec(self.contract.state_dim, len(self.contract.action))
