"""Gymnasium's environments; gymnasium is imported when one of them is loaded."""

import math
import os
import traceback
from typing import Any

import numpy as np
from jaxtyping import Float32

from fastr.core import EnvSpec, UserError, nearest
from fastr.envs.base import Affine, Part, Robot, Simulator, SimulatorError, one_line, renderer
from fastr.envs.names import GymTask

_RESET = (
    "reset(self, *, seed=None, options=None) must return an observation and a dictionary of "
    "information"
)
_STEP = (
    "step() must return observation, reward, terminated, truncated and a dictionary of "
    "information; the old Gym had one value, done, for the two in the middle"
)


class Gym(Simulator):
    """A Gymnasium environment."""

    def __init__(self, name: GymTask, frame_skip: int, render_mode: str | None):
        self._name, self._frame_skip, self._render_mode = name, frame_skip, render_mode
        self._env = _gym_env(name, render_mode)
        self._actions = _bounded(name, getattr(self._env, "action_space", None))
        self._keys, self.parts = _parts(name, getattr(self._env, "observation_space", None))
        self.episode_frames = self._env.spec and self._env.spec.max_episode_steps
        if self.episode_frames is not None:
            self._require_divisor(self.episode_frames)
        self._rescaled = Affine(self._actions.low, self._actions.high)
        self.bounds = self._rescaled.bounds
        state_dim = sum(part.size for part in self.parts)
        self.spec = EnvSpec(state_dim, math.prod(self._actions.shape))

    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        """Start the episode that Gymnasium draws from this seed."""
        try:
            observation, _ = self._env.reset(seed=seed)
        except (TypeError, ValueError) as error:
            _refuse_form(error, _RESET)
            raise
        return self._flat(observation)

    def robot(self) -> Robot | None:
        """The model of a MuJoCo environment whose observation can be computed at any time."""
        # Attributes of Gymnasium's own MuJoCo environments; wrappers may change the observation.
        inner = self._env.unwrapped
        known = all(hasattr(inner, name) for name in ("model", "data", "_get_obs"))
        if not known or np.size(inner._get_obs()) != self.spec.state_dim:
            return None
        return Robot(inner.model, inner.data, lambda: self._flat(inner._get_obs()))

    def close(self) -> None:
        """Close Gymnasium's environment."""
        self._env.close()

    def _advance(self, control: np.ndarray) -> tuple[float, bool, bool]:
        action = control.astype(self._actions.dtype)
        try:
            self._last, reward, terminated, truncated, _ = self._env.step(action)
        except (TypeError, ValueError) as error:
            _refuse_form(error, _STEP)
            raise
        try:
            return float(reward), bool(terminated), bool(truncated)
        except (TypeError, ValueError):
            raise SimulatorError(f"the reward is {reward!r:.200}; it must be one number") from None

    def _observation(self) -> Any:
        return self._last

    def _image(self, height: int, width: int) -> np.ndarray:
        from PIL import Image, ImageOps

        # Gymnasium fixes an image's size when it makes the environment: scale it, do not stretch.
        image = Image.fromarray(self._rendered().astype(np.uint8, copy=False))
        return np.array(ImageOps.pad(image, (width, height), Image.Resampling.BILINEAR))

    def _rendered(self) -> np.ndarray:
        """What the environment's own render() returns."""
        try:
            return np.asarray(self._env.render())
        except (NotImplementedError, AttributeError) as error:
            # Where libEGL is missing, PyOpenGL raises an AttributeError, too.
            place = traceback.extract_tb(error.__traceback__)[-1].filename
            if {"OpenGL", "mujoco"} & set(place.split(os.sep)):
                raise
            raise UserError(
                f"{self._name} cannot be drawn: its render() is missing or fails "
                f"({one_line(error)}); docs/own-robot.md says what it must return."
            ) from None


def _refuse_form(error: Exception, must: str) -> None:
    """Raise SimulatorError if a wrapper or this file met this error, not the environment."""
    import gymnasium

    place = traceback.extract_tb(error.__traceback__)[-1].filename
    if place == __file__ or place.startswith(os.path.dirname(gymnasium.__file__)):
        raise SimulatorError(f"{must} ({error})") from None


def _gym_env(name: GymTask, render_mode: str | None) -> Any:
    """Make Gymnasium's own environment, or say in one sentence why not."""
    # Not every environment takes a render mode, so none is passed unless one is asked for; and
    # the checker would repeat at every step what a test of the environment should find once.
    options: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    with renderer(name, render_mode):
        import gymnasium

        try:
            return gymnasium.make(name.name, disable_env_checker=True, **options)
        except Exception as error:
            raise UserError(_refusal(name, error)) from None


def _refusal(name: GymTask, error: Exception) -> str:
    """Say why Gymnasium did not make this environment."""
    import gymnasium

    module, _, identifier = name.name.rpartition(":")
    cause = error.__cause__
    if isinstance(cause, ModuleNotFoundError) and cause.name in (module, module.split(".")[0]):
        return (
            f"There is no Python module {cause.name} to make {name.name} with: install it, or put "
            "its directory on PYTHONPATH."
        )
    if isinstance(error, TypeError) and "render_mode" in str(error):
        return f"{name.name} takes no render_mode, so it cannot be drawn (docs/own-robot.md)."
    # Of the ways in which an id can be unknown, one is a plain Error, told apart by its text.
    if not isinstance(error, gymnasium.error.UnregisteredEnv) and not (
        type(error) is gymnasium.error.Error and str(error).startswith("No registered env")
    ):
        return f"Gymnasium cannot make {name.name}: {one_line(error)}"
    after = f" after importing {module}" if module else ""
    own = "" if module else f" If your own my_module registers it, write my_module:{identifier}."
    hint = nearest(identifier, gymnasium.registry)
    return f"Gymnasium knows no environment {identifier}{after}.{hint}{own}"


def _bounded(name: GymTask, space: Any) -> Any:
    """Refuse an action space that [-1, 1] cannot be mapped onto."""
    from gymnasium.spaces import Box

    if not (isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)):
        raise UserError(
            f"{name} has the action space {space}, but a Box of real numbers is needed: "
            "discrete actions are not supported."
        )
    if not space.is_bounded("both"):
        raise UserError(
            f"{name} has an unbounded action space, but finite bounds are needed: give its Box a "
            "low and a high, in the units of the action."
        )
    return space


def _parts(name: GymTask, space: Any) -> tuple[tuple[str, ...] | None, tuple[Part, ...]]:
    """Keys of the observation, None if it is one array, and the sizes of its parts.

    A Dict's parts keep the order of the space, which Gymnasium sorts by key if it is given a dict.
    """
    from gymnasium.spaces import Box, Dict

    spaces: dict[str, Any] = (
        dict(space.spaces) if isinstance(space, Dict) else {"observation": space}
    )
    if not all(isinstance(part, Box) for part in spaces.values()):
        raise UserError(
            f"{name} has the observation space {space}, but a Box or a flat Dict of Boxes is "
            "needed: wrap it in gymnasium.wrappers.FlattenObservation."
        )
    for key, part in spaces.items():
        if part.dtype == np.uint8 and len(part.shape) >= 3:
            raise UserError(
                f"{name} has images of shape {part.shape} as its {key}, which no method here "
                "learns from: give it an observation of numbers such as positions and velocities."
            )
    parts = tuple(Part(key, math.prod(part.shape)) for key, part in spaces.items())
    return (tuple(spaces) if isinstance(space, Dict) else None), parts
