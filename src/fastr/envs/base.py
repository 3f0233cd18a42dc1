"""The interface of every environment, and the check that what it gives is finite."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, UInt8

from fastr.core import EnvSpec

_LARGEST = float(np.finfo(np.float32).max)


class Step(NamedTuple):
    """What one action led to; the next state is the real one, also when the episode is over."""

    reward: float
    next_state: Float32[np.ndarray, " state"]
    terminated: bool
    truncated: bool


class Bounds(NamedTuple):
    """What the ends of [-1, 1] mean to the simulator, actuator by actuator, in its own units."""

    low: Float64[np.ndarray, " action"]
    high: Float64[np.ndarray, " action"]


class Part(NamedTuple):
    """Consecutive entries of a state, under the simulator's name for them."""

    name: str
    size: int


class Robot(NamedTuple):
    """The MuJoCo model behind a task, its state, and what an agent would see of it now."""

    model: Any
    data: Any
    observe: Callable[[], Float32[np.ndarray, " state"]]


class NotFiniteError(ArithmeticError):
    """A reward or a state that would poison everything learned from it; says which and what."""


class MalformedError(TypeError):
    """What an environment returned has another form than it must have; says which."""


def finite_step(step: Step) -> Step:
    """The step itself; NotFiniteError if its reward or its next state is not finite."""
    if not abs(step.reward) <= _LARGEST:
        raise NotFiniteError(f"the reward is {step.reward}, not a finite number in float32")
    finite_state(step.next_state)
    return step


def finite_state(state: Float32[np.ndarray, " state"]) -> Float32[np.ndarray, " state"]:
    """The state itself; NotFiniteError if one of its numbers is not finite."""
    if not np.isfinite(state).all():
        where = np.flatnonzero(~np.isfinite(state))[0]
        raise NotFiniteError(f"the state is not finite: its number {where} is {state[where]}")
    return state


class Environment(abc.ABC):
    """One task: flat float32 states, actions in [-1, 1] held for `frame_skip` frames."""

    spec: EnvSpec
    episode_frames: int | None
    bounds: Bounds
    parts: tuple[Part, ...]
    """What a state is made of, in order."""

    @abc.abstractmethod
    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        """Start the episode that this seed names, whatever was run before: its first state."""

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
        """Free what the simulator holds."""
