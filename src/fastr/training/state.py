"""Where a run stands: everything that the rest of it depends on, to be saved and known again."""

import time

import jax
import numpy as np
from jaxtyping import Float

from fastr.core import EnvSpec, UserError
from fastr.runs.checkpoints import Checkpoint, Snapshot
from fastr.training import ring
from fastr.training.arrays import REPLAY, check_saved, named_leaves, with_leaves
from fastr.training.config import TrainConfig
from fastr.training.host import Host
from fastr.training.learner import Cohort, Engine


class RunState:
    """The device's part, the host's part, and the time that both have taken."""

    def __init__(self, config: TrainConfig, engine: Engine):
        self.config, self.engine = config, engine
        self.cohort: Cohort = engine.init()
        self.host = Host.start(len(config.seeds))
        self.metrics: jax.Array | None = None
        """Of the last update; the next one takes their place."""
        self.saved_steps = 0
        """Agent steps behind the last snapshot."""
        self.start_clock()

    def start_clock(self) -> None:
        """Let the time from now on be the run's."""
        self.clock = time.monotonic() - self.host.seconds

    def seconds(self) -> float:
        """Wall-clock of the run so far, stops left out."""
        return time.monotonic() - self.clock

    def measured(self) -> Float[np.ndarray, "seed metric"] | None:
        """The metrics of the last update, once it is done; nothing before the first."""
        # A copy: where the device is the CPU, the next update works in this very memory.
        return None if self.metrics is None else np.array(self.metrics)

    def take_snapshot(self, *, evaluating: bool) -> Snapshot:
        """All there is to save now; of the replay, what was not in the last snapshot."""
        arrays, rows = self._arrays(), self._new_replay_rows()
        steps = self.saved_steps = self.host.next_step
        self.host.seconds = self.seconds()
        return Snapshot(
            frames=(steps - 1) * self.config.frame_skip,
            arrays=arrays,
            host=self.host.saved(evaluating=evaluating),
            replay_rows=rows,
            replay_start=steps - 1 - len(rows),
            capacity=self.config.capacity,
        )

    def _arrays(self) -> dict[str, np.ndarray]:
        """Every array but the replay, by name."""
        leaves = named_leaves(self.cohort)
        del leaves[REPLAY]
        # Copies: where the device is the CPU, the next update works in this very memory.
        named = {name: np.array(leaf) for name, leaf in jax.device_get(leaves).items()}
        if (metrics := self.measured()) is not None:
            named["metrics"] = metrics
        return named | self.host.arrays(self.engine.spec)

    def _new_replay_rows(self) -> Float[np.ndarray, "steps seed row"]:
        """The transitions on the device since the last snapshot, oldest first."""
        first, last = max(0, self.saved_steps - 1), self.host.next_step - 1
        first = max(first, last - self.config.capacity)
        return ring.fetched(self.cohort.learners.replay.rows, first, last)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Stand where the checkpoint was made; UserError unless it is of such a run."""
        arrays, self.host = checkpoint.arrays(), Host.of(checkpoint, self.config)
        check_saved(self.cohort, arrays, self.engine.spec)
        check_replay(checkpoint, self.config, self.engine.spec)
        replay = self.cohort.learners.replay.rows
        for start, rows in checkpoint.replay_slices(ring.steps_at_once(replay)):
            replay = ring.written(replay, start, rows)
        self.cohort = with_leaves(self.cohort, arrays | {REPLAY: replay})
        self.host.restore_arrays(arrays)
        self.saved_steps = self.host.next_step
        shape = len(self.config.seeds), len(self.engine.metric_names)
        if arrays.get("metrics", np.empty(0)).shape == shape:
            self.metrics = jax.device_put(arrays["metrics"], self.engine.sharding)


def check_replay(checkpoint: Checkpoint, config: TrainConfig, spec: EnvSpec) -> None:
    """Raise UserError unless the checkpoint's transitions are of this run."""
    held = checkpoint.replay.end - checkpoint.replay.start
    if checkpoint.row_shape != (len(config.seeds), spec.row_dim) or held > config.capacity:
        raise UserError("The checkpoint's replay does not fit this run's configuration.")
