"""Greedy returns, episode by episode, in worker processes beside the training.

The workers run the policy with JAX on the CPU, one thread each, so that evaluation neither waits
for the accelerator nor delays it.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fastr.core import UserError
from fastr.envs import Environment, episode_seed, finite_state, finite_step, frame_limit, load
from fastr.envs.cores import usable_cores
from fastr.envs.patience import Wait
from fastr.envs.pool import WorkerError
from fastr.envs.processes import (
    PATIENCE_SECONDS,
    START_SECONDS,
    end_with_parent,
    how_it_ended,
    light_start,
)
from fastr.envs.pulses import Pulse, Pulses
from fastr.envs.worker import described

Leaves = Sequence[np.ndarray]
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


# Between two looks at the workers while their returns are waited for.
LOOK_SECONDS = 0.5
END_SECONDS = 5.0
DEATH = "A process that plays evaluations died"


@dataclass(frozen=True)
class Evaluation:
    """Episodes under way: one future of returns per chunk, for each seed."""

    chunks: list[list[Future]]
    evaluator: "Evaluator"

    def done(self) -> bool:
        """Whether the returns can be had without waiting; WorkerError if they never will be."""
        if all(chunk.done() for chunks in self.chunks for chunk in chunks):
            return True
        self.evaluator.look()
        return False

    def returns(
        self, advance: Callable[[int], None] = lambda _: None
    ) -> Float[np.ndarray, "seed episode"]:
        """The undiscounted return of every episode, waiting for those still under way.

        Tells `advance` how many episodes have ended since it last did.
        """
        for returns in self.evaluator.results({c for chunks in self.chunks for c in chunks}):
            advance(len(returns))
        return np.array([[r for chunk in chunks for r in chunk.result()] for chunks in self.chunks])


class Evaluator:
    """Worker processes that play episodes with snapshots of policies."""

    def __init__(
        self,
        task: str,
        frame_skip: int,
        agent: Any,
        *,
        workers: int,
        patience_seconds: float = PATIENCE_SECONDS,
    ):
        self.workers, self.patience_seconds = workers, patience_seconds
        context = multiprocessing.get_context("spawn")
        others = set(multiprocessing.active_children())
        self.wait = Wait(patience_seconds)
        self.since: dict[Pulse, float] = {}
        """Of that wait, when each worker's last pulse was first seen."""
        with light_start(JAX_PLATFORMS="cpu", XLA_FLAGS=ONE_THREAD):
            self.pulses = Pulses(workers, context)
            self.executor = ProcessPoolExecutor(
                workers, context, _start, (task, frame_skip, agent, self.pulses)
            )
            # The processes start with the first work they are given.
            self.ready = [self.executor.submit(_started) for _ in range(workers)]
        self.processes = set(multiprocessing.active_children()) - others

    def wait_until_started(self) -> None:
        """Wait for workers to start (a quick one may answer for others); WorkerError on failure."""
        for _ in self.results(set(self.ready)):
            pass

    def results(self, waiting: set[Future]) -> Iterator[Any]:
        """What the workers have made, as it comes; WorkerError if something never will."""
        while waiting:
            ended, waiting = wait(waiting, LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in ended:
                if isinstance(future.exception(), BrokenProcessPool):
                    raise self.death()
                yield future.result()
            self.look()

    def look(self) -> None:
        """Raise WorkerError if a worker is dead, or silent for longer than is to be borne."""
        now = self.wait.seconds()
        self.since = {pulse: self.since.get(pulse, now) for pulse in self.pulses.all()}
        pulses = {pulse.process: pulse for pulse in self.since}
        for process in self.processes:
            if process.exitcode is not None:
                raise WorkerError(obituary(pulses.get(process.pid or 0), process.exitcode))
        for pulse, since in self.since.items():
            if pulse.moment and now - since > self.patience_seconds:
                raise WorkerError(
                    f"The evaluation of seed {pulse.seed} was silent for {now - since:.1f} seconds "
                    f"at {pulse.place} and is taken to be stuck."
                )
        if now > max(START_SECONDS, self.patience_seconds) and not self.ready[0].done():
            raise WorkerError(f"The evaluations have not started for {now:.0f} seconds.")

    def death(self) -> WorkerError:
        """Who died, and of what, as soon as the system tells."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            try:
                self.look()
            except WorkerError as error:
                return error
            time.sleep(0.01)
        return WorkerError(f"{DEATH}.")

    def submit(
        self, policies: Sequence[Leaves], seeds: Sequence[int], episodes: range
    ) -> Evaluation:
        """Start these episodes of every seed, each with the leaves of its own policy."""
        share = max(1, -(-len(episodes) * len(seeds) // self.workers))
        parts = [episodes[i : i + share] for i in range(0, len(episodes), share)]
        try:
            chunks = [
                [self.executor.submit(_play, leaves, seed, part) for part in parts]
                for leaves, seed in zip(policies, seeds, strict=True)
            ]
        except BrokenProcessPool:
            raise self.death() from None
        return Evaluation(chunks, self)

    def close(self) -> None:
        """End the workers, dropping episodes under way."""
        self.executor.shutdown(wait=False, cancel_futures=True)
        # By force: one that is stuck would keep this process from ending.
        for process in self.processes:
            process.kill()

    def __enter__(self) -> "Evaluator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def evaluation_workers(seeds: int, episodes: int) -> int:
    """Enough processes to play all episodes at once, within the cores that training leaves."""
    return max(1, min(seeds * episodes, usable_cores() - seeds - 1))


def obituary(pulse: Pulse | None, code: int | None) -> str:
    """What became of a worker, and during what."""
    if pulse is None or not pulse.moment:
        return f"{DEATH}: {how_it_ended(code)}."
    return f"The evaluation of seed {pulse.seed} died at {pulse.place}: {how_it_ended(code)}."


def episode_return(
    environment: Environment,
    act: Callable[[np.ndarray], np.ndarray],
    seed: int,
    beat: Callable[[int], None] = lambda _: None,
) -> float:
    """The undiscounted return of one episode under this policy; `beat` hears of every step."""
    beat(0)
    state, total, over, steps = finite_state(environment.reset(seed)), 0.0, False, 0
    while not over:
        step = finite_step(environment.step(np.asarray(act(state))))
        state, over = step.next_state, step.terminated or step.truncated
        total += step.reward
        steps += 1
        beat(steps)
    return total


class _Player:
    """What a worker process keeps between jobs."""

    environment: Environment
    act: Callable[[Leaves, np.ndarray], Any]
    pulses: Pulses
    place: tuple[int, int, int]
    """Seed, episode and agent step."""
    failure: str = ""
    """Why it could not start."""


def _start(task: str, frame_skip: int, agent: Any, pulses: Pulses) -> None:
    """Prepare a worker: its environment, and the policy compiled for one CPU thread."""
    from fastr.training.policies import compiled

    end_with_parent()
    # Training waits for its simulators, and nobody waits for an evaluation.
    os.nice(10)
    try:
        _Player.environment = load(task, frame_skip)
        frame_limit(task, _Player.environment)
        _Player.act = compiled(agent, _Player.environment.spec)
    except Exception as error:
        # Raised from here, it would be a traceback on the terminal and a death without a reason.
        _Player.failure = str(error) if isinstance(error, UserError) else described(error)
    _Player.pulses = pulses
    pulses.join(os.getpid())


def _started() -> int:
    """The number of this process; WorkerError with the reason if it could not start."""
    if _Player.failure:
        reason = _Player.failure.removesuffix(".")
        raise WorkerError(f"A process that plays evaluations cannot start: {reason}.")
    return os.getpid()


def _play(leaves: Leaves, seed: int, episodes: range) -> list[float]:
    """The returns of some episodes of one seed."""
    _started()
    try:
        return [_episode(leaves, seed, episode) for episode in episodes]
    except Exception as error:
        _, episode, step = _Player.place
        message = f"The evaluation of seed {seed} failed at agent step {step + 1} of episode "
        raise WorkerError(f"{message}{episode}: {described(error)}.") from None
    finally:
        _Player.pulses.rest()


def _episode(leaves: Leaves, seed: int, episode: int) -> float:
    """The return of one episode, told step by step to whoever waits for it."""

    def beat(step: int) -> None:
        _Player.place = seed, episode, step
        _Player.pulses.beat(*_Player.place)

    drawn = episode_seed(seed, episode, "evaluate")
    return episode_return(
        _Player.environment, lambda state: _Player.act(leaves, state), drawn, beat
    )
