"""Greedy returns, episode by episode, in worker processes while the training goes on.

The workers run the policy with JAX on the CPU, one thread each, so that evaluation neither waits
for the accelerator nor delays it.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fastr.agents.base import AbstractPolicy, AgentConfig
from fastr.core import EnvSpec
from fastr.envs import Environment, episode_seed, finite_state, finite_step, frame_limit, load
from fastr.envs.processes import PATIENCE_SECONDS, START_SECONDS, Worker, described, usable_cores
from fastr.training.learner import Learner

Leaves = Sequence[np.ndarray]


def template(agent: AgentConfig, spec: EnvSpec) -> AbstractPolicy:
    """The structure of an agent's policy, with shapes in place of arrays."""
    return jax.eval_shape(
        lambda seed: Learner.init(agent, spec, 1, seed).policy(),
        jax.ShapeDtypeStruct((), jnp.int32),
    )


def compiled(agent: AgentConfig, spec: EnvSpec) -> Callable[[Leaves, np.ndarray], jax.Array]:
    """The policy as a function of its arrays and a state."""
    structure = jax.tree.structure(template(agent, spec))
    return jax.jit(lambda leaves, state: jax.tree.unflatten(structure, leaves)(state))


def snapshots(policies: AbstractPolicy, seeds: int) -> list[list[np.ndarray]]:
    """The arrays of each seed's policy, on the host, from policies stacked over seeds."""
    stacked = jax.device_get(jax.tree.leaves(policies))
    return [[np.array(leaf[seed]) for leaf in stacked] for seed in range(seeds)]


ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "PJRT_NPROC": "1"}
"""A policy is so small that it takes longer to share it among threads than to compute it."""
BEAT_SECONDS = 1.0
"""Longest time between two signs of life of a worker whose agent steps are short."""


@dataclass(frozen=True)
class Evaluation:
    """Episodes under way: one future of returns per chunk, for each seed."""

    chunks: list[list[Future]]
    started: list[Future]

    def done(self) -> bool:
        """Whether all episodes are over; WorkerError if a worker has failed."""
        futures = [*self.started, *(chunk for chunks in self.chunks for chunk in chunks)]
        over = [future for future in futures if future.done()]
        for future in over:
            future.result()
        return len(over) == len(futures)

    def returns(
        self, advance: Callable[[int], None] = lambda _: None
    ) -> Float[np.ndarray, "seed episode"]:
        """The undiscounted return of every episode, waiting for those still under way.

        Calls `advance` with the number of episodes that have ended since the last call.
        """
        for future in self.started:
            future.result()
        for future in as_completed(chunk for chunks in self.chunks for chunk in chunks):
            advance(len(future.result()))
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
        self._patience = patience_seconds
        variables = {"JAX_PLATFORMS": "cpu"} | ONE_THREAD
        self.workers = [
            Worker("evaluation", _Player, task, frame_skip, agent, **variables)
            for _ in range(workers)
        ]
        # A thread per worker waits for its messages, so that the training need not.
        self._threads = ThreadPoolExecutor(workers)
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._started = [self._threads.submit(self._start, worker) for worker in self.workers]

    def wait_until_started(self) -> None:
        """Wait until all workers can play; WorkerError on failure."""
        for future in self._started:
            future.result()

    def submit(
        self, policies: Sequence[Leaves], seeds: Sequence[int], episodes: range
    ) -> Evaluation:
        """Start these episodes of every seed, each with the leaves of its own policy."""
        share = max(1, -(-len(episodes) * len(seeds) // len(self.workers)))
        parts = [episodes[i : i + share] for i in range(0, len(episodes), share)]
        chunks = [
            [self._threads.submit(self._play, leaves, seed, part) for part in parts]
            for leaves, seed in zip(policies, seeds, strict=True)
        ]
        return Evaluation(chunks, self._started)

    def close(self) -> None:
        """End the workers, dropping episodes under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.end()

    def __enter__(self) -> "Evaluator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, worker: Worker) -> None:
        try:
            worker.started(max(START_SECONDS, self._patience))
        finally:
            self._idle.put(worker)

    def _play(self, leaves: Leaves, seed: int, episodes: range) -> list[float]:
        """In a thread: the returns of some episodes of one seed, from an idle worker."""
        worker = self._idle.get()
        worker.name = f"evaluation of seed {seed}"
        try:
            worker.use(worker.connection.send, (leaves, seed, episodes))
            while True:
                message = worker.read(worker.connection.recv, seconds=self._patience + BEAT_SECONDS)
                if isinstance(message, list):
                    return message
                if isinstance(message, str):
                    worker.name = f"evaluation of seed {seed}"
                    raise worker.error(message)
                worker.name = f"evaluation of seed {seed} in episode {message}"
        finally:
            self._idle.put(worker)


class _Player:
    """In a worker process: an environment, and the policy compiled for one CPU thread.

    It answers a job with episode numbers as signs of life, then with returns or a failure's text.
    """

    def __init__(self, task: str, frame_skip: int, agent: Any):
        from fastr.training.evaluate import compiled

        # Training waits for its simulators, but not for an evaluation.
        os.nice(10)
        self.environment = load(task, frame_skip)
        frame_limit(task, self.environment)
        self.spec = self.environment.spec
        self.act = compiled(agent, self.spec)

    def serve(self, connection: Connection) -> None:
        """Play the episodes of one job after the other."""
        with contextlib.closing(self.environment):
            while True:
                connection.send(self.played(connection, *connection.recv()))

    def played(
        self, connection: Connection, leaves: Leaves, seed: int, episodes: range
    ) -> list[float] | str:
        """The returns of these episodes, or what failed."""
        # Once: as NumPy arrays they would be handed over again at every agent step.
        leaves, returns = jax.device_put(leaves), []
        for episode in episodes:
            connection.send(episode)
            total, steps, beat = 0.0, 1, time.monotonic()
            start = episode_seed(seed, episode, "evaluate")
            try:
                for reward in rewards(
                    self.environment, lambda state: self.act(leaves, state), start
                ):
                    total += reward
                    steps += 1
                    if time.monotonic() - beat > BEAT_SECONDS:
                        connection.send(episode)
                        beat = time.monotonic()
            except Exception as error:
                return f"failed at agent step {steps} of episode {episode}: {described(error)}"
            returns.append(total)
        return returns


def rewards(
    environment: Environment, act: Callable[[np.ndarray], Any], seed: int
) -> Iterator[float]:
    """The rewards of one episode under this policy, step by step."""
    state, over = finite_state(environment.reset(seed)), False
    while not over:
        step = finite_step(environment.step(np.asarray(act(state))))
        state, over = step.next_state, step.terminated or step.truncated
        yield step.reward


def evaluation_workers(seeds: int, episodes: int) -> int:
    """Enough processes to play all episodes at once, within the cores that training leaves."""
    return max(1, min(seeds * episodes, usable_cores() - seeds - 1))
