"""What the suite and Gymnasium share: held actions, rescaled, and flat states."""

import abc
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8

from fastr.core import UserError, counted
from fastr.envs.base import Bounds, Environment, MalformedError, Step
from fastr.envs.names import GymTask, SuiteTask
from fastr.envs.rendering import TALLEST, WIDEST, reported_rendering


class Affine:
    """Maps [-1, 1] onto an action space's bounds; what lies outside is clipped."""

    def __init__(self, low: np.ndarray, high: np.ndarray):
        # A centre and a half width leave actions exactly as they are where the bounds are -1 and 1.
        self.low, self.high = low.astype(np.float64), high.astype(np.float64)
        self.centre, self.half = (self.low + self.high) / 2, (self.high - self.low) / 2

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """The action in the simulator's own units and shape."""
        action = action.reshape(self.centre.shape)
        return np.clip(self.centre + self.half * action, self.low, self.high)

    @property
    def bounds(self) -> Bounds:
        """The bounds, one entry per actuator."""
        return Bounds(np.ravel(self.low), np.ravel(self.high))


class Frame(NamedTuple):
    """One frame of a simulator."""

    reward: float
    terminated: bool
    truncated: bool


class Simulator(Environment):
    """What the suite and Gymnasium share: held actions and flat states."""

    _name: SuiteTask | GymTask
    _frame_skip: int
    _render_mode: str | None
    _rescaled: Affine
    _keys: tuple[str, ...] | None
    """Of the observation's parts, in order; None if it is a single array."""

    @abc.abstractmethod
    def _advance(self, control: np.ndarray) -> Frame:
        """Simulate one frame."""

    @abc.abstractmethod
    def _observation(self) -> Any:
        """The last frame's observation, as the simulator gives it."""

    @abc.abstractmethod
    def _image(self, height: int, width: int) -> np.ndarray:
        """Draw the scene."""

    def step(self, action: Float32[np.ndarray, " action"]) -> Step:
        """Simulate frame by frame; an episode that ends cuts the held action short."""
        control = self._rescaled(action)
        frame = self._advance(control)
        reward = frame.reward
        for _ in range(self._frame_skip - 1):
            if frame.terminated or frame.truncated:
                break
            frame = self._advance(control)
            reward += frame.reward
        return Step(reward, self._flat(self._observation()), frame.terminated, frame.truncated)

    def frame(self, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
        """Draw the scene, if that was asked for at load and the size is within bounds."""
        if self._render_mode is None:
            raise RuntimeError(f'{self._name}: frames need load(..., render_mode="rgb_array")')
        if not (1 <= height <= TALLEST and 1 <= width <= WIDEST):
            raise UserError(
                f"A frame of {height} x {width} pixels (height x width) cannot be drawn: "
                f"the limit is {TALLEST} x {WIDEST}."
            )
        with reported_rendering(self._name):
            return self._image(height, width)

    def _flat(self, observation: Any) -> Float32[np.ndarray, " state"]:
        parts = [observation] if self._keys is None else _entries(observation, self._keys)
        # What float32 cannot hold becomes infinite, which the pool reports in its own words.
        with np.errstate(over="ignore"):
            state = np.concatenate(
                [np.ravel(part) for part in parts], dtype=np.float32, casting="unsafe"
            )
        # Nobody behind this would see it: one number is broadcast to the place of many.
        if len(state) != self.spec.state_dim:
            raise MalformedError(
                f"the observation is of size {len(state)}, its space of size {self.spec.state_dim}"
            )
        return state


def _entries(observation: Any, keys: tuple[str, ...]) -> list[Any]:
    """The parts of an observation that its space calls a dictionary, in the space's order."""
    if not isinstance(observation, Mapping):
        kind = type(observation).__name__
        raise MalformedError(f"the observation is of type {kind}, its space a Dict")
    if missing := [key for key in keys if key not in observation]:
        raise MalformedError(f"the observation lacks {missing[0]!r}, which its space has")
    return [observation[key] for key in keys]


def require_divisor(name: SuiteTask | GymTask, frame_skip: int, frames: int) -> None:
    """Refuse a frame skip that would cut an episode's last action short."""
    if frames % frame_skip == 0:
        return
    divisors = (number for number in range(1, frames + 1) if frames % number == 0)
    works = ", ".join(map(str, itertools.islice(divisors, 7)))
    raise UserError(
        f"A frame skip of {frame_skip} does not divide the {counted(frames, 'frame')} of an "
        f"episode of {name}: use one that does, such as {works}."
    )
