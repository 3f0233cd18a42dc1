"""Environments behind other actuators."""

import numpy as np
from jaxtyping import Float32, UInt8

from fastr.envs import shifts
from fastr.envs.base import Environment, Step


class Shifted(Environment):
    """An environment whose actuators are not what they were."""

    def __init__(self, inner: Environment, text: str):
        self._inner = inner
        self._shifts = shifts.drawn(text, inner.spec.action_dim)
        self.spec, self.episode_frames = inner.spec, inner.episode_frames
        self.bounds, self.parts = inner.bounds, inner.parts

    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        """Start the episode with actuators that remember nothing."""
        for shift in self._shifts:
            shift.begin()
        return self._inner.reset(seed)

    def step(self, action: Float32[np.ndarray, " action"]) -> Step:
        """Hold what becomes of the action on its way."""
        for shift in self._shifts:
            action = shift(action)
        return self._inner.step(action)

    def frame(self, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
        """Draw the scene, which no shift changes."""
        return self._inner.frame(height, width)

    def robot(self) -> None:
        """None: its actuators no longer are the channels of an action."""

    def close(self) -> None:
        """Close the environment within."""
        self._inner.close()
