"""The training loop: act, learn while the simulators run, evaluate, record, save.

The order is that of the paper's protocol but for one thing: the update of agent step t starts
before the simulators take step t, so it samples from the transitions up to t - 1. With blocks of
several steps, a block's updates start before all its steps: they sample from the transitions before
it, and its actions are those of the policy before it. So neither the device nor the simulators wait
for the other within a block, unless an episode ends: its row waits for the block's updates.
"""

import abc
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jaxtyping import Float, Float32

from fastr import envs
from fastr.core import EnvSpec, RunError
from fastr.envs import shifts
from fastr.envs.processes import PATIENCE_SECONDS, EnvPool, Steps, usable_cores
from fastr.runs.checkpoints import Checkpoint, Snapshot, saved_frames
from fastr.runs.contract import Contract
from fastr.runs.directory import RunWriter
from fastr.runs.provenance import provenance
from fastr.training.config import TrainConfig, to_json
from fastr.training.cost import check_fits
from fastr.training.evaluate import Evaluation, Evaluator, evaluation_workers, snapshots
from fastr.training.learner import Engine, Held
from fastr.training.log import Log
from fastr.training.state import LEARNED, RunState, inherited, legacy

LOG_SHA256 = "log_sha256"
LOSS_STEPS = 1_000
"""Updates between two rows of an offline training."""
HEALTH_STEPS = 500
"""Agent steps between two checks that losses are finite."""
WARM_UPDATES = 5
"""Updates that are not timed: their programs compile."""
TIMED_SECONDS = 3.0
"""How long updates are timed, to estimate the rest of the run."""
AWAKE_SECONDS = 0.01
"""How long simulators wait awake for their next action: longer than an accelerator's update."""


class Pending(NamedTuple):
    """An evaluation in progress: its agent step, and the losses of that step."""

    evaluation: Evaluation
    step: int
    metrics: np.ndarray | None


class Stopwatch:
    """Times the first updates of this process, then reports updates per second once."""

    def __init__(self, report: Callable[[float], None]):
        self.report, self.updates, self.warm, self.start = report, 0, 0, math.inf

    def tick(self, updates: int) -> None:
        """Count updates; a device at work on the last ones does not change the rate."""
        before, self.updates = self.updates, self.updates + updates
        if before < WARM_UPDATES <= self.updates:
            self.start, self.warm = time.monotonic(), self.updates
        elif (seconds := time.monotonic() - self.start) > TIMED_SECONDS:
            self.report((self.updates - self.warm) / seconds)
            self.start = math.inf


