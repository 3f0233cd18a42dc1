"""The replay of a run directory, as the newest sound checkpoint keeps it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32

from fastr.core import EnvSpec, UserError
from fastr.data.base import About, Chunk, Source
from fastr.runs import STATE, RunDirectory
from fastr.runs.untrusted import reading, tensors

COLUMNS = {name: name for name in ("state", "action", "next_state", "episode")}


class RunReplay(Source):
    """All transitions that a run's replay holds, seed by seed.

    An episode begins where a row's state is not the next state of the row before: the replay holds
    the transitions of a seed in the order they were made.
    """

    columns = COLUMNS

    def __init__(self, path: Path):
        self.path = path
        run = RunDirectory.open(path)
        self.checkpoint = run.latest_complete()
        train = run.config["train"]
        self.spec = self._spec()
        seeds = train.get("seeds")
        self.seeds = seeds if isinstance(seeds, list) else []
        steps = self.checkpoint.replay.end - self.checkpoint.replay.start
        if steps == 0:
            raise UserError(f"{path} is empty: its replay holds no transition yet.")
        for segment in self.checkpoint.segments:
            self.checkpoint.check_segment(segment)
        self.about = About(
            name=path.name,
            spec=self.spec,
            rows=steps * self.checkpoint.row_shape[0],
            bounds=((-1.0,) * self.spec.action_dim, (1.0,) * self.spec.action_dim),
            task=str(train.get("task")),
            provenance={
                "run": str(path),
                "task": train.get("task"),
                "method": train.get("method"),
                "frame_skip": train.get("frame_skip"),
                "frames": self.checkpoint.frames,
                "skipped_checkpoints": list(self.checkpoint.skipped),
                "run_provenance": run.config["provenance"],
            },
        )

    def _spec(self) -> EnvSpec:
        """Sizes of states and actions, from the shapes that the checkpoint records."""
        path = self.checkpoint.location(STATE)
        with reading(path), tensors(path) as file:
            state_dim = int(file.get_slice("pending_states").get_shape()[1])
        action_dim = self.checkpoint.row_shape[1] - 2 * state_dim - 2
        if state_dim < 1 or action_dim < 1:
            raise UserError(f"{path} does not hold the state of a training run.")
        return EnvSpec(state_dim, action_dim)

    def pieces(self, seed: int) -> Iterator[Float32[np.ndarray, "rows row"]]:
        """The packed transitions of one seed, by its place in the run, oldest first."""
        # What lies side by side on the disk are the seeds.
        most = max(1, self.rows_at_once // self.checkpoint.row_shape[0])
        for _, rows in self.checkpoint.replay_slices(most):
            yield rows[:, seed]

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, one seed after the other."""
        episode = -1
        for seed in range(self.checkpoint.row_shape[0]):
            last, first = None, self.checkpoint.replay.start
            for rows in self.pieces(seed):
                state, action, next_state, _ = unpacked(rows, self.spec)
                begins = episode_begins(state, next_state, last)
                numbers = episode + np.cumsum(begins)
                yield Chunk(state, action, next_state, numbers, f"seed {seed} step", first)
                episode, last = int(numbers[-1]), next_state[-1]
                first += len(rows)


def unpacked(rows: np.ndarray, spec: EnvSpec) -> tuple[np.ndarray, ...]:
    """State, action, next state, and reward with continues, of packed transitions."""
    ends = (spec.state_dim, spec.state_dim + spec.action_dim, spec.row_dim - 2)
    state, action, next_state, scalars = np.split(rows, ends, axis=1)
    return state, action, next_state, scalars


def episode_begins(
    state: np.ndarray, next_state: np.ndarray, before: np.ndarray | None
) -> Bool[np.ndarray, " rows"]:
    """Whether each row's state is not where the row before it led."""
    follows = (state[1:] == next_state[:-1]).all(axis=1)
    first = before is not None and bool((state[0] == before).all())
    return ~np.concatenate([[first], follows])
