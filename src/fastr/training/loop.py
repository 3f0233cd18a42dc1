"""The training loop: act, learn while the simulators run, evaluate, record, save.

Per agent step the order is that of the paper's protocol, with one thing moved so that nothing
waits: the update of step t is dispatched before the simulators take step t, so it samples from the
transitions up to t - 1.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jaxtyping import Float

from fastr.core import RunError
from fastr.envs.processes import PATIENCE_SECONDS, EnvPool, Steps, usable_cores
from fastr.runs.checkpoints import Checkpoint, Snapshot
from fastr.runs.directory import RunWriter
from fastr.training.arrays import LEARNED, inherited
from fastr.training.config import TrainConfig
from fastr.training.evaluate import Evaluation, Evaluator, evaluation_workers
from fastr.training.learner import Cohort, Engine
from fastr.training.policies import snapshots
from fastr.training.state import RunState

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
    """One run in progress: where it stands, and the processes beside it."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunWriter,
        pool: EnvPool,
        evaluator: Evaluator,
        engine: Engine,
    ):
        self.config, self.run, self.pool, self.evaluator = config, run, pool, evaluator
        self.engine, self.state = engine, RunState(config, engine)
        self.dispatcher = ThreadPoolExecutor(1)
        self.update: Future[tuple[Cohort, jax.Array]] | None = None
        self.pending: Pending | None = None
        self.listeners: list[Callable[[dict[str, Any]], None]] = [run.append]

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Start at frame 0, or where the checkpoint was made."""
        state = self.state
        if checkpoint is None:
            state.cohort = inherited(state.cohort, self.config, self.pool.spec)
            state.host.states = self.pool.reset(state.host.episodes)
        else:
            self.restore(checkpoint)
        state.start_clock()

    def loop(self, stopped: Callable[[], bool]) -> None:
        """Run to the end of the budget, or until asked to stop; then save."""
        while self.state.host.next_step < self.config.agent_steps and not stopped():
            self.step()
        self.record_evaluation()
        self.check_health()
        if self.state.host.next_step > self.state.saved_steps:
            self.save()
        self.run.finish_save()

    def step(self) -> None:
        """One agent step of every seed."""
        state, step = self.state, self.state.host.next_step
        actions = self.act()
        if step >= self.config.random_steps:
            # Dispatched before the actions are waited for: the device goes from one update to the
            # next without a pause. That takes an accelerator's host a millisecond, hence a thread
            # of its own: actions arrive and simulators run meanwhile.
            last = self.engine.no_metrics() if state.metrics is None else state.metrics
            self.update = self.dispatcher.submit(self.improve, state.cohort, last)
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
        state.host.next_step = step + 1
        frames = step * self.config.frame_skip
        last = state.host.next_step == self.config.agent_steps
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
            self.state.cohort, self.state.metrics = self.update.result()
            self.update = None

    def act(self) -> jax.Array:
        """Hand the last transitions to the device; the next actions, still on their way."""
        state, host = self.state, self.state.host
        if host.next_step == 0:
            return self.engine.explore(state.cohort, host.states)
        arrived = np.concatenate([host.rows, host.states], axis=1)
        state.cohort, actions = self.engine.interact(state.cohort, arrived)
        return actions

    def take_in(self, actions: Float[np.ndarray, "seed action"], steps: Steps) -> None:
        """Keep the transitions for the device, and account for the episodes."""
        state = self.state
        state.host.take_in(actions, steps)
        if steps.over.any():
            returns = np.asarray(state.host.returns, np.float32)
            state.cohort = self.engine.end_episodes(state.cohort, returns, steps.over)
            for i in np.flatnonzero(steps.over):
                self.end_episode(int(i))

    def end_episode(self, i: int) -> None:
        """Record the return of a training episode and count the next one."""
        host = self.state.host
        step, frames = host.next_step, (host.next_step + 1) * self.config.frame_skip
        self.record(
            {"kind": "episode", "seed": self.config.seeds[i], "frames": frames}
            | self.progress(step)
            | {"return": host.returns[i], "agent_steps_in_episode": len(host.actions[i])}
            | self.losses(self.state.measured(), i)
        )
        host.next_episode(i)

    def start_evaluation(self, frames: int) -> None:
        """Play greedy episodes with a snapshot of every seed's policy, beside the training."""
        self.record_evaluation()
        state = self.state
        leaves = snapshots(self.engine.policies(state.cohort), len(self.config.seeds))
        first = state.host.evaluated * self.config.eval_episodes
        episodes = range(first, first + self.config.eval_episodes)
        submitted = self.evaluator.submit(leaves, self.config.seeds, episodes)
        self.pending = Pending(submitted, frames // self.config.frame_skip, state.measured())
        state.host.evaluated += 1

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
            "seconds": round(self.state.seconds(), 3),
        }

    def losses(self, metrics: np.ndarray | None, i: int) -> dict[str, float | None]:
        """The metrics of one seed's update; null before the first."""
        if metrics is None:
            return dict.fromkeys(self.engine.metric_names)
        values = metrics[i].tolist()
        return dict(zip(self.engine.metric_names, values, strict=True))

    def check_health(self) -> None:
        """Stop the run if a loss is no longer finite."""
        broken = np.asarray(self.state.cohort.learners.broken_at)
        if (broken < 0).all():
            return
        i = int(np.argmax(broken >= 0))
        frames = (int(broken[i]) + self.config.random_steps) * self.config.frame_skip
        self.stop(i, f"a loss is not finite since update {broken[i]} (frame {frames})")

    def check_learned(self, snapshot: Snapshot) -> None:
        """Stop the run if a number of what is learned, about to be saved, is not finite.

        What the last update did to parameters shows in the losses of the next one.
        """
        for name, array in snapshot.arrays.items():
            if name.startswith(LEARNED):
                finite = np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
                if not finite.all():
                    why = f"{name} is not finite at frame {snapshot.frames}"
                    self.stop(int(np.argmin(finite)), why)

    def stop(self, i: int, why: str) -> NoReturn:
        """End the run because of one seed, saying what can be gone on with."""
        raise RunError(f"Seed {self.config.seeds[i]}: {why}; {self.run.standing()}.")

    def save(self) -> None:
        """Take a checkpoint of everything the rest of the run depends on; it is written beside."""
        if self.pending is not None and self.pending.step < self.state.host.next_step - 1:
            # Its policy is gone. One that has just begun can be begun again after a resume.
            self.record_evaluation()
        # Before the next one is taken: the host holds the transitions of one checkpoint at a time.
        self.run.finish_save()
        snapshot = self.state.take_snapshot(evaluating=self.pending is not None)
        self.check_learned(snapshot)
        self.run.begin_save(snapshot, keep=self.config.keep_checkpoints)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue where the checkpoint was made, as if nothing had happened."""
        self.state.restore(checkpoint)
        host = self.state.host
        states = self.pool.restore(host.episodes, host.taken(self.pool.spec))
        if not np.array_equal(states, host.states):
            raise RunError(
                f"{self.config.task} does not repeat itself: the same seed and actions led to "
                "another state, so this run cannot be continued where it stopped."
            )
        if checkpoint.host["evaluating"]:
            host.evaluated -= 1
            self.start_evaluation((host.next_step - 1) * self.config.frame_skip)


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
