"""The host's part of a run: where each environment is, to be saved and known again."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastr.checkpoints import Checkpoint, whole_numbers
from fastr.config import TrainConfig
from fastr.errors import UserError
from fastr.summary import number


@dataclass
class Host:
    """What the host alone knows of the environments, and must know again after a resume."""

    next_step: int
    """The agent step to take next."""
    seconds: float
    """Wall-clock of the run so far, stops left out."""
    episodes: list[int]
    """The number of each seed's current episode."""
    returns: list[float]
    """The return of each seed's current episode so far."""
    evaluated: int
    """Evaluations started."""
    actions: list[list[np.ndarray]] = field(default_factory=list)
    """Each seed's actions in its current episode: replayed, they rebuild the simulator's state."""

    @classmethod
    def start(cls, seeds: int) -> "Host":
        """Before the first step of so many seeds."""
        return cls(0, 0.0, [0] * seeds, [0.0] * seeds, 0, [[] for _ in range(seeds)])

    @classmethod
    def of(cls, checkpoint: Checkpoint, config: TrainConfig) -> "Host":
        """What a checkpoint says of them; UserError if it is not what was saved with it."""
        saved, seeds = checkpoint.host, len(config.seeds)
        numbers: list[Any] = [saved.get("seconds"), *as_list(saved.get("returns"))]
        sound = (
            whole_numbers([saved.get("next_step"), saved.get("evaluated")], 2)
            and whole_numbers(saved.get("episodes"), seeds)
            and len(numbers) == seeds + 1
            and all(map(number, numbers))
            and saved["next_step"] == checkpoint.frames // config.frame_skip + 1
            and saved["next_step"] == checkpoint.replay.end + 1
            and type(saved.get("evaluating")) is bool
            and saved["evaluated"] >= saved["evaluating"]
        )
        if not sound:
            raise UserError(f"Checkpoint {checkpoint.name} does not fit this run's configuration.")
        seconds, *returns = map(float, numbers)
        next_step, episodes, evaluated = (saved[n] for n in ("next_step", "episodes", "evaluated"))
        return cls(next_step, seconds, list(episodes), returns, evaluated)

    def saved(self, *, evaluating: bool) -> dict[str, Any]:
        """What a checkpoint says of them, `evaluating` if an evaluation has just begun.

        All but the actions, which are arrays.
        """
        return {
            "next_step": self.next_step,
            "seconds": self.seconds,
            "episodes": list(self.episodes),
            "returns": list(self.returns),
            "evaluated": self.evaluated,
            "evaluating": evaluating,
        }


def as_list(value: object) -> list:
    """The value itself if it is a list; nothing otherwise."""
    return value if isinstance(value, list) else []
