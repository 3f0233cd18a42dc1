"""The host's part of a run: where each environment is, to be saved and known again."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float32

from fastr.core import EnvSpec, UserError
from fastr.envs.pool import Steps
from fastr.runs import Checkpoint
from fastr.runs.untrusted import number, whole_numbers
from fastr.training.config import TrainConfig


def of_nobody() -> np.ndarray:
    """An array before there is anything to hold."""
    return np.zeros((0, 0), np.float32)


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
    rows: Float32[np.ndarray, "seed row"] = field(default_factory=of_nobody)
    """The last transition of every seed, on its way to the device."""
    states: Float32[np.ndarray, "seed state"] = field(default_factory=of_nobody)
    """What every seed acts on next."""

    @classmethod
    def start(cls, seeds: int) -> "Host":
        """Before the first step of so many seeds."""
        return cls(0, 0.0, [0] * seeds, [0.0] * seeds, 0, [[] for _ in range(seeds)])

    def take_in(self, actions: Float32[np.ndarray, "seed action"], steps: Steps) -> None:
        """Keep the transitions for the device, and add them to the episodes."""
        scalars = np.stack([steps.reward, steps.continues], axis=1)
        self.rows = np.concatenate([self.states, actions, steps.next_state, scalars], axis=1)
        self.states = steps.state.copy()
        for i, reward in enumerate(steps.reward):
            self.returns[i] += float(reward)
            self.actions[i].append(actions[i])

    def next_episode(self, i: int) -> None:
        """Count on to the next episode of one seed."""
        self.episodes[i] += 1
        self.returns[i] = 0.0
        self.actions[i] = []

    def taken(self, spec: EnvSpec) -> list[Float32[np.ndarray, "_ action"]]:
        """Each seed's actions in its current episode as one array."""
        return [
            np.array(actions, np.float32).reshape(-1, spec.action_dim) for actions in self.actions
        ]

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

        All but what `arrays` has.
        """
        return {
            "next_step": self.next_step,
            "seconds": self.seconds,
            "episodes": list(self.episodes),
            "returns": list(self.returns),
            "evaluated": self.evaluated,
            "evaluating": evaluating,
        }

    def arrays(self, spec: EnvSpec) -> dict[str, np.ndarray]:
        """What a checkpoint holds of them as arrays, by name."""
        actions = {f"episode_actions.{i}": taken for i, taken in enumerate(self.taken(spec))}
        return actions | {"pending_rows": self.rows, "pending_states": self.states}

    def restore_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """The way back, for arrays that are known to fit."""
        actions = [arrays[f"episode_actions.{i}"] for i in range(len(self.episodes))]
        self.actions = [list(taken) for taken in actions]
        self.rows, self.states = arrays["pending_rows"], arrays["pending_states"]


def as_list(value: object) -> list:
    """The value itself if it is a list; nothing otherwise."""
    return value if isinstance(value, list) else []
