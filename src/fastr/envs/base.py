"""The interface of every environment, the seeds of its episodes, the check for finite numbers."""

import abc
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, UInt8

from fastr.core import EnvSpec

_LARGEST = float(np.finfo(np.float32).max)
_STREAMS = ("train", "evaluate")


class Step(NamedTuple):
    """Result of one action; the next state is the real one, also at the end of an episode."""

    reward: float
    next_state: Float32[np.ndarray, " state"]
    terminated: bool
    truncated: bool


class Bounds(NamedTuple):
    """What -1 and 1 mean to each actuator, in the simulator's own units."""

    low: Float64[np.ndarray, " action"]
    high: Float64[np.ndarray, " action"]


class Part(NamedTuple):
    """Consecutive entries of a state, by the simulator's name for them."""

    name: str
    size: int


class Robot(NamedTuple):
    """MuJoCo's model and data of a task, and the observation of its present state."""

    model: Any
    data: Any
    observe: Callable[[], Float32[np.ndarray, " state"]]


class SimulatorError(Exception):
    """A simulator returned something unusable; the message says what."""


class Environment(abc.ABC):
    """One task: flat float32 states, actions in [-1, 1] held for `frame_skip` frames."""

    spec: EnvSpec
    episode_frames: int | None
    bounds: Bounds
    parts: tuple[Part, ...]
    """The parts of a state, in the order in which they are laid end to end."""

    @abc.abstractmethod
    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        """Start the episode of this seed, independent of all earlier ones; its first state."""

    @abc.abstractmethod
    def step(self, action: Float32[np.ndarray, " action"]) -> Step:
        """Hold one action; the reward is the sum over its frames."""

    @abc.abstractmethod
    def frame(self, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
        """Draw the scene as RGB, if loaded with render_mode="rgb_array"."""

    @abc.abstractmethod
    def robot(self) -> Robot | None:
        """The MuJoCo model and its state, if there is one."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free the simulator."""


def episode_seed(seed: int, episode: int, stream: Literal["train", "evaluate"]) -> int:
    """32-bit seed of one episode: even in training, odd in evaluation, so they never coincide."""
    number = _STREAMS.index(stream)
    random = np.random.SeedSequence([seed, episode, number]).generate_state(1, np.uint32)
    return int(random[0]) // 2 * 2 + number


def finite_step(step: Step) -> Step:
    """The same step; SimulatorError if its reward or next state is not finite in float32."""
    if not abs(step.reward) <= _LARGEST:
        raise SimulatorError(f"the reward is {step.reward}, not a finite number in float32")
    finite_state(step.next_state)
    return step


def finite_state(state: Float32[np.ndarray, " state"]) -> Float32[np.ndarray, " state"]:
    """The same state; SimulatorError if one of its entries is not finite."""
    if not np.isfinite(state).all():
        where = np.flatnonzero(~np.isfinite(state))[0]
        raise SimulatorError(f"the state is not finite: its number {where} is {state[where]}")
    return state
