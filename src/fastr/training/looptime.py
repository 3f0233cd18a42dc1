"""The training loop with all its parts, timed: what it costs beside the update."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from fastr.envs.processes import Steps
from fastr.runs.directory import RunWriter
from fastr.training.config import TrainConfig, to_json
from fastr.training.evaluate import Evaluator, evaluation_workers
from fastr.training.learner import Cohort, Engine
from fastr.training.loop import Trainer, simulators

WARM_STEPS = 3
LONGEST_SECONDS = 15.0
"""After which the loop has been seen long enough, be its steps few."""


class TimedTrainer(Trainer):
    """A trainer that adds up where its host spends the time."""

    def __init__(self, *parts: Any):
        super().__init__(*parts)
        self.seconds: dict[str, float] = {}

    def timed(self, part: str, function: Callable, *arguments: Any) -> Any:
        """What the function gives, its time booked under this part of a step."""
        start = time.perf_counter()
        result = function(*arguments)
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start
        return result

    def act(self) -> jax.Array:
        """Hand the last transitions to the device."""
        return self.timed("hand over transitions", super().act)

    def improve(self, cohort: Cohort, last: jax.Array) -> tuple[Cohort, jax.Array]:
        """Hand one update to the device."""
        return self.timed("hand over the update, beside the rest", super().improve, cohort, last)

    def fetch(self, actions: jax.Array) -> Float[np.ndarray, "seed action"]:
        """Wait for the actions."""
        return self.timed("wait for actions", super().fetch, actions)

    def receive(self) -> Steps:
        """Wait for the simulators."""
        return self.timed("wait for simulators", super().receive)


def loop_times(config: TrainConfig, engine: Engine, *, most_steps: int) -> dict[str, Any]:
    """One agent step of the loop from the start of an evaluation on, and its host's part in that.

    Simulators, evaluation and records are those of a training; only nothing is saved. A short
    evaluation is over before the last step: the share of steps that began beside it is said.
    """
    # Updates from the beginning, of fresh networks: what they learn from, and what they would have
    # taken from another run, does not matter to their time.
    config = replace(config, random_frames=config.frame_skip, checkpoint_frames=0, source="")
    workers = evaluation_workers(len(config.seeds), config.eval_episodes)
    with (
        TemporaryDirectory() as folder,
        RunWriter.create(Path(folder) / "run", {"train": to_json(config), "provenance": {}}) as run,
        simulators(config) as pool,
        Evaluator(config.task, config.frame_skip, config.agent, workers=workers) as evaluator,
    ):
        evaluator.wait_until_started()
        trainer = TimedTrainer(config, run, pool, evaluator, engine)
        warm_up(trainer)
        trainer.seconds.clear()
        first, evaluating = trainer.state.host.next_step, 0
        start = time.perf_counter()
        while trainer.state.host.next_step < first + most_steps:
            evaluating += trainer.pending is not None
            trainer.step()
            if time.perf_counter() - start > LONGEST_SECONDS:
                break
        jax.block_until_ready(trainer.state.cohort)
        seconds, steps = time.perf_counter() - start, trainer.state.host.next_step - first
        host = {part: 1e3 * spent / steps for part, spent in trainer.seconds.items()}
        return {
            "loop_milliseconds_per_agent_step": 1e3 * seconds / steps,
            "loop_share_beside_an_evaluation": evaluating / steps,
            "loop_host_milliseconds_per_agent_step": host,
        }


def warm_up(trainer: Trainer) -> None:
    """A few steps, so that every program is there, then a fresh evaluation."""
    trainer.begin(None)
    for _ in range(WARM_STEPS):
        trainer.step()
    nobody = np.zeros(len(trainer.config.seeds))
    trainer.state.cohort = trainer.engine.end_episodes(
        trainer.state.cohort, nobody.astype(np.float32), nobody.astype(bool)
    )
    trainer.start_evaluation(0)
    jax.block_until_ready(trainer.state.cohort)
