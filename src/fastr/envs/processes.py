"""Worker processes: how they start and end, and a pool with one simulator per seed.

A worker is single-threaded, never imports JAX unless its own work needs it, ignores Ctrl-C and
SIGTERM, and ends with its parent. Commands and replies of the pool have a fixed binary layout
(`Messages`); everything rare is pickled.
"""

import contextlib
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32

from fastr import envs
from fastr.core import PATIENCE_SECONDS, EnvSpec, RunError, UserError
from fastr.envs import names

START_SECONDS = 300.0
"""Longest time to start: many workers that import at once on few cores are slow, not stuck."""
_END_SECONDS = 2.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class WorkerError(RunError):
    """A worker process failed; the message names its seed and the cause."""


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Start and end of a worker


class Worker:
    """The parent's end of one worker process; every failure is a WorkerError with its name."""

    def __init__(self, name: str, service: Callable[..., Any], *arguments: Any, **variables: str):
        """Start a process with these environment variables; there `service(*arguments)` serves."""
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        # Kept, because Connection.poll builds one at every call, which takes longer than reading.
        self._poll = select.poll()
        self._poll.register(self.connection, select.POLLIN)
        self.process = context.Process(
            target=_work, args=(theirs, _made(), service, *arguments), daemon=True
        )
        with _light_start(_ONE_THREAD | variables):
            self.process.start()
        # If this end stayed open here, a dead worker would look like a silent one.
        theirs.close()

    def started(self, seconds: float) -> EnvSpec:
        """Wait until the worker can serve; the sizes of its environment."""
        answer = self.read(self.connection.recv, seconds=seconds)
        if isinstance(answer, UserError):
            raise answer
        if isinstance(answer, str):
            raise self.error(f"failed to start: {answer}")
        return answer

    def read(self, receive: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Receive one message; WorkerError if none comes within this time."""
        if not self._poll.poll(1_000 * seconds):
            raise self.error(f"was silent for {seconds:.1f} seconds and is taken to be stuck")
        return self.use(receive, *arguments)

    def use(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the connection; WorkerError if the process has died."""
        try:
            return method(*arguments)
        except (EOFError, OSError):
            self.process.join(_END_SECONDS)
            code = self.process.exitcode
            how = f"its process ended with exit code {code}"
            if code is not None and code < 0:
                how = f"it was killed by {signal.Signals(-code).name}"
            raise self.error(f"died: {how}") from None

    def error(self, what: str) -> WorkerError:
        """A sentence about this worker."""
        return WorkerError(f"The {self.name} {what}.")

    def end(self, seconds: float = 0.0) -> None:
        """Wait so long for the process to end by itself, then kill it."""
        self.process.join(seconds)
        self.process.kill()
        self.process.join()


@contextlib.contextmanager
def _light_start(variables: dict[str, str]) -> Iterator[None]:
    """What a process started in here inherits: a clean main module, deafness, variables."""
    # The first start also starts multiprocessing's tracker, which unblocks the signals below.
    resource_tracker.ensure_running()
    # Ctrl-C, and the SIGTERM of a batch system, reach the whole process group: the parent saves and
    # needs its workers for that, so they must not react even while they are importing.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    # Spawn runs the parent's main module again in the child. That would import JAX there, and would
    # train again from a script that does not guard its main part.
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _made() -> bytes:
    """The environments' functions of this program, which may be defined in its main module."""
    if not names.MADE:
        return b""
    import cloudpickle

    return cloudpickle.dumps(names.MADE)


def _work(
    connection: Connection, made: bytes, service: Callable[..., Any], *arguments: Any
) -> None:
    """Run a worker process."""
    end_with_parent()
    if made:
        import cloudpickle

        names.MADE.update(cloudpickle.loads(made))
    try:
        served = service(*arguments)
    except Exception as error:
        connection.send(error if isinstance(error, UserError) else described(error))
        return
    # The parent ends a worker by closing the pipe, or by its own death.
    with contextlib.suppress(EOFError, OSError):
        connection.send(served.spec)
        served.serve(connection)


def end_with_parent() -> None:
    """End this worker process as soon as its parent has ended, even during a stuck step."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def described(error: Exception) -> str:
    """Type, message and place of an error, for a process that cannot see its traceback."""
    if isinstance(error, envs.SimulatorError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"


# The pool of simulators


class Steps(NamedTuple):
    """One agent step of every environment."""

    reward: Float32[np.ndarray, " seed"]
    next_state: Float32[np.ndarray, "seed state"]
    """The real next state, also at an episode's end."""
    continues: Float32[np.ndarray, " seed"]
    """1 unless next_state is terminal."""
    over: Bool[np.ndarray, " seed"]
    """The episode ended, by termination or by truncation."""
    state: Float32[np.ndarray, "seed state"]
    """What to act on next: next_state, or the first state of the next episode."""


class Messages:
    """Layout of the pool's messages: one command and one reply per worker, as arrays and bytes.

    A RESTORE is followed by an episode's number and its first actions, pickled; a FAILED by a text.
    """

    STEP, RESTORE = 0, 1
    DONE, FAILED = 0, 1

    def __init__(self, spec: EnvSpec, workers: int):
        self.commands = np.zeros(
            workers, [("command", np.int32), ("action", np.float32, (spec.action_dim,))]
        )
        self.replies = np.zeros(
            workers,
            [
                ("status", np.int32),
                ("over", np.int32),
                ("reward", np.float32),
                ("continues", np.float32),
                ("next_state", np.float32, (spec.state_dim,)),
                ("state", np.float32, (spec.state_dim,)),
            ],
        )
        # Each row as bytes that share its memory.
        views: Any = [self.commands, self.replies]
        self.command_bytes, self.reply_bytes = (
            [rows[i : i + 1].view(np.uint8) for i in range(workers)] for rows in views
        )


class EnvPool:
    """One environment per seed: send every one its action, do something else, receive."""

    spec: EnvSpec

    def __init__(
        self,
        task: str,
        frame_skip: int,
        seeds: Sequence[int],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        awake_seconds: float = 0.0,
    ):
        """Start the workers.

        For `awake_seconds` after a step, a worker waits for the next action without sleeping: that
        keeps a core busy and saves the time to wake up.
        """
        envs.parse(task)
        self._patience = patience_seconds
        self._in_flight = False
        self._workers: list[Worker] = []
        try:
            for seed in seeds:
                name, arguments = f"environment of seed {seed}", (task, frame_skip, seed)
                self._workers.append(Worker(name, _Simulator, *arguments, awake_seconds))
            start_seconds = max(START_SECONDS, patience_seconds)
            for worker in self._workers:
                self.spec = worker.started(start_seconds)
        except BaseException:
            self.close()
            raise
        self._messages = Messages(self.spec, len(seeds))
        self._commands, self._replies = self._messages.commands, self._messages.replies

    def reset(self, episodes: Sequence[int]) -> Float32[np.ndarray, "seed state"]:
        """Start the episode of this number in every environment; their first states."""
        nothing = np.zeros((0, self.spec.action_dim), np.float32)
        return self.restore(episodes, [nothing] * len(self._workers))

    def restore(
        self, episodes: Sequence[int], actions: Sequence[Float32[np.ndarray, "_ action"]]
    ) -> Float32[np.ndarray, "seed state"]:
        """Start these episodes and replay their first actions; the states reached."""
        if self._in_flight:
            self.receive()
        self._post(Messages.RESTORE)
        for worker, episode, taken in zip(self._workers, episodes, actions, strict=True):
            worker.use(worker.connection.send, (episode, taken))
        self._collect()
        return self._replies["state"].copy()

    def send(self, actions: Float32[np.ndarray, "seed action"]) -> None:
        """Start one step in every environment; returns at once."""
        self._commands["action"] = actions
        self._post(Messages.STEP)
        self._in_flight = True

    def receive(self) -> Steps:
        """Wait for the steps that were sent; an episode that is over is followed by its next."""
        self._in_flight = False
        self._collect()
        # Copies, because the next step overwrites the buffer and jax may still be reading.
        copies = {name: self._replies[name].copy() for name in Steps._fields}
        return Steps(**(copies | {"over": copies["over"].astype(bool)}))

    def close(self) -> None:
        """End the workers, those that are still busy by force."""
        # All hang up first, so that the workers end at the same time.
        for worker in self._workers:
            worker.connection.close()
        deadline = time.monotonic() + _END_SECONDS
        for worker in self._workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        self._workers = []

    def __enter__(self) -> "EnvPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, command: int) -> None:
        self._commands["command"] = command
        for worker, row in zip(self._workers, self._messages.command_bytes, strict=True):
            worker.use(worker.connection.send_bytes, row)

    def _collect(self) -> None:
        """Wait for one reply of every worker."""
        replies = zip(self._workers, self._messages.reply_bytes, self._replies, strict=True)
        for worker, row, reply in replies:
            worker.read(worker.connection.recv_bytes_into, row, seconds=self._patience)
            if reply["status"] == Messages.FAILED:
                text = worker.read(worker.connection.recv, seconds=self._patience)
                raise worker.error(f"failed {text}")


class _Simulator:
    """In a worker process: one environment and the episode it is in."""

    def __init__(self, task: str, frame_skip: int, seed: int, awake_seconds: float):
        self._environment = envs.load(task, frame_skip)
        self.spec = self._environment.spec
        self._seed, self._awake_seconds = seed, awake_seconds
        self._episode, self._steps = 0, 0
        self._messages = Messages(self.spec, 1)
        self._command, self._reply = self._messages.commands[0], self._messages.replies[0]

    def serve(self, connection: Connection) -> None:
        """Answer commands."""
        command, reply = self._messages.command_bytes[0], self._messages.reply_bytes[0]
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        with contextlib.closing(self._environment):
            while True:
                until = time.monotonic() + self._awake_seconds
                while time.monotonic() < until and not poll.poll(0):
                    pass
                connection.recv_bytes_into(command)
                restore = self._command["command"] == Messages.RESTORE
                failure = self._failure(connection.recv() if restore else None)
                self._reply["status"] = Messages.FAILED if failure else Messages.DONE
                connection.send_bytes(reply)
                if failure:
                    connection.send(failure)

    def _failure(self, beginning: tuple[int, np.ndarray] | None) -> str:
        """Step, or restore the beginning of an episode; what went wrong, or nothing."""
        try:
            if beginning is None:
                self._step(self._command["action"])
            else:
                self._restore(*beginning)
        except Exception as error:
            return f"at agent step {self._steps} of episode {self._episode}: {described(error)}"
        return ""

    def _step(self, action: np.ndarray) -> bool:
        """Fill in the reply to one action; whether the episode is over."""
        self._steps += 1
        step = envs.finite_step(self._environment.step(action))
        over = step.terminated or step.truncated
        reply = self._reply
        reply["reward"], reply["over"] = step.reward, over
        reply["continues"] = 0.0 if step.terminated else 1.0
        reply["next_state"] = step.next_state
        reply["state"] = self._first_state(self._episode + 1) if over else step.next_state
        return over

    def _first_state(self, episode: int) -> np.ndarray:
        self._episode, self._steps = episode, 0
        seed = envs.episode_seed(self._seed, episode, "train")
        return envs.finite_state(self._environment.reset(seed))

    def _restore(self, episode: int, actions: np.ndarray) -> None:
        self._reply["state"] = self._first_state(episode)
        for action in actions:
            if self._step(action):
                raise envs.SimulatorError(f"episode {episode} ended early when it was replayed")