class Training(abc.ABC):
    """A run in progress: its state, its evaluations, its rows and checkpoints."""

    def __init__(
        self, config: TrainConfig, run: RunWriter, evaluator: Evaluator | None, engine: Engine
    ):
        self.config, self.run, self.evaluator = config, run, evaluator
        self.engine, self.state = engine, RunState.start(config, engine)
        self.pending: Pending | None = None
        self.listeners: list[Callable[[dict[str, Any]], None]] = [run.append]
        self.host_seconds: dict[str, float] = {}
        """Time that this process spent in each part of the loop."""
        self.stopwatch = Stopwatch(lambda _: None)

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Start at frame 0, or from a checkpoint."""
        state = self.state
        if checkpoint is None:
            state.cohort = inherited(state.cohort, self.config, self.engine.spec)
            self.start()
            state.started = time.monotonic()
            return
        state.restore(checkpoint)
        self.restart()
        if checkpoint.host["evaluating"]:
            self.start_evaluation((state.next_step - 1) * self.config.frame_skip)

    @abc.abstractmethod
    def start(self) -> None:
        """Bring the simulators to the start, if there are any."""

    @abc.abstractmethod
    def restart(self) -> None:
        """Bring the simulators to where the restored state has them, if there are any."""

    @abc.abstractmethod
    def block(self) -> None:
        """Move on, by as many steps as are started at once."""

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time in this block to a part of the loop."""
        start = time.perf_counter()
        yield
        self.host_seconds[part] = self.host_seconds.get(part, 0.0) + time.perf_counter() - start

    def loop(self, stopped: Callable[[], bool]) -> None:
        """Run to the end of the budget, or until asked to stop; then save."""
        while self.state.next_step < self.config.agent_steps and not stopped():
            self.block()
        self.record_evaluation()
        self.check_health()
        if self.state.next_step > self.state.saved_steps:
            self.save()
        self.run.finish_save()

    def steps_at_once(self) -> int:
        """Agent steps to the end of the block, or until the host is to look at the result.

        Blocks end at multiples of their length, so that no usual interval of evaluations and
        checkpoints cuts one: where it does, numbers depend on the interval.
        """
        config, step = self.config, self.state.next_step
        steps = [config.agent_steps - step]
        if step < config.random_steps:
            steps.append(config.random_steps - step)
        skip = config.frame_skip
        looks = HEALTH_STEPS, config.eval_frames // skip, config.checkpoint_frames // skip
        steps += [-step % every + 1 for every in (config.block_steps, *looks) if every]
        return min(steps)

    def look(self, step: int) -> None:
        """Check, evaluate and save where this agent step is one for it."""
        frames, every = step * self.config.frame_skip, self.config.checkpoint_frames
        last = self.state.next_step == self.config.agent_steps
        if step % HEALTH_STEPS == 0:
            self.check_health()
        if frames % self.config.eval_frames == 0 or last:
            self.start_evaluation(frames)
        # The last checkpoint waits for the last evaluation: a run that has it is complete.
        if every and frames and frames % every == 0 and not last:
            self.check_health()
            self.save()

    def improve(self, cohort: Held, last: jax.Array, count: int) -> tuple[Held, jax.Array]:
        """Start updates on the device."""
        with self.timed("hand over the update, in a thread"):
            return self.engine.improve(cohort, last, count)

    def start_evaluation(self, frames: int) -> None:
        """Start greedy episodes with a snapshot of every seed's policy."""
        if self.evaluator is None:
            return
        self.record_evaluation()
        state = self.state
        state.catch_up()
        leaves = snapshots(self.engine.policies(state.cohort), len(self.config.seeds))
        # The one at the last frame counts as the next that is due, which a longer run has there.
        first = -(-frames // self.config.eval_frames) * self.config.eval_episodes
        episodes = range(first, first + self.config.eval_episodes)
        submitted = self.evaluator.submit(leaves, self.config.seeds, episodes)
        self.pending = Pending(submitted, frames // self.config.frame_skip, state.measured())

    def record_evaluation(self) -> None:
        """Wait for the evaluation in progress, if any, and record it."""
        if self.pending is None:
            return
        (evaluation, step, metrics), self.pending = self.pending, None
        for i, returns in enumerate(evaluation.returns()):
            figures = {"return": float(np.mean(returns)), "returns": returns.tolist()}
            self.record("evaluation", i, step * self.config.frame_skip, step, figures, metrics)

    def record(
        self,
        kind: str,
        i: int,
        frames: int,
        step: int,
        figures: dict[str, Any],
        metrics: np.ndarray | None,
    ) -> None:
        """Give all listeners one row of one seed; metrics are null before the first update."""
        names = self.engine.metric_names
        values = [None] * len(names) if metrics is None else metrics[i].tolist()
        row = {
            "kind": kind,
            "seed": self.config.seeds[i],
            "frames": frames,
            "agent_steps": step + 1,
            "updates": max(0, step + 1 - self.config.random_steps),
            "seconds": round(self.state.seconds, 3),
            **figures,
            **dict(zip(names, values, strict=True)),
        }
        for listener in self.listeners:
            listener(row)

    def check_health(self) -> None:
        """Stop the run if a loss is no longer finite."""
        broken = np.asarray(self.state.cohort.tree.learners.broken_at)
        if (broken < 0).all():
            return
        i = int(np.argmax(broken >= 0))
        frames = (int(broken[i]) + self.config.random_steps) * self.config.frame_skip
        self.stop(i, f"a loss is not finite since update {broken[i]} (frame {frames})")

    def check_learned(self, snapshot: Snapshot) -> None:
        """Stop the run rather than save a parameter that is not finite.

        The loss of the last update was finite; its parameters would show in the next one's.
        """
        for name, array in snapshot.arrays.items():
            if name.startswith(LEARNED):
                finite = np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
                if not finite.all():
                    why = f"{name} is not finite at frame {snapshot.frames}"
                    self.stop(int(np.argmin(finite)), why)

    def stop(self, i: int, why: str) -> NoReturn:
        """End the run because of one seed."""
        raise RunError(f"Seed {self.config.seeds[i]}: {why}; {self.run.standing()}.")

    def save(self) -> None:
        """Take a checkpoint; it is written while training goes on."""
        if self.pending is not None and self.pending.step < self.state.next_step - 1:
            # Its policy is gone. One that has just started can start again after a resume.
            self.record_evaluation()
        # First: the host holds the transitions of one checkpoint at a time.
        self.run.finish_save()
        snapshot = self.state.snapshot(evaluating=self.pending is not None)
        self.check_learned(snapshot)
        self.run.begin_save(snapshot, keep=self.config.keep_checkpoints)


class Trainer(Training):
    """A run with simulators: act, learn while they run."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunWriter,
        pool: EnvPool,
        evaluator: Evaluator,
        engine: Engine,
    ):
        super().__init__(config, run, evaluator, engine)
        self.pool = pool
        self.dispatcher = ThreadPoolExecutor(1)
        self.update: Future[tuple[Held, jax.Array]] | None = None

    def start(self) -> None:
        """Reset the simulators."""
        self.state.states = self.pool.reset(self.state.episodes)

    def restart(self) -> None:
        """Bring the simulators to where they were, by the actions of their episodes."""
        state = self.state
        states = self.pool.restore(state.episodes, state.episode_actions())
        if not np.array_equal(states, state.states):
            raise RunError(
                f"{self.config.task} is not deterministic: the same seed and actions led to "
                "another state, so this run cannot continue from its checkpoint."
            )

    def block(self) -> None:
        """Agent steps of every seed, and as many updates, started at once."""
        state, first = self.state, self.state.next_step
        count, learning = self.steps_at_once(), first >= self.config.random_steps
        with self.timed("hand over transitions"):
            if first == 0:
                actions, actors = self.engine.explore(state.cohort, state.states), []
            else:
                actions, actors = state.hand_over(len(state.rows))
        if learning:
            # Started before the actions are waited for, so that the device never pauses. In a
            # thread: on an accelerator that takes a millisecond, and a CPU would act after it.
            last = self.engine.no_metrics() if state.metrics is None else state.metrics
            self.update = self.dispatcher.submit(self.improve, state.cohort, last, count)
        for step in range(first, first + count):
            if step > first:
                actions = self.engine.act(actors, state.states, step)
            self.step(actions)
        self.finish_update()
        if learning:
            self.stopwatch.tick(count)
        self.look(state.next_step - 1)

    def step(self, actions: jax.Array) -> None:
        """One agent step of every seed."""
        with self.timed("wait for actions"):
            taken = np.asarray(actions)
        if not np.isfinite(taken).all():
            self.finish_update()
            self.check_health()
        self.pool.send(taken)
        if self.pending is not None and self.pending.evaluation.done():
            self.record_evaluation()
        with self.timed("wait for simulators"):
            arrived = self.pool.receive()
        self.add(taken, arrived)
        self.state.next_step += 1

    def finish_update(self) -> None:
        """Take over the update that was started, if any; the device may still be at work."""
        if self.update is not None:
            self.state.cohort, self.state.metrics = self.update.result()
            self.update = None

    def add(self, actions: Float[np.ndarray, "seed action"], steps: Steps) -> None:
        """Keep the transitions, and record the episodes that ended."""
        state = self.state
        state.add(actions, steps)
        if steps.over.any():
            self.finish_update()
            returns = np.asarray(state.returns, np.float32)
            state.cohort = self.engine.end_episodes(state.cohort, returns, steps.over)
            for i in np.flatnonzero(steps.over):
                self.end_episode(int(i))

    def end_episode(self, i: int) -> None:
        """Record a training episode of one seed and begin the next."""
        state = self.state
        lengths = {"return": state.returns[i], "agent_steps_in_episode": len(state.actions[i])}
        frames = (state.next_step + 1) * self.config.frame_skip
        self.record("episode", i, frames, state.next_step, lengths, state.measured())
        state.next_episode(i)


class OfflineTrainer(Training):
    """A run that learns from its log alone; without an environment, rows have losses alone."""

    def start(self) -> None:
        """There is no simulator: a state of zeros stands in the checkpoints."""
        shape = len(self.config.seeds), self.engine.spec.state_dim
        self.state.states = np.zeros(shape, np.float32)

    def restart(self) -> None:
        """The restored state is all."""

    def block(self) -> None:
        """As many updates as there are steps in the block."""
        state, count = self.state, self.steps_at_once()
        last = self.engine.no_metrics() if state.metrics is None else state.metrics
        state.cohort, state.metrics = self.improve(state.cohort, last, count)
        state.next_step += count
        if self.pending is not None and self.pending.evaluation.done():
            self.record_evaluation()
        self.stopwatch.tick(count)
        step = state.next_step - 1
        if step and step % LOSS_STEPS == 0:
            for i in range(len(self.config.seeds)):
                frames = step * self.config.frame_skip
                self.record("losses", i, frames, step, {}, state.measured())
        self.look(step)


def begin(config: TrainConfig, path: Path, log: Log | None = None) -> RunWriter:
    """A new run in this directory, on the log that it learns from, if any."""
    check_possible(config, path, log)
    if config.task:
        # An actuator shift happens between the policy and the robot: the names are the robot's.
        task, _ = shifts.split(config.task)
        with contextlib.closing(envs.load(task, config.frame_skip)) as environment:
            contract = Contract.of(environment, config.frame_skip)
    else:
        assert log is not None
        contract = log.contract
    devices = {"devices": [entry.device_kind for entry in jax.local_devices()]}
    record = {"train": to_json(config), "provenance": provenance() | devices}
    if log is not None:
        record["provenance"][LOG_SHA256] = log.sha256
    return RunWriter.create(path, record, contract.to_json())


def check_possible(config: TrainConfig, path: Path, log: Log | None = None) -> None:
    """Raise UserError for a run that cannot be in this directory, before anything is written."""
    if config.task or log is None:
        spec = envs.ending_spec(config.task, config.frame_skip)
    else:
        spec = log.spec
    check_fits(config, spec)
    # After the first checkpoint a run holds what it took over.
    if config.init and not saved_frames(path):
        legacy(config, spec)


def engine_of(
    config: TrainConfig, spec: EnvSpec, log: Float32[np.ndarray, "logged row"] | None = None
) -> Engine:
    """The compiled programs of a run."""
    return Engine(
        config.agent,
        spec,
        config.seeds,
        capacity=config.capacity,
        random_steps=config.uniform_steps,
        block_steps=config.block_steps,
        log=log,
        logged_rows=config.logged_rows,
    )


def simulators(config: TrainConfig, patience: float = PATIENCE_SECONDS) -> EnvPool:
    """One simulator per seed, awake between steps where cores are idle anyway."""
    # An update on a CPU takes all cores, and longer than it takes to wake a simulator. With an
    # accelerator: a core for this process, one for its thread, as many for evaluations.
    spare = usable_cores() >= 2 + 2 * len(config.seeds)
    awake = AWAKE_SECONDS if spare and jax.default_backend() != "cpu" else 0.0
    return EnvPool(
        config.task,
        config.frame_skip,
        config.seeds,
        patience_seconds=patience,
        awake_seconds=awake,
    )


def train(  # noqa: PLR0913  (what a caller may watch and stop)
    config: TrainConfig,
    run: RunWriter,
    checkpoint: Checkpoint | None = None,
    *,
    listeners: tuple[Callable[[dict[str, Any]], None], ...] = (),
    stopped: Callable[[], bool] = lambda: False,
    patience: float = PATIENCE_SECONDS,
    estimate: Callable[[float], None] = lambda _: None,
    log: Log | None = None,
) -> None:
    """Train all seeds of a run, from the start or from a checkpoint, recording rows.

    `estimate` is given updates per second, once, after some were timed. A simulator that is silent
    for longer than `patience` seconds ends the run with a WorkerError.
    """
    task, frame_skip = config.task, config.frame_skip
    workers = evaluation_workers(len(config.seeds), config.eval_episodes)
    rows = None if log is None else log.rows
    with contextlib.ExitStack() as processes:
        pool = evaluator = None
        if not config.offline:
            pool = processes.enter_context(simulators(config, patience))
        if task:
            evaluator = processes.enter_context(
                Evaluator(
                    task, frame_skip, config.agent, workers=workers, patience_seconds=patience
                )
            )
        if pool is None or evaluator is None:
            assert log is not None
            trainer = OfflineTrainer(config, run, evaluator, engine_of(config, log.spec, rows))
        else:
            trainer = Trainer(config, run, pool, evaluator, engine_of(config, pool.spec, rows))
        trainer.listeners.extend(listeners)
        trainer.stopwatch.report = estimate
        trainer.begin(checkpoint)
        trainer.loop(stopped)
