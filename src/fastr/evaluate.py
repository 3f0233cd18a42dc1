"""Greedy returns, episode by episode, in worker processes beside the training.

The workers run the policy with JAX on the CPU, one thread each, so that evaluation neither waits
for the accelerator nor delays it.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
from jaxtyping import Float

from fastr.envs import Environment, episode_seed, load
from fastr.processes import end_with_parent, light_start, usable_cores

Leaves = Sequence[np.ndarray]
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@dataclass(frozen=True)
class Evaluation:
    """Episodes under way: one future of returns per chunk, for each seed."""

    chunks: list[list[Future]]

    def done(self) -> bool:
        """Whether the returns can be had without waiting."""
        return all(chunk.done() for chunks in self.chunks for chunk in chunks)

    def returns(self) -> Float[np.ndarray, "seed episode"]:
        """The undiscounted return of every episode, waiting for those still under way."""
        return np.array([[r for chunk in chunks for r in chunk.result()] for chunks in self.chunks])


class Evaluator:
    """Worker processes that play episodes with snapshots of policies."""

    def __init__(self, task: str, frame_skip: int, agent: Any, *, workers: int):
        self.workers = workers
        with light_start(JAX_PLATFORMS="cpu", XLA_FLAGS=ONE_THREAD):
            self.executor = ProcessPoolExecutor(
                workers, get_context("spawn"), _start, (task, frame_skip, agent)
            )
            # The processes start with the first work they are given.
            self.ready = [self.executor.submit(os.getpid) for _ in range(workers)]

    def submit(
        self, policies: Sequence[Leaves], seeds: Sequence[int], episodes: range
    ) -> Evaluation:
        """Start these episodes of every seed, each with the leaves of its own policy."""
        share = max(1, -(-len(episodes) * len(seeds) // self.workers))
        parts = [episodes[i : i + share] for i in range(0, len(episodes), share)]
        chunks = [
            [self.executor.submit(_play, leaves, seed, part) for part in parts]
            for leaves, seed in zip(policies, seeds, strict=True)
        ]
        return Evaluation(chunks)

    def close(self) -> None:
        """End the workers, dropping episodes under way."""
        self.executor.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> "Evaluator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def evaluation_workers(seeds: int, episodes: int) -> int:
    """Enough processes to play all episodes at once, within the cores that training leaves."""
    return max(1, min(seeds * episodes, len(usable_cores()) - seeds - 1))


def episode_return(
    environment: Environment, act: Callable[[np.ndarray], np.ndarray], seed: int
) -> float:
    """The undiscounted return of one episode under this policy."""
    state, total, over = environment.reset(seed), 0.0, False
    while not over:
        step = environment.step(np.asarray(act(state)))
        state, over = step.next_state, step.terminated or step.truncated
        total += step.reward
    return total


class _Player:
    """What a worker process keeps between jobs."""

    environment: Environment
    act: Callable[[Leaves, np.ndarray], Any]


def _start(task: str, frame_skip: int, agent: Any) -> None:
    """Prepare a worker: its environment, and the policy compiled for one CPU thread."""
    from fastr.policies import compiled

    end_with_parent()
    # Training waits for its simulators, and nobody waits for an evaluation.
    os.nice(10)
    _Player.environment = load(task, frame_skip)
    _Player.act = compiled(agent, _Player.environment.spec)


def _play(leaves: Leaves, seed: int, episodes: range) -> list[float]:
    """The returns of some episodes of one seed."""
    return [
        episode_return(
            _Player.environment,
            lambda state: _Player.act(leaves, state),
            episode_seed(seed, episode, "evaluate"),
        )
        for episode in episodes
    ]
