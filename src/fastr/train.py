"""The training loop: act, learn while the simulators run, evaluate, record, save.

Per agent step the order is that of the paper's protocol, with one thing moved so that nothing
waits: the update of step t is dispatched before the simulators take step t, so it samples from the
transitions up to t - 1.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jaxtyping import Float

from fastr import ring
from fastr.arrays import LEARNED, REPLAY, check_saved, inherited, named_leaves, with_leaves
from fastr.checkpoints import Checkpoint, Snapshot
from fastr.config import TrainConfig
from fastr.cores import usable_cores
from fastr.errors import RunError, UserError
from fastr.evaluate import Evaluation, Evaluator, evaluation_workers
from fastr.host import Host
from fastr.learner import Cohort, Engine
from fastr.policies import snapshots
from fastr.pool import EnvPool, Steps
from fastr.processes import PATIENCE_SECONDS
from fastr.runs import RunWriter
from fastr.spec import EnvSpec

# How often the host looks whether a loss has turned non-finite, in agent steps.
HEALTH_STEPS = 500
# How long simulators wait awake for their next action: longer than an accelerator's update.
AWAKE_SECONDS = 0.01


class Pending(NamedTuple):
    """An evaluation under way: the agent step it belongs to, and that step's losses."""

    evaluation: Evaluation
    step: int
    metrics: np.ndarray | None


