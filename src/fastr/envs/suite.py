"""The DM Control Suite's tasks; dm_control is imported when one of them is loaded."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float32

from fastr.core import EnvSpec, UserError
from fastr.envs.base import Affine, Part, Robot, Simulator, renderer
from fastr.envs.names import SuiteTask

TALLEST, WIDEST = 1_080, 1_920
"""Largest picture, in pixels."""
_FRAMES_WITHOUT_LIMIT = 1_000
# MuJoCo's mjMAXVAL, which dm_control reports as the bound of an actuator that has none.
_UNLIMITED = 1e10


class Suite(Simulator):
    """A DM Control Suite task."""

    def __init__(self, name: SuiteTask, frame_skip: int, render_mode: str | None):
        self._name, self._frame_skip, self._render_mode = name, frame_skip, render_mode
        self._env = _suite_env(name, render_mode)
        limit = self._env._step_limit
        self._last_frame = _FRAMES_WITHOUT_LIMIT if math.isinf(limit) else math.ceil(limit)
        self.episode_frames = self._last_frame
        self._require_divisor(self._last_frame)
        actions, parts = self._env.action_spec(), self._env.observation_spec()
        # An actuator without limits (lqr) takes the action as it is.
        unlimited = (actions.minimum <= -_UNLIMITED) | (actions.maximum >= _UNLIMITED)
        self._rescaled = Affine(
            np.where(unlimited, -1.0, actions.minimum), np.where(unlimited, 1.0, actions.maximum)
        )
        self._keys = tuple(parts)
        self.bounds, self.action_shape = self._rescaled.bounds, actions.shape
        self.frame_seconds, self.units = float(self._env.control_timestep()), {}
        self.parts = tuple(Part(key, part.shape) for key, part in parts.items())
        self.spec = EnvSpec(sum(part.size for part in self.parts), actions.shape[0])
        self._frames = 0
        # Only the observation of a held action's last frame is read: it is computed on demand, not
        # in every step of the suite's environment.
        self._observe = self._env.task.get_observation
        self._env.task.get_observation = lambda _: {}

    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        """Start the episode that the task draws from this seed."""
        # The task keeps its generator across episodes: reseeding it in place forgets the past.
        self._env.task.random.seed(seed)
        self._frames = 0
        self._env.reset()
        return self._flat(self._observation())

    def robot(self) -> Robot:
        """The task's physics."""
        physics = self._env.physics
        observe = lambda: self._flat(self._observation())  # noqa: E731
        return Robot(physics.model.ptr, physics.data.ptr, observe)

    def close(self) -> None:
        """Close the suite's environment."""
        self._env.close()

    def _advance(self, control: np.ndarray) -> tuple[float, bool, bool]:
        timestep = self._env.step(control)
        self._frames += 1
        over = timestep.last() or self._frames >= self._last_frame
        terminated = timestep.last() and timestep.discount == 0.0
        return float(timestep.reward), terminated, over and not terminated

    def _observation(self) -> Any:
        return self._observe(self._env.physics)

    def _image(self, height: int, width: int) -> np.ndarray:
        return self._env.physics.render(height, width, camera_id=0)


def _suite_env(name: SuiteTask, render_mode: str | None) -> Any:
    """Load the suite's own environment, without its warnings and, if nothing is drawn, headless."""
    with renderer(name, render_mode):
        try:
            from absl import logging
            from dm_control import _render, suite
        except ModuleNotFoundError as error:
            raise UserError(
                f"{name} needs dm_control, but there is no module {error.name}; up to Python 3.12 "
                "it is installed with fastr, for later ones see docs/first-hour.md."
            ) from None

    verbosity = logging.get_verbosity()
    # A deprecated attribute in one of the suite's models warns at every load.
    logging.set_verbosity(logging.ERROR)
    try:
        # Some models (lqr) are random: the same in every process.
        env: Any = suite.load(name.domain, name.task, task_kwargs={"random": 0})
    finally:
        logging.set_verbosity(verbosity)
    if render_mode is not None:
        screen = env.physics.model.vis.global_
        screen.offheight, screen.offwidth = TALLEST, WIDEST
    elif _render.BACKEND in ("disable", "disabled", "off", "false", "0"):
        # quadruped-escape asks for its rendering contexts at every reset, and asking creates one:
        # without a renderer, answer that there is none.
        headless = type("Headless", (type(env.physics),), {"contexts": None})
        env.physics.__class__ = headless
    return env
