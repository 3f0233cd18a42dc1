"""The replay of a run directory as a dataset, from its newest sound checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32

from fastr.core import EnvSpec, UserError
from fastr.data.dataset import SCALARS, VECTORS, About, Chunk, Source
from fastr.runs.checkpoints import STATE, tensors
from fastr.runs.directory import RunDirectory
from fastr.runs.untrusted import reading


class RunReplay(Source):
    """All transitions in a run's replay, seed by seed.

    A seed's transitions are in the order of time; an episode begins where a state is not the next
    state of the row before.
    """

    def __init__(self, path: Path):
        self.path = path
        run = RunDirectory.open(path)
        self.checkpoint = run.latest()
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

    def pieces(self, seed: int) -> Iterator[Chunk]:
        """The transitions of one seed, by its index in the run, oldest first.

        Episodes are numbered from 0.
        """
        spec, last = self.about.spec, None
        begun, first = -1, self.checkpoint.replay.start
        # A row of the file holds one transition of every seed.
        most = max(1, self.rows_at_once // self.checkpoint.row_shape[0])
        for _, rows in self.checkpoint.replay_slices(most):
            state, action, next_state, reward, continues = unpack(rows[:, seed], spec)
            episode = begun + np.cumsum(episode_begins(state, next_state, last))
            label, over = f"seed {seed} step", continues == 0.0
            yield Chunk(state, action, next_state, episode, label, first, reward, over)
            begun, last = int(episode[-1]), next_state[-1]
            first += len(rows)

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, one seed after the other."""
        before = 0
        for seed in range(self.checkpoint.row_shape[0]):
            last = before
            for chunk in self.pieces(seed):
                yield chunk._replace(episode=before + chunk.episode)
                last = before + int(chunk.episode[-1]) + 1
            before = last


def unpack(rows: Float32[np.ndarray, "rows row"], spec: EnvSpec) -> tuple[np.ndarray, ...]:
    """State, action, next state, reward and continues of packed transitions."""
    ends = (spec.state_dim, spec.state_dim + spec.action_dim, spec.packed_dim)
    state, action, next_state, scalars = np.split(rows, ends, axis=1)
    return state, action, next_state, scalars[:, 0], scalars[:, 1]


def episode_begins(
    state: np.ndarray, next_state: np.ndarray, before: np.ndarray | None
) -> Bool[np.ndarray, " rows"]:
    """Whether each row's state differs from the next state of the row before."""
    follows = (state[1:] == next_state[:-1]).all(axis=1)
    first = before is not None and bool((state[0] == before).all())
    return ~np.concatenate([[first], follows])
