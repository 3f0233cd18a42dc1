"""One environment per seed, each in its own process, simulating while the device learns.

A step costs two raw messages per worker, each of a fixed layout: nothing is pickled on the way.
"""

import contextlib
import multiprocessing
import select
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32

from fastr import envs
from fastr.envs import Environment, episode_seed
from fastr.errors import RunError, UserError
from fastr.patience import Wait
from fastr.processes import (
    PATIENCE_SECONDS,
    START_SECONDS,
    end_with_parent,
    how_it_ended,
    light_start,
)
from fastr.spec import EnvSpec

_STEP, _RESTORE = 0, 1
_DONE, _FAILED = 0, 1
_CLOSE_SECONDS = 2.0


class WorkerError(RunError):
    """An environment's process failed; the message names its seed and what happened."""


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

        A worker waits for its next action without sleeping for the first `awake_seconds`: it then
        keeps a core busy, and is at work at once instead of when the system has woken it.
        """
        envs.parse(task)
        self._patience_seconds = patience_seconds
        self._in_flight = False
        self._peers: list[_Peer] = []
        try:
            for seed in seeds:
                self._peers.append(_Peer(task, frame_skip, seed, awake_seconds))
            specs = [peer.hello(max(START_SECONDS, patience_seconds)) for peer in self._peers]
        except BaseException:
            self.close()
            raise
        self.spec = specs[0]
        self._commands = np.zeros(len(seeds), _command(self.spec))
        self._replies = np.zeros(len(seeds), _reply(self.spec))
        self._command_bytes = [_bytes(self._commands, i) for i in range(len(seeds))]
        self._reply_bytes = [_bytes(self._replies, i) for i in range(len(seeds))]

    def reset(self, episodes: Sequence[int]) -> Float32[np.ndarray, "seed state"]:
        """Start the episode of this number in every environment: their first states."""
        nothing = np.zeros((0, self.spec.action_dim), np.float32)
        return self.restore(episodes, [nothing] * len(self._peers))

    def restore(
        self, episodes: Sequence[int], actions: Sequence[Float32[np.ndarray, "_ action"]]
    ) -> Float32[np.ndarray, "seed state"]:
        """Go to where these actions lead in these episodes: the states there."""
        if self._in_flight:
            self.receive()
        self._commands["command"] = _RESTORE
        messages = zip(self._peers, self._command_bytes, episodes, actions, strict=True)
        for peer, command, episode, taken in messages:
            peer.post(command)
            peer.post(np.int64(episode).tobytes() + taken.astype(np.float32).tobytes())
        self._collect()
        return self._replies["state"].copy()

    def send(self, actions: Float32[np.ndarray, "seed action"]) -> None:
        """Start one step in every environment; returns at once."""
        if self._in_flight:
            raise RuntimeError("send was called twice without receive")
        if actions.shape != self._commands["action"].shape:
            raise ValueError(f"{actions.shape=} but {self._commands['action'].shape} is needed")
        self._commands["command"], self._commands["action"] = _STEP, actions
        for peer, command in zip(self._peers, self._command_bytes, strict=True):
            peer.post(command)
        self._in_flight = True

    def receive(self) -> Steps:
        """Wait for the steps that were sent; an episode that is over is followed by its next."""
        if not self._in_flight:
            raise RuntimeError("receive was called without send")
        self._in_flight = False
        self._collect()
        # Copies, because the next step overwrites the buffer and jax may still be reading.
        return Steps(
            reward=self._replies["reward"].copy(),
            next_state=self._replies["next_state"].copy(),
            continues=self._replies["continues"].copy(),
            over=self._replies["over"].astype(bool),
            state=self._replies["state"].copy(),
        )

    def close(self) -> None:
        """End the workers, by force those that are still busy; again does nothing."""
        # All hang up first, so that the workers end at the same time.
        for peer in self._peers:
            peer.connection.close()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for peer in self._peers:
            peer.end(deadline)
        self._peers = []

    def __enter__(self) -> "EnvPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _collect(self) -> None:
        """Wait for one reply of every worker."""
        wait = Wait(self._patience_seconds)
        for i, (peer, reply) in enumerate(zip(self._peers, self._reply_bytes, strict=True)):
            peer.read(peer.connection.recv_bytes_into, reply, wait=wait)
            if self._replies["status"][i] == _FAILED:
                text = peer.read(peer.connection.recv_bytes, wait=wait)
                raise peer.error(f"failed {text.decode()}")


class _Peer:
    """The parent's end of one worker."""

    def __init__(self, task: str, frame_skip: int, seed: int, awake_seconds: float):
        context = multiprocessing.get_context("spawn")
        self._seed = seed
        self.connection, theirs = context.Pipe()
        # Kept, because Connection.poll builds one at every call, which takes longer than reading.
        self._poll = select.poll()
        self._poll.register(self.connection, select.POLLIN)
        arguments = (theirs, task, frame_skip, seed, awake_seconds)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        with light_start():
            self._process.start()
        # If this end stayed open here, a dead worker would look like a silent one.
        theirs.close()

    def hello(self, patience: float) -> EnvSpec:
        """Wait until the worker has loaded its environment."""
        answer = self.read(self.connection.recv, wait=Wait(patience))
        if isinstance(answer, UserError):
            raise answer
        if isinstance(answer, str):
            raise self.error(f"failed to load: {answer}")
        return answer

    def post(self, message: Any) -> None:
        """Send bytes."""
        try:
            self.connection.send_bytes(message)
        except OSError:
            raise self._death() from None

    def read(self, receive: Callable[..., Any], *arguments: Any, wait: Wait) -> Any:
        """Receive one message, unless the worker is dead or silent for too long."""
        try:
            while not self._poll.poll(1_000 * wait.look_seconds):
                if (seconds := wait.seconds()) >= wait.patience_seconds:
                    said = f"was silent for {seconds:.1f} seconds and is taken to be stuck"
                    raise self.error(said)
            return receive(*arguments)
        except (EOFError, OSError):
            raise self._death() from None

    def end(self, deadline: float) -> None:
        """Wait for the process to end, then make it."""
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def error(self, what: str) -> WorkerError:
        """Name the environment that it happened to."""
        return WorkerError(f"The environment of seed {self._seed} {what}.")

    def _death(self) -> WorkerError:
        self._process.join(_CLOSE_SECONDS)
        return self.error(f"died: {how_it_ended(self._process.exitcode)}")


