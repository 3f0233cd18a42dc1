"""A simulator's process: one environment behind a pipe, doing what it is told.

A command and its reply are one raw message each, of a fixed layout: nothing is pickled on the way.
"""

import contextlib
import select
import signal
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from jaxtyping import Float32

from fastr import envs
from fastr.core import EnvSpec, UserError
from fastr.envs import Environment, episode_seed
from fastr.envs.processes import end_with_parent

STEP, RESTORE = 0, 1
"""What a command asks for; a restore is followed by a beginning of an episode."""
DONE, FAILED = 0, 1
"""What a reply says; a failure is followed by its text."""


class Messages:
    """One command and one reply of every worker: as arrays, and as the bytes that travel."""

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
        self.command_bytes = _shared_bytes(self.commands)
        self.reply_bytes = _shared_bytes(self.replies)


def _shared_bytes(rows: np.ndarray) -> list[Any]:
    """Every row of a structured array as bytes that share its memory."""
    return [rows[i : i + 1].view(np.uint8) for i in range(len(rows))]


def packed_beginning(episode: int, actions: Float32[np.ndarray, "_ action"]) -> bytes:
    """An episode's number and the actions it is known to have begun with."""
    return np.int64(episode).tobytes() + actions.astype(np.float32).tobytes()


def _unpacked_beginning(payload: bytes, action_dim: int) -> tuple[int, np.ndarray]:
    """The same, on the other end."""
    episode = np.frombuffer(payload, np.int64, count=1)[0]
    actions = np.frombuffer(payload, np.float32, offset=np.int64().itemsize)
    return int(episode), actions.reshape(-1, action_dim)


def work(
    connection: Connection, task: str, frame_skip: int, seed: int, awake_seconds: float
) -> None:
    """Run a worker process: load the environment, then serve until the parent hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Between two steps a closed pipe says the same; this one also ends a simulator that is stuck.
    end_with_parent()
    try:
        environment = envs.load(task, frame_skip)
    except Exception as error:
        connection.send(error if isinstance(error, UserError) else described(error))
        return
    # A closed or broken pipe is how the parent, alive or dead, says that this is the end.
    with contextlib.suppress(EOFError, OSError), contextlib.closing(environment):
        connection.send(environment.spec)
        _Worker(environment, connection, seed, awake_seconds).serve()


class _Worker:
    """One environment and the episode it is in."""

    def __init__(
        self,
        environment: Environment,
        connection: Connection,
        seed: int,
        awake_seconds: float,
    ):
        self._environment, self._connection, self._seed = environment, connection, seed
        self._awake_seconds = awake_seconds
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._episode, self._steps = 0, 0
        self._messages = Messages(environment.spec, 1)
        self._command, self._reply = self._messages.commands[0], self._messages.replies[0]

    def serve(self) -> None:
        """Answer commands for ever."""
        (command,), (reply,) = self._messages.command_bytes, self._messages.reply_bytes
        while True:
            self._stay_awake()
            self._connection.recv_bytes_into(command)
            payload = None
            if self._command["command"] == RESTORE:
                payload = self._connection.recv_bytes()
            try:
                if payload is None:
                    self._step(self._command["action"])
                else:
                    self._restore(payload)
            except Exception as error:
                self._reply["status"] = FAILED
                self._connection.send_bytes(reply)
                place = f"at agent step {self._steps} of episode {self._episode}"
                text = f"{place}: {described(error)}"
                # The name of a file may hold bytes that are no text.
                self._connection.send_bytes(text.encode(errors="backslashreplace"))
            else:
                self._reply["status"] = DONE
                self._connection.send_bytes(reply)

    def _stay_awake(self) -> None:
        """Look for the next command again and again, until it is time to sleep."""
        until = time.monotonic() + self._awake_seconds
        while time.monotonic() < until and not self._poll.poll(0):
            pass

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
        drawn = episode_seed(self._seed, episode, "train")
        return envs.finite_state(self._environment.reset(drawn))

    def _restore(self, payload: bytes) -> None:
        """Start an episode and take the actions it is known to have begun with."""
        episode, actions = _unpacked_beginning(payload, self._environment.spec.action_dim)
        self._reply["state"] = self._first_state(episode)
        for action in actions:
            if self._step(action):
                raise ArithmeticError(f"episode {episode} ended early when it was run again")


def described(error: Exception) -> str:
    """Type, message and place of an error, for a process that cannot see its traceback."""
    if isinstance(error, envs.NotFiniteError | envs.MalformedError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
