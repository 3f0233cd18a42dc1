"""Gymnasium's environments; gymnasium is imported when one of them is loaded."""

import contextlib
import math
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from fastr.core import EnvSpec, UserError, nearest
from fastr.envs.base import MalformedError, Part, Robot
from fastr.envs.names import GymTask
from fastr.envs.rendering import one_line, renderer
from fastr.envs.simulator import Affine, Frame, Simulator, require_divisor

_RESET = "reset() must be made as `def reset(self, *, seed=None, options=None)`"
_STEP = (
    "step() must return five values: observation, reward, terminated, truncated and a dictionary "
    "of information; the old Gym had one value, done, for the two in the middle"
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
            require_divisor(name, frame_skip, self.episode_frames)
        self._rescaled = Affine(self._actions.low, self._actions.high)
        self.bounds = self._rescaled.bounds
        state_dim = sum(part.size for part in self.parts)
        self.spec = EnvSpec(state_dim, math.prod(self._actions.shape))

    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        """Start the episode that Gymnasium draws from this seed."""
        try:
            found = self._env.reset(seed=seed)
        except TypeError as error:
            _refuse_form(error, "unexpected keyword", _RESET)
            raise
        if not (isinstance(found, tuple) and len(found) == 2):
            raise MalformedError(
                "reset() must return an observation and a dictionary of information"
            )
        return self._flat(found[0])

    def robot(self) -> Robot | None:
        """The model of a MuJoCo environment whose observations can be had at any time."""
        # What Gymnasium's own MuJoCo environments are made of; wrappers may show something else.
        inner = self._env.unwrapped
        if not all(hasattr(inner, name) for name in ("model", "data", "_get_obs")):
            return None
        if np.size(inner._get_obs()) != self.spec.state_dim:
            return None
        return Robot(inner.model, inner.data, lambda: self._flat(inner._get_obs()))

    def close(self) -> None:
        """Close Gymnasium's environment."""
        self._env.close()

    def _advance(self, control: np.ndarray) -> Frame:
        action = control.astype(self._actions.dtype)
        try:
            self._seen, reward, terminated, truncated, _ = self._env.step(action)
        except (TypeError, ValueError) as error:
            _refuse_form(error, "unpack", _STEP)
            raise
        return Frame(
            _number(reward), _mark(terminated, "terminated"), _mark(truncated, "truncated")
        )

    def _observation(self) -> Any:
        return self._seen

    def _image(self, height: int, width: int) -> np.ndarray:
        from PIL import Image, ImageOps

        # Gymnasium fixes an image's size when it makes the environment: scale it, do not stretch.
        image = Image.fromarray(np.asarray(self._env.render()).astype(np.uint8, copy=False))
        return np.array(ImageOps.pad(image, (width, height), Image.Resampling.BILINEAR))


def _number(reward: Any) -> float:
    """The reward as a number, or what it is instead."""
    # NumPy before 2.4 takes an array of one entry for a number.
    if not (isinstance(reward, np.ndarray) and reward.ndim):
        with contextlib.suppress(TypeError, ValueError):
            return float(reward)
    found = f"an array of shape {reward.shape}" if hasattr(reward, "shape") else repr(reward)
    raise MalformedError(f"the reward is {found:.200}; it must be one number")


def _mark(value: Any, name: str) -> bool:
    """Whether the episode is over; what is neither true nor false would pass for one of them."""
    if isinstance(value, bool):
        return value
    found = np.asarray(value)
    if found.dtype.kind not in "biuf" or found.size != 1:
        raise MalformedError(f"{name} is {value!r:.200}; it must be True or False")
    return bool(found)


def _refuse_form(error: Exception, word: str, must: str) -> None:
    """Raise MalformedError if others than the environment stumbled over a method of it like this.

    They are the wrappers that Gymnasium puts around it, and this file.
    """
    import gymnasium

    place = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    theirs = place.is_relative_to(Path(gymnasium.__file__).parent)
    if (theirs or place == Path(__file__)) and word in str(error):
        raise MalformedError(f"{must} ({error})") from None


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

    # Of the ways in which an id can be unknown, one is a plain Error, told apart by its text.
    module, _, identifier = name.name.rpartition(":")
    unknown = isinstance(error, gymnasium.error.UnregisteredEnv) or (
        type(error) is gymnasium.error.Error and str(error).startswith("No registered env")
    )
    cause = error.__cause__
    if isinstance(cause, ModuleNotFoundError) and module.endswith(".py"):
        return f"A module is named without its .py: write {module[:-3]}:{identifier}."
    if isinstance(cause, ModuleNotFoundError) and cause.name in (module, module.split(".")[0]):
        return (
            f"There is no Python module {cause.name} to make {name.name} with: install it, or put "
            "its directory on PYTHONPATH (`PYTHONPATH=. fastr ...` for this one)."
        )
    if isinstance(error, TypeError) and "render_mode" in str(error):
        return f"{name.name} takes no render_mode, so it cannot be drawn (docs/own-robot.md)."
    if not unknown:
        return f"Gymnasium cannot make {name.name}: {one_line(error)}"
    where = f", also after importing {module}" if module else ""
    hint = nearest(identifier, gymnasium.registry) or (
        "" if module else " If a module of yours registers it, write my_module:MyRobot-v0."
    )
    return f"Gymnasium knows no environment {identifier}{where}.{hint}"


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
    if not math.prod(space.shape):
        raise UserError(f"{name} has the action space {space}: there is nothing to control.")
    return space


def _parts(name: GymTask, space: Any) -> tuple[tuple[str, ...] | None, tuple[Part, ...]]:
    """Keys of the observation, or None if it is one array, and the sizes of its parts."""
    from gymnasium.spaces import Box, Dict

    if isinstance(space, Box):
        return None, (Part("observation", math.prod(space.shape)),)
    if isinstance(space, Dict) and all(isinstance(part, Box) for part in space.spaces.values()):
        sizes = (Part(key, math.prod(part.shape or ())) for key, part in space.items())
        return tuple(space), tuple(sizes)
    raise UserError(
        f"{name} has the observation space {space}, but a Box or a flat Dict of Boxes is needed: "
        "wrap it in gymnasium.wrappers.FlattenObservation."
    )