def _command(spec: EnvSpec) -> np.dtype:
    """Layout of a message to a worker; a restore is followed by its episode and actions."""
    return np.dtype([("command", np.int32), ("action", np.float32, (spec.action_dim,))])


def _reply(spec: EnvSpec) -> np.dtype:
    """Layout of a message from a worker; a failure is followed by its text."""
    return np.dtype(
        [
            ("status", np.int32),
            ("over", np.int32),
            ("reward", np.float32),
            ("continues", np.float32),
            ("next_state", np.float32, (spec.state_dim,)),
            ("state", np.float32, (spec.state_dim,)),
        ]
    )


def _bytes(rows: np.ndarray, i: int) -> Any:
    """One row of a structured array as bytes that share its memory."""
    return rows[i : i + 1].view(np.uint8)


def _work(
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
        self._command = np.zeros(1, _command(environment.spec))
        self._reply = np.zeros(1, _reply(environment.spec))

    def serve(self) -> None:
        """Answer commands for ever."""
        command, reply = _bytes(self._command, 0), _bytes(self._reply, 0)
        while True:
            self._stay_awake()
            self._connection.recv_bytes_into(command)
            payload = None
            if self._command["command"][0] == _RESTORE:
                payload = self._connection.recv_bytes()
            try:
                if payload is None:
                    self._step(self._command["action"][0])
                else:
                    self._restore(payload)
            except Exception as error:
                self._reply["status"] = _FAILED
                self._connection.send_bytes(reply)
                place = f"at agent step {self._steps} of episode {self._episode}"
                self._connection.send_bytes(f"{place}: {described(error)}".encode())
            else:
                self._reply["status"] = _DONE
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
        reply = self._reply[0]
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
        episode = int(np.frombuffer(payload, np.int64, count=1)[0])
        actions = np.frombuffer(payload, np.float32, offset=np.int64().itemsize)
        self._reply[0]["state"] = self._first_state(episode)
        for action in actions.reshape(-1, self._environment.spec.action_dim):
            if self._step(action):
                raise ArithmeticError(f"episode {episode} ended early when it was run again")


def described(error: Exception) -> str:
    """Type, message and place of an error, for a process that cannot see its traceback."""
    if isinstance(error, envs.NotFiniteError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