class Trainer:
    """One run in progress: the device's state, the host's state, and the processes beside them."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunWriter,
        pool: EnvPool,
        evaluator: Evaluator,
        engine: Engine,
    ):
        self.config, self.run, self.pool, self.evaluator = config, run, pool, evaluator
        self.engine = engine
        self.cohort: Cohort = engine.init()
        self.host = Host.start(len(config.seeds))
        self.rows = np.zeros((0, pool.spec.row_dim), np.float32)
        """The last transition of every seed, on its way to the device."""
        self.states = np.zeros((0, pool.spec.state_dim), np.float32)
        self.metrics: jax.Array | None = None
        """Of the last update; the next one takes their place."""
        self.dispatcher = ThreadPoolExecutor(1)
        self.update: Future[tuple[Cohort, jax.Array]] | None = None
        self.pending: Pending | None = None
        self.saved_steps = 0
        self.listeners: list[Callable[[dict[str, Any]], None]] = [run.append]

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Start at frame 0, or where the checkpoint was made."""
        if checkpoint is None:
            self.cohort = inherited(self.cohort, self.config, self.pool.spec)
            self.states = self.pool.reset(self.host.episodes)
        else:
            self.restore(checkpoint)
        self.clock = time.monotonic() - self.host.seconds

    def loop(self, stopped: Callable[[], bool]) -> None:
        """Run to the end of the budget, or until asked to stop; then save."""
        while self.host.next_step < self.config.agent_steps and not stopped():
            self.step()
        self.record_evaluation()
        self.check_health()
        if self.host.next_step > self.saved_steps:
            self.save()
        self.run.finish_save()

    def step(self) -> None:
        """One agent step of every seed."""
        step = self.host.next_step
        actions = self.act()
        if step >= self.config.random_steps:
            # Dispatched before the actions are waited for: the device goes from one update to the
            # next without a pause. That takes an accelerator's host a millisecond, hence a thread
            # of its own: actions arrive and simulators run meanwhile.
            last = self.engine.no_metrics() if self.metrics is None else self.metrics
            self.update = self.dispatcher.submit(self.improve, self.cohort, last)
        actions = self.fetch(actions)
        if step % HEALTH_STEPS == 0 or not np.isfinite(actions).all():
            self.finish_update()
            self.check_health()
        self.pool.send(actions)
        if self.pending is not None and self.pending.evaluation.done():
            self.record_evaluation()
        arrived = self.receive()
        self.finish_update()
        self.take_in(actions, arrived)
        self.host.next_step = step + 1
        frames = step * self.config.frame_skip
        last = self.host.next_step == self.config.agent_steps
        if frames % self.config.eval_frames == 0 or last:
            self.start_evaluation(frames)
        every = self.config.checkpoint_frames
        # The last one waits for the last evaluation: a run that has it lacks nothing.
        if every and frames and frames % every == 0 and not last:
            self.check_health()
            self.save()

    def improve(self, cohort: Cohort, last: jax.Array) -> tuple[Cohort, jax.Array]:
        """Hand one update to the device; its results are still on their way."""
        return self.engine.improve(cohort, last)

    def fetch(self, actions: jax.Array) -> Float[np.ndarray, "seed action"]:
        """Wait for the actions."""
        return np.asarray(actions)

    def receive(self) -> Steps:
        """Wait for the simulators."""
        return self.pool.receive()

    def finish_update(self) -> None:
        """Take over the update being dispatched, if there is one; it may still run."""
        if self.update is not None:
            self.cohort, self.metrics = self.update.result()
            self.update = None

    def act(self) -> jax.Array:
        """Hand the last transitions to the device; the next actions, still on their way."""
        if self.host.next_step == 0:
            return self.engine.explore(self.cohort, self.states)
        arrived = np.concatenate([self.rows, self.states], axis=1)
        self.cohort, actions = self.engine.interact(self.cohort, arrived)
        return actions

    def take_in(self, actions: Float[np.ndarray, "seed action"], steps: Steps) -> None:
        """Keep the transitions for the device, and account for the episodes."""
        scalars = np.stack([steps.reward, steps.continues], axis=1)
        self.rows = np.concatenate([self.states, actions, steps.next_state, scalars], axis=1)
        self.states = steps.state.copy()
        for i, reward in enumerate(steps.reward):
            self.host.returns[i] += float(reward)
            self.host.actions[i].append(actions[i])
        if steps.over.any():
            returns = np.asarray(self.host.returns, np.float32)
            self.cohort = self.engine.end_episodes(self.cohort, returns, steps.over)
            for i in np.flatnonzero(steps.over):
                self.end_episode(int(i))

    def end_episode(self, i: int) -> None:
        """Record the return of a training episode and count the next one."""
        step = self.host.next_step
        frames = (step + 1) * self.config.frame_skip
        self.record(
            {"kind": "episode", "seed": self.config.seeds[i], "frames": frames}
            | self.progress(step)
            | {"return": self.host.returns[i], "agent_steps_in_episode": len(self.host.actions[i])}
            | self.losses(self.measured(), i)
        )
        self.host.episodes[i] += 1
        self.host.returns[i] = 0.0
        self.host.actions[i] = []

    def start_evaluation(self, frames: int) -> None:
        """Play greedy episodes with a snapshot of every seed's policy, beside the training."""
        self.record_evaluation()
        leaves = snapshots(self.engine.policies(self.cohort), len(self.config.seeds))
        first = self.host.evaluated * self.config.eval_episodes
        episodes = range(first, first + self.config.eval_episodes)
        submitted = self.evaluator.submit(leaves, self.config.seeds, episodes)
        self.pending = Pending(submitted, frames // self.config.frame_skip, self.measured())
        self.host.evaluated += 1

    def record_evaluation(self) -> None:
        """Write down the evaluation under way, if there is one, waiting for its episodes."""
        if self.pending is None:
            return
        pending, self.pending = self.pending, None
        for i, returns in enumerate(pending.evaluation.returns()):
            figures = {"return": float(np.mean(returns)), "returns": returns.tolist()}
            frames = pending.step * self.config.frame_skip
            self.record(
                {"kind": "evaluation", "seed": self.config.seeds[i], "frames": frames}
                | self.progress(pending.step)
                | figures
                | self.losses(pending.metrics, i)
            )

    def record(self, row: dict[str, Any]) -> None:
        """Hand one row of measurements to everybody who listens."""
        for listener in self.listeners:
            listener(row)

    def progress(self, step: int) -> dict[str, int | float]:
        """Agent steps and updates when this agent step was done, and the wall-clock now."""
        return {
            "agent_steps": step + 1,
            "updates": max(0, step + 1 - self.config.random_steps),
            "seconds": round(time.monotonic() - self.clock, 3),
        }

    @property
    def metrics_shape(self) -> tuple[int, int]:
        """Seeds and metrics of an update."""
        return len(self.config.seeds), len(self.engine.metric_names)

    def measured(self) -> Float[np.ndarray, "seed metric"] | None:
        """The metrics of the last update, once it is done; nothing before the first."""
        # A copy: where the device is the CPU, the next update works in this very memory.
        return None if self.metrics is None else np.array(self.metrics)

    def losses(self, metrics: np.ndarray | None, i: int) -> dict[str, float | None]:
        """The metrics of one seed's update; null before the first."""
        if metrics is None:
            return dict.fromkeys(self.engine.metric_names)
        values = metrics[i].tolist()
        return dict(zip(self.engine.metric_names, values, strict=True))

    def check_health(self) -> None:
        """Stop the run if a loss is no longer finite."""
        broken = np.asarray(self.cohort.learners.broken_at)
        if (broken < 0).all():
            return
        i = int(np.argmax(broken >= 0))
        frames = (int(broken[i]) + self.config.random_steps) * self.config.frame_skip
        self.stop(i, f"a loss is not finite since update {broken[i]} (frame {frames})")

    def check_learned(self, arrays: dict[str, np.ndarray]) -> None:
        """Stop the run if a number of what is learned, about to be saved, is not finite.

        What the last update did to parameters shows in the losses of the next one.
        """
        for name, array in arrays.items():
            if name.startswith(LEARNED):
                finite = np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
                if not finite.all():
                    frames = (self.host.next_step - 1) * self.config.frame_skip
                    self.stop(int(np.argmin(finite)), f"{name} is not finite at frame {frames}")

    def stop(self, i: int, why: str) -> NoReturn:
        """End the run because of one seed, saying what can be gone on with."""
        raise RunError(f"Seed {self.config.seeds[i]}: {why}; {self.run.standing()}.")

    def save(self) -> None:
        """Take a checkpoint of everything the rest of the run depends on; it is written beside."""
        steps = self.host.next_step
        if self.pending is not None and self.pending.step < steps - 1:
            # Its policy is gone. One that has just begun can be begun again after a resume.
            self.record_evaluation()
        # Before the next one is taken: the host holds the transitions of one checkpoint at a time.
        self.run.finish_save()
        arrays = self.arrays()
        self.check_learned(arrays)
        rows = self.new_replay_rows()
        self.host.seconds = time.monotonic() - self.clock
        snapshot = Snapshot(
            frames=(steps - 1) * self.config.frame_skip,
            arrays=arrays,
            host=self.host.saved(evaluating=self.pending is not None),
            replay_rows=rows,
            replay_start=steps - 1 - len(rows),
            capacity=self.config.capacity,
        )
        self.run.begin_save(snapshot, keep=self.config.keep_checkpoints)
        self.saved_steps = steps

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array but the replay, by name."""
        leaves = named_leaves(self.cohort)
        del leaves[REPLAY]
        # Copies: where the device is the CPU, the next update works in this very memory.
        named = {name: np.array(leaf) for name, leaf in jax.device_get(leaves).items()}
        if (metrics := self.measured()) is not None:
            named["metrics"] = metrics
        actions = {
            f"episode_actions.{i}": np.array(actions, np.float32).reshape(
                -1, self.pool.spec.action_dim
            )
            for i, actions in enumerate(self.host.actions)
        }
        return named | actions | {"pending_rows": self.rows, "pending_states": self.states}

    def new_replay_rows(self) -> Float[np.ndarray, "steps seed row"]:
        """The transitions on the device since the last checkpoint, oldest first."""
        first, last = max(0, self.saved_steps - 1), self.host.next_step - 1
        first = max(first, last - self.config.capacity)
        return ring.fetched(self.cohort.learners.replay.rows, first, last)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue where the checkpoint was made, as if nothing had happened."""
        arrays, self.host = checkpoint.arrays(), Host.of(checkpoint, self.config)
        check_saved(self.cohort, arrays, self.pool.spec)
        check_replay(checkpoint, self.config, self.pool.spec)
        replay = self.cohort.learners.replay.rows
        for start, rows in checkpoint.replay_slices(ring.steps_at_once(replay)):
            replay = ring.written(replay, start, rows)
        self.cohort = with_leaves(self.cohort, arrays | {REPLAY: replay})
        self.rows, self.states = arrays["pending_rows"], arrays["pending_states"]
        actions = [arrays[f"episode_actions.{i}"] for i in range(len(self.config.seeds))]
        self.host.actions = [list(taken) for taken in actions]
        self.saved_steps = self.host.next_step
        states = self.pool.restore(self.host.episodes, actions)
        if not np.array_equal(states, self.states):
            raise RunError(
                f"{self.config.task} does not repeat itself: the same seed and actions led to "
                "another state, so this run cannot be continued where it stopped."
            )
        if arrays.get("metrics", np.empty(0)).shape == self.metrics_shape:
            self.metrics = jax.device_put(arrays["metrics"], self.engine.sharding)
        if checkpoint.host["evaluating"]:
            self.host.evaluated -= 1
            self.start_evaluation((self.host.next_step - 1) * self.config.frame_skip)


def simulators(config: TrainConfig, patience: float = PATIENCE_SECONDS) -> EnvPool:
    """One simulator per seed, awake between steps where that takes no core from anything else."""
    # An update on the CPU takes all cores, and longer than it takes to wake a simulator. Beside an
    # accelerator: a core for this process, one for its dispatcher, as many for evaluations again.
    spare = usable_cores() >= 2 + 2 * len(config.seeds)
    awake = AWAKE_SECONDS if spare and jax.default_backend() != "cpu" else 0.0
    return EnvPool(
        config.task,
        config.frame_skip,
        config.seeds,
        patience_seconds=patience,
        awake_seconds=awake,
    )


def check_replay(checkpoint: Checkpoint, config: TrainConfig, spec: EnvSpec) -> None:
    """Raise UserError unless the checkpoint's transitions are of this run."""
    held = checkpoint.replay.end - checkpoint.replay.start
    if checkpoint.row_shape != (len(config.seeds), spec.row_dim) or held > config.capacity:
        raise UserError("The checkpoint's replay does not fit this run's configuration.")


def train(
    config: TrainConfig,
    run: RunWriter,
    checkpoint: Checkpoint | None = None,
    *,
    listeners: tuple[Callable[[dict[str, Any]], None], ...] = (),
    stopped: Callable[[], bool] = lambda: False,
    patience: float = PATIENCE_SECONDS,
) -> None:
    """Train all seeds of a run, from the start or from a checkpoint, recording as it goes.

    A simulator that is silent for longer than `patience` seconds ends the run with a WorkerError.
    """
    task, frame_skip = config.task, config.frame_skip
    workers = evaluation_workers(len(config.seeds), config.eval_episodes)
    with (
        simulators(config, patience) as pool,
        Evaluator(
            task, frame_skip, config.agent, workers=workers, patience_seconds=patience
        ) as evaluator,
    ):
        engine = Engine(
            config.agent,
            pool.spec,
            config.seeds,
            capacity=config.capacity,
            random_steps=config.random_steps,
        )
        trainer = Trainer(config, run, pool, evaluator, engine)
        trainer.listeners.extend(listeners)
        trainer.begin(checkpoint)
        trainer.loop(stopped)
