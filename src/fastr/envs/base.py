"""The interface of every environment, and what suite.py and gym.py share.

Shared are held and rescaled actions, flat states, MuJoCo's renderer; and the seeds of episodes and
the check for finite numbers.
"""

import abc
import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, UInt8

from fastr.core import EnvSpec, UserError, counted

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
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


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
    action_shape: tuple[int, ...]
    """Of an action in the simulator's own form."""
    frame_seconds: float | None
    """Simulated time of one frame, if known."""
    units: Mapping[str, str]
    """Of the parts that the environment names one for, and of its "action"."""

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


# What both libraries share


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


class Simulator(Environment):
    """An environment of either library."""

    _name: object
    """The task, for messages."""
    _frame_skip: int
    _render_mode: str | None
    _rescaled: Affine
    _keys: tuple[str, ...] | None
    """Of the observation's parts, in order; None if it is a single array."""

    @abc.abstractmethod
    def _advance(self, control: np.ndarray) -> tuple[float, bool, bool]:
        """Simulate one frame: its reward, whether it terminated, whether it was truncated."""

    @abc.abstractmethod
    def _observation(self) -> Any:
        """The last frame's observation, as the simulator gives it."""

    @abc.abstractmethod
    def _image(self, height: int, width: int) -> np.ndarray:
        """Draw the scene."""

    def step(self, action: Float32[np.ndarray, " action"]) -> Step:
        """Simulate frame by frame; an episode that ends cuts the held action short."""
        control = self._rescaled(action)
        reward, terminated, truncated = self._advance(control)
        for _ in range(self._frame_skip - 1):
            if terminated or truncated:
                break
            more, terminated, truncated = self._advance(control)
            reward += more
        return Step(reward, self._flat(self._observation()), terminated, truncated)

    def frame(self, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
        """Draw the scene, if that was asked for at load."""
        if self._render_mode is None:
            raise RuntimeError(f'{self._name}: frames need load(..., render_mode="rgb_array")')
        with _reported_rendering(self._name):
            return self._image(height, width)

    def _require_divisor(self, frames: int) -> None:
        """Refuse a frame skip that would cut an episode's last action short."""
        if frames % self._frame_skip:
            raise UserError(
                f"A frame skip of {self._frame_skip} does not divide the "
                f"{counted(frames, 'frame')} of an episode of {self._name}: use one that does."
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
def renderer(name: object, render_mode: str | None) -> Iterator[None]:
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
    with _reported_rendering(name):
        yield


@contextlib.contextmanager
def _reported_rendering(name: object) -> Iterator[None]:
    """Turn a failure to draw into one sentence with the usual fixes."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{name} cannot be drawn ({one_line(error)}): MuJoCo needs libegl1 and libgl1 (apt-get "
            "install libegl1 libgl1) and MUJOCO_GL=egl, an environment of your own a render() "
            "(docs/own-robot.md)."
        ) from None


def one_line(error: Exception) -> str:
    """An error's message on one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
