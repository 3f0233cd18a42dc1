"""Gymnasium's environments; gymnasium is imported when one of them is loaded."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float32

from fastr.core import EnvSpec, UserError
from fastr.envs.base import Affine, Part, Robot, Simulator, one_line, renderer
from fastr.envs.names import MADE, GymTask, MadeTask


class Gym(Simulator):
    """A Gymnasium environment."""

    def __init__(self, name: GymTask | MadeTask, frame_skip: int, render_mode: str | None):
        self._name, self._frame_skip, self._render_mode = name, frame_skip, render_mode
        made = isinstance(name, MadeTask)
        self._env = _made_env(name, render_mode) if made else _gym_env(name, render_mode)
        self._actions = _bounded(name, getattr(self._env, "action_space", None))
        self._keys, self.parts = _parts(name, getattr(self._env, "observation_space", None))
        self.episode_frames = _step_limit(self._env)
        if self.episode_frames is not None:
            self._require_divisor(self.episode_frames)
        self._rescaled = Affine(self._actions.low, self._actions.high)
        self.bounds, self.action_shape = self._rescaled.bounds, self._actions.shape
        # Gymnasium's own MuJoCo environments have `dt`; others tell how often they are drawn.
        metadata = getattr(self._env, "metadata", None) or {}
        rate = metadata.get("render_fps")
        seconds = getattr(self._env.unwrapped, "dt", 1 / rate if rate else None)
        self.frame_seconds = float(seconds) if isinstance(seconds, int | float) else None
        self.units = metadata.get("units", {})
        state_dim = sum(part.size for part in self.parts)
        self.spec = EnvSpec(state_dim, math.prod(self._actions.shape))

    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        """Start the episode that Gymnasium draws from this seed."""
        observation, _ = self._env.reset(seed=seed)
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
        self._last, reward, terminated, truncated, _ = self._env.step(action)
        return float(reward), bool(terminated), bool(truncated)

    def _observation(self) -> Any:
        return self._last

    def _image(self, height: int, width: int) -> np.ndarray:
        from PIL import Image, ImageOps

        # Gymnasium fixes an image's size when it makes the environment: scale it, do not stretch.
        image = Image.fromarray(np.asarray(self._env.render()).astype(np.uint8, copy=False))
        return np.array(ImageOps.pad(image, (width, height), Image.Resampling.BILINEAR))


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
            unknown = isinstance(error, gymnasium.error.UnregisteredEnv) and ":" not in name.name
            own = f" Of your own module, write my_module:{name.name}." if unknown else ""
            reason = one_line(error)
            raise UserError(f"Gymnasium cannot make {name.name}: {reason}{own}") from None


def _made_env(name: MadeTask, render_mode: str | None) -> Any:
    """Call the function that makes this environment."""
    if name.name not in MADE:
        raise UserError(
            f"{name} was made by a function of a Python program, which fastr has not been given: "
            "in Python, fastr.load(RUN, env=FUNCTION)."
        )
    with renderer(name, render_mode):
        import gymnasium

        function = MADE[name.name]
        env = function() if render_mode is None else function(render_mode=render_mode)
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"{name} must return a gymnasium.Env; it returned a {type(env)}.")
        return env


def _step_limit(env: Any) -> int | None:
    """Frames of the longest episode: of its registration, or of a TimeLimit around it."""
    if env.spec is not None:
        return env.spec.max_episode_steps
    try:
        return env.get_wrapper_attr("_max_episode_steps")
    except AttributeError:
        return None


def _bounded(name: GymTask | MadeTask, space: Any) -> Any:
    """Refuse an action space that [-1, 1] cannot be mapped onto."""
    from gymnasium.spaces import Box

    if not (isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)):
        raise UserError(
            f"{name} has the action space {space}, but a Box of real numbers is needed: "
            "discrete actions are not supported."
        )
    if not space.is_bounded("both"):
        raise UserError(f"{name} has an unbounded action space; give its Box a low and a high.")
    return space


def _parts(name: GymTask | MadeTask, space: Any) -> tuple[tuple[str, ...] | None, tuple[Part, ...]]:
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
    parts = tuple(Part(key, part.shape) for key, part in spaces.items())
    return (tuple(spaces) if isinstance(space, Dict) else None), parts
