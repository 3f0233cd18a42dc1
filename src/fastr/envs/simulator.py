"""What suite.py and gym.py share: held actions, rescaled; flat states; MuJoCo's renderer."""

import abc
import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8

from fastr.core import UserError, counted
from fastr.envs.base import Bounds, Environment, SimulatorError, Step
from fastr.envs.names import GymTask, SuiteTask

TALLEST, WIDEST = 1_080, 1_920
RENDERING_OFF = ("disable", "disabled", "off", "false", "0")
"""Values of MUJOCO_GL that switch rendering off."""


class Affine:
    """Maps [-1, 1] onto an action space's bounds, clipping what lies outside."""

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
    """An environment of either library."""

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
        with _reported_rendering(self._name):
            return self._image(height, width)

    def _require_divisor(self, frames: int) -> None:
        """Refuse a frame skip that would cut an episode's last action short."""
        if frames % self._frame_skip:
            divisors = (number for number in range(1, frames + 1) if frames % number == 0)
            works = ", ".join(map(str, itertools.islice(divisors, 7)))
            raise UserError(
                f"A frame skip of {self._frame_skip} does not divide the "
                f"{counted(frames, 'frame')} of an episode of {self._name}: use one that does, "
                f"such as {works}."
            )

    def _flat(self, observation: Any) -> Float32[np.ndarray, " state"]:
        """The observation's parts end to end, in the order of `parts`."""
        parts = [observation] if self._keys is None else [observation[key] for key in self._keys]
        # What float32 cannot hold becomes infinite, which is reported like any infinite number.
        with np.errstate(over="ignore"):
            state = np.concatenate(
                [np.ravel(part) for part in parts], dtype=np.float32, casting="unsafe"
            )
        # Unnoticed otherwise: one number would be broadcast to the place of many.
        if len(state) != self.spec.state_dim:
            raise SimulatorError(
                f"the observation is of size {len(state)}, its space of size {self.spec.state_dim}"
            )
        return state


@contextlib.contextmanager
def renderer(name: SuiteTask | GymTask, render_mode: str | None) -> Iterator[None]:
    """Choose MuJoCo's renderer, which the environment variable fixes when MuJoCo is imported."""
    if render_mode is None:
        chosen = os.environ.get("MUJOCO_GL")
        os.environ.setdefault("MUJOCO_GL", "disable")
        try:
            yield
        finally:
            # Processes started from here may want to draw, and inherit the variable.
            if chosen is None:
                del os.environ["MUJOCO_GL"]
        return
    os.environ.setdefault("MUJOCO_GL", "egl")
    imported = sys.modules.get("dm_control._render")
    backend = os.environ["MUJOCO_GL"] if imported is None else imported.BACKEND
    if isinstance(name, SuiteTask) and backend in RENDERING_OFF:
        raise UserError(
            f"{name} cannot be drawn in a process that has loaded dm_control with rendering "
            "disabled: draw it in a new process with MUJOCO_GL=egl."
        )
    with _reported_rendering(name):
        yield


@contextlib.contextmanager
def _reported_rendering(name: SuiteTask | GymTask) -> Iterator[None]:
    """Turn a failure to draw into one sentence with the usual fix."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if type(error).__name__ == "DependencyNotInstalled":  # Gymnasium's own, with its own fix
            raise UserError(f"{name} cannot be drawn: {one_line(error)}") from None
        raise UserError(
            f"{name} cannot be drawn ({one_line(error)}): install the Debian packages libegl1 and "
            "libgl1 (apt-get install libegl1 libgl1) and set MUJOCO_GL=egl."
        ) from None


def one_line(error: Exception) -> str:
    """An error's message on one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
