"""The replay of a run directory as a dataset, from its newest sound checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from fastr.core import EnvSpec, UserError
from fastr.data.dataset import SCALARS, VECTORS, About, Chunk, Source
from fastr.runs import STATE, RunDirectory
from fastr.runs.untrusted import reading, tensors


class RunReplay(Source):
    """All transitions in a run's replay, seed by seed.

    A seed's transitions are in the order of time; an episode begins where a state is not the next
    state of the row before.
    """

    def __init__(self, path: Path):
        self.path = path
        run = RunDirectory.open(path)
        self.checkpoint = run.latest_complete()
        train = run.config["train"]
        spec = self._spec()
        seeds = train.get("seeds")
        self.seeds = seeds if isinstance(seeds, list) else []
        steps = self.checkpoint.replay.end - self.checkpoint.replay.start
        if steps == 0:
            raise UserError(f"{path} is empty: its replay holds no transition yet.")
        # Only the sizes in the segments' own headers show that the index is true.
        for segment in self.checkpoint.segments:
            self.checkpoint.check_segment(segment)
        self.about = About(
            name=path.name,
            spec=spec,
            rows=steps * self.checkpoint.row_shape[0],
            bounds=((-1.0,) * spec.action_dim, (1.0,) * spec.action_dim),
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
            columns={role: role for role in (*VECTORS, *SCALARS)},
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

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, one seed after the other, each seed's oldest first."""
        spec, episode = self.about.spec, -1
        edges = np.cumsum([spec.state_dim, spec.action_dim, spec.state_dim])
        seeds = self.checkpoint.row_shape[0]
        # A row of the file holds one transition of every seed.
        most = max(1, self.rows_at_once // seeds)
        for seed in range(seeds):
            before = None
            for first, rows in self.checkpoint.replay_slices(most):
                state, action, next_state, scalars = np.split(rows[:, seed], edges, axis=1)
                reward, continues = scalars.T
                begins = episode_begins(state, next_state, before)
                numbers = episode + np.cumsum(begins)
                episode, before = int(numbers[-1]), next_state[-1]
                label, over = f"seed {seed} step", continues == 0.0
                yield Chunk(state, action, next_state, numbers, label, first, reward, over)


def episode_begins(
    state: np.ndarray, next_state: np.ndarray, before: np.ndarray | None
) -> Bool[np.ndarray, " rows"]:
    """Whether each row's state differs from the next state of the row before."""
    follows = (state[1:] == next_state[:-1]).all(axis=1)
    first = before is not None and bool((state[0] == before).all())
    return ~np.concatenate([[first], follows])
