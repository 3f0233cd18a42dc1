"""One environment per seed, each in its own process, simulating while the device learns."""

import multiprocessing
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32

from fastr import envs
from fastr.core import EnvSpec, RunError, UserError
from fastr.envs.patience import Wait
from fastr.envs.processes import PATIENCE_SECONDS, START_SECONDS, how_it_ended, light_start
from fastr.envs.worker import FAILED, RESTORE, STEP, Messages, packed_beginning, work

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
        self._messages = Messages(self.spec, len(seeds))
        self._commands, self._replies = self._messages.commands, self._messages.replies

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
        self._commands["command"] = RESTORE
        commands = self._messages.command_bytes
        everyone = zip(self._peers, commands, episodes, actions, strict=True)
        for peer, command, episode, taken in everyone:
            peer.post(command)
            peer.post(packed_beginning(episode, taken))
        self._collect()
        return self._replies["state"].copy()

    def send(self, actions: Float32[np.ndarray, "seed action"]) -> None:
        """Start one step in every environment; returns at once."""
        if self._in_flight:
            raise RuntimeError("send was called twice without receive")
        if actions.shape != self._commands["action"].shape:
            raise ValueError(f"{actions.shape=} but {self._commands['action'].shape} is needed")
        self._commands["command"], self._commands["action"] = STEP, actions
        for peer, command in zip(self._peers, self._messages.command_bytes, strict=True):
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
        replies = zip(self._peers, self._messages.reply_bytes, self._replies, strict=True)
        for peer, reply_bytes, reply in replies:
            peer.read(peer.connection.recv_bytes_into, reply_bytes, wait=wait)
            if reply["status"] == FAILED:
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
        self._process = context.Process(target=work, args=arguments, daemon=True)
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
