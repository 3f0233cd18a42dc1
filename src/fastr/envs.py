"""Tasks by name: the DM Control Suite and Gymnasium behind one small interface.

Light on purpose: environments run in worker processes, which must not pay for jax, and dm_control
and gymnasium are imported only when one of theirs is loaded.
"""

import abc
import contextlib
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, UInt8

from fastr import shifts
from fastr.errors import UserError, nearest
from fastr.spec import EnvSpec

# Written out, so that a name is checked without importing dm_control: importing it would fix this
# process's renderer for good. A test compares the list with the installed suite.
_SUITE = {
    "acrobot": "swingup swingup_sparse",
    "ball_in_cup": "catch",
    "cartpole": "balance balance_sparse swingup swingup_sparse two_poles three_poles",
    "cheetah": "run",
    "dog": "stand walk trot run fetch",
    "finger": "spin turn_easy turn_hard",
    "fish": "upright swim",
    "hopper": "stand hop",
    "humanoid": "stand walk run run_pure_state",
    "humanoid_CMU": "stand walk run",
    "lqr": "lqr_2_1 lqr_6_2",
    "manipulator": "bring_ball bring_peg insert_ball insert_peg",
    "pendulum": "swingup",
    "point_mass": "easy hard",
    "quadruped": "walk run escape fetch",
    "reacher": "easy hard",
    "stacker": "stack_2 stack_4",
    "swimmer": "swimmer6 swimmer15",
    "walker": "stand walk run",
}
_FRAMES_WITHOUT_LIMIT = 1_000
_TALLEST, _WIDEST = 1_080, 1_920
# MuJoCo's mjMAXVAL, which dm_control reports as the bound of an actuator that has none.
_UNLIMITED = 1e10
_LARGEST = float(np.finfo(np.float32).max)
_DISABLED = ("disable", "disabled", "off", "false", "0")
_GYM_NAME = re.compile(r"([^\W\d]\w*(\.[^\W\d]\w*)*:)?([\w-]+/)?[\w.-]+")
_STREAMS = ("train", "evaluate")


class SuiteTask(NamedTuple):
    """A DM Control Suite task."""

    domain: str
    task: str

    def __str__(self) -> str:
        return f"{self.domain}-{self.task}"


class GymTask(NamedTuple):
    """A Gymnasium environment: its id, after "module:" where a module registers it."""

    name: str

    def __str__(self) -> str:
        return f"gym:{self.name}"


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


def tasks() -> tuple[str, ...]:
    """Every DM Control Suite task."""
    return tuple(map(str, _suite_tasks()))


def parse(task: str) -> SuiteTask | GymTask:
    """Which environment a name means; a Gymnasium name is not yet looked up."""
    task, shifted = shifts.split(task)
    if shifted is not None:
        shifts.check(shifted)
    if ":" in task:
        name = task.removeprefix("gym:")
        if not _GYM_NAME.fullmatch(name):
            raise UserError(
                f"{task!r} is not a task: Gymnasium environments are written gym:HalfCheetah-v5, "
                "or my_module:MyRobot-v0 if my_module registers them."
            )
        return GymTask(name)
    known = {_spelling(str(name)): name for name in _suite_tasks()}
    if _spelling(task) in known:
        return known[_spelling(task)]
    if re.search(r"-v\d+$|/", task) and _GYM_NAME.fullmatch(task):
        hint = f" Gymnasium environments are written gym:{task}."
    else:
        hint = nearest(task, tasks())
    raise UserError(f"{task!r} is not a DM Control Suite task.{hint}")


def module_of(task: str) -> str:
    """The Python module that is imported to make this task; empty if none is."""
    if ":" not in shifts.split(task)[0]:
        return ""
    name = parse(task)
    return name.name.rpartition(":")[0] if isinstance(name, GymTask) else ""


def require_imported(task: str, run: Path) -> None:
    """Raise UserError if playing a run's task would import a module that nobody has asked for.

    A run's config.json may come from anywhere, and importing a module executes it. One that is
    imported already, by `fastr --import` or by the program that uses fastr, executes nothing more.
    """
    module = module_of(task)
    if module and module not in sys.modules:
        raise UserError(
            f"{run} is on {task}, which imports the Python module {module}: if that module is to "
            f"be trusted, say so with `fastr --import {module} ...` (docs/security.md)."
        )


def load(
    task: str, frame_skip: int, *, render_mode: Literal["rgb_array"] | None = None
) -> Environment:
    """Load the task of this name, to hold each action for `frame_skip` frames."""
    name = parse(task)
    if frame_skip < 1:
        raise UserError(f"A frame skip of {frame_skip} is not possible: it must be 1 or more.")
    if isinstance(name, SuiteTask):
        environment = _Suite(name, frame_skip, render_mode)
    else:
        environment = _Gym(name, frame_skip, render_mode)
    _, shifted = shifts.split(task)
    return environment if shifted is None else _Shifted(environment, shifted)


def spec(task: str, frame_skip: int) -> EnvSpec:
    """Sizes of a task's states and actions."""
    with contextlib.closing(load(task, frame_skip)) as environment:
        return environment.spec


def episode_seed(seed: int, episode: int, stream: Literal["train", "evaluate"]) -> int:
    """32-bit seed of one episode: even in training, odd in evaluation, so the two never meet."""
    number = _STREAMS.index(stream)
    drawn = np.random.SeedSequence([seed, episode, number]).generate_state(1, np.uint32)
    return int(drawn[0]) // 2 * 2 + number


def _suite_tasks() -> tuple[SuiteTask, ...]:
    return tuple(
        SuiteTask(domain, task) for domain, names in _SUITE.items() for task in names.split()
    )


def _spelling(name: str) -> str:
    """Hyphens for underscores: no two suite tasks differ only in these."""
    return name.replace("_", "-")


class _Affine:
    """Maps [-1, 1] onto an action space's bounds; what lies outside is clipped."""

    def __init__(self, low: np.ndarray, high: np.ndarray):
        # A centre and a half width leave actions exactly as they are where the bounds are -1 and 1.
        self.low, self.high = low.astype(np.float64), high.astype(np.float64)
        self.centre, self.half = (self.low + self.high) / 2, (self.high - self.low) / 2

    def __call__(self, action: np.ndarray) -> np.ndarray:
        action = action.reshape(self.centre.shape)
        return np.clip(self.centre + self.half * action, self.low, self.high)

    @property
    def bounds(self) -> Bounds:
        """The bounds, one entry per actuator."""
        return Bounds(np.ravel(self.low), np.ravel(self.high))


class _Frame(NamedTuple):
    """One frame of a simulator, the observation as the simulator gives it."""

    reward: float
    observation: Any
    terminated: bool
    truncated: bool


class _Simulator(Environment):
    """What the suite and Gymnasium share: held actions and flat states."""

    _name: SuiteTask | GymTask
    _frame_skip: int
    _render_mode: str | None
    _rescaled: _Affine
    _keys: tuple[str, ...] | None
    """Of the observation's parts, in order; None if it is a single array."""

    @abc.abstractmethod
    def _advance(self, control: np.ndarray) -> _Frame:
        """Simulate one frame."""

    @abc.abstractmethod
    def _image(self, height: int, width: int) -> np.ndarray:
        """Draw the scene."""

    def step(self, action: Float32[np.ndarray, " action"]) -> Step:
        control = self._rescaled(action)
        frame = self._advance(control)
        reward = frame.reward
        for _ in range(self._frame_skip - 1):
            if frame.terminated or frame.truncated:
                break
            frame = self._advance(control)
            reward += frame.reward
        return Step(reward, self._flat(frame.observation), frame.terminated, frame.truncated)

    def frame(self, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
        if self._render_mode is None:
            raise RuntimeError(f'{self._name}: frames need load(..., render_mode="rgb_array")')
        if not (1 <= height <= _TALLEST and 1 <= width <= _WIDEST):
            raise UserError(
                f"A frame of {height} x {width} pixels (height x width) cannot be drawn: "
                f"the limit is {_TALLEST} x {_WIDEST}."
            )
        with _reported_rendering(self._name):
            return self._image(height, width)

    def _flat(self, observation: Any) -> Float32[np.ndarray, " state"]:
        parts = [observation] if self._keys is None else [observation[key] for key in self._keys]
        # What float32 cannot hold becomes infinite, which the pool reports in its own words.
        with np.errstate(over="ignore"):
            return np.concatenate(
                [np.ravel(part) for part in parts], dtype=np.float32, casting="unsafe"
            )


class _Suite(_Simulator):
    """A DM Control Suite task."""

    def __init__(self, name: SuiteTask, frame_skip: int, render_mode: str | None):
        self._name, self._frame_skip, self._render_mode = name, frame_skip, render_mode
        self._env = _suite_env(name, render_mode)
        limit = self._env._step_limit
        self._last_frame = _FRAMES_WITHOUT_LIMIT if math.isinf(limit) else math.ceil(limit)
        self.episode_frames = self._last_frame
        _require_divisor(name, frame_skip, self._last_frame)
        actions, parts = self._env.action_spec(), self._env.observation_spec()
        # An actuator without limits (lqr) takes the action as it is.
        unlimited = (actions.minimum <= -_UNLIMITED) | (actions.maximum >= _UNLIMITED)
        self._rescaled = _Affine(
            np.where(unlimited, -1.0, actions.minimum), np.where(unlimited, 1.0, actions.maximum)
        )
        self._keys = tuple(parts)
        self.bounds = self._rescaled.bounds
        self.parts = tuple(Part(key, math.prod(part.shape)) for key, part in parts.items())
        self.spec = EnvSpec(sum(part.size for part in self.parts), actions.shape[0])
        self._frames = 0

    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        # The task keeps its generator across episodes: reseeding it in place forgets the past.
        self._env.task.random.seed(seed)
        self._frames = 0
        return self._flat(self._env.reset().observation)

    def robot(self) -> Robot:
        physics, task = self._env.physics, self._env.task
        observe = lambda: self._flat(task.get_observation(physics))  # noqa: E731
        return Robot(physics.model.ptr, physics.data.ptr, observe)

    def close(self) -> None:
        self._env.close()

    def _advance(self, control: np.ndarray) -> _Frame:
        timestep = self._env.step(control)
        self._frames += 1
        over = timestep.last() or self._frames >= self._last_frame
        terminated = timestep.last() and timestep.discount == 0.0
        reward = float(timestep.reward)
        return _Frame(reward, timestep.observation, terminated, over and not terminated)

    def _image(self, height: int, width: int) -> np.ndarray:
        return self._env.physics.render(height, width, camera_id=0)


class _Gym(_Simulator):
    """A Gymnasium environment."""

    def __init__(self, name: GymTask, frame_skip: int, render_mode: str | None):
        self._name, self._frame_skip, self._render_mode = name, frame_skip, render_mode
        self._env = _gym_env(name, render_mode)
        self._actions = _bounded(name, self._env.action_space)
        self._keys, self.parts = _parts(name, self._env.observation_space)
        self.episode_frames = self._env.spec and self._env.spec.max_episode_steps
        if self.episode_frames is not None:
            _require_divisor(name, frame_skip, self.episode_frames)
        self._rescaled = _Affine(self._actions.low, self._actions.high)
        self.bounds = self._rescaled.bounds
        state_dim = sum(part.size for part in self.parts)
        self.spec = EnvSpec(state_dim, math.prod(self._actions.shape))

    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        observation, _ = self._env.reset(seed=seed)
        return self._flat(observation)

    def robot(self) -> Robot | None:
        # What Gymnasium's own MuJoCo environments are made of; wrappers may show something else.
        inner = self._env.unwrapped
        if not all(hasattr(inner, name) for name in ("model", "data", "_get_obs")):
            return None
        if np.size(inner._get_obs()) != self.spec.state_dim:
            return None
        return Robot(inner.model, inner.data, lambda: self._flat(inner._get_obs()))

    def close(self) -> None:
        self._env.close()

    def _advance(self, control: np.ndarray) -> _Frame:
        action = control.astype(self._actions.dtype)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return _Frame(float(reward), observation, bool(terminated), bool(truncated))

    def _image(self, height: int, width: int) -> np.ndarray:
        from PIL import Image, ImageOps

        # Gymnasium fixes an image's size when it makes the environment: scale it, do not stretch.
        image = Image.fromarray(np.asarray(self._env.render()).astype(np.uint8, copy=False))
        return np.array(ImageOps.pad(image, (width, height), Image.Resampling.BILINEAR))


class _Shifted(Environment):
    """An environment whose actuators are not what they were."""

    def __init__(self, inner: Environment, text: str):
        self._inner = inner
        self._shifts = shifts.drawn(text, inner.spec.action_dim)
        self.spec, self.episode_frames = inner.spec, inner.episode_frames
        self.bounds, self.parts = inner.bounds, inner.parts

    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        for shift in self._shifts:
            shift.begin()
        return self._inner.reset(seed)

    def step(self, action: Float32[np.ndarray, " action"]) -> Step:
        for shift in self._shifts:
            action = shift(action)
        return self._inner.step(action)

    def frame(self, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
        return self._inner.frame(height, width)

    def robot(self) -> None:
        # Its actuators no longer are the channels of an action.
        return None

    def close(self) -> None:
        self._inner.close()


def _suite_env(name: SuiteTask, render_mode: str | None) -> Any:
    """Load the suite's own environment, without its warnings and, if nothing is drawn, headless."""
    with _renderer(name, render_mode):
        try:
            from absl import logging
            from dm_control import _render, suite
        except ModuleNotFoundError as error:
            raise UserError(
                f"{name} needs dm_control, but there is no module {error.name}; up to Python 3.12 "
                "it is installed with fastr, for later ones see docs/first-hour.md."
            ) from None

    verbosity = logging.get_verbosity()
    # One deprecated attribute in a model of the suite's own warns at every load.
    logging.set_verbosity(logging.ERROR)
    try:
        # Some models (lqr) are drawn at random when made: the same in every process.
        env: Any = suite.load(name.domain, name.task, task_kwargs={"random": 0})
    finally:
        logging.set_verbosity(verbosity)
    if render_mode is not None:
        screen = env.physics.model.vis.global_
        screen.offheight, screen.offwidth = _TALLEST, _WIDEST
    elif _render.BACKEND in _DISABLED:
        # quadruped-escape asks for a rendering context at every reset, to update one if there is
        # one, and asking creates it: without a renderer, let the answer be that there is none.
        headless = type("Headless", (type(env.physics),), {"contexts": None})
        env.physics.__class__ = headless
    return env


def _gym_env(name: GymTask, render_mode: str | None) -> Any:
    """Make Gymnasium's own environment, or say in one sentence why not."""
    # Not every environment takes a render mode, so none is passed unless one is asked for; and
    # the checker would repeat at every step what a test of the environment should find once.
    options: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    with _renderer(name, render_mode):
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
    if isinstance(cause, ModuleNotFoundError) and cause.name in (module, module.split(".")[0]):
        return (
            f"There is no Python module {cause.name} to make {name.name} with: install it, or put "
            "its directory on PYTHONPATH (`PYTHONPATH=. fastr ...` for this one)."
        )
    if isinstance(error, TypeError) and "render_mode" in str(error):
        return f"{name.name} takes no render_mode, so it cannot be drawn (docs/own-robot.md)."
    if not unknown:
        return f"Gymnasium cannot make {name.name}: {_one_line(error)}"
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
            f"{name} has an unbounded action space, but finite bounds are needed: "
            "wrap it in gymnasium.wrappers.RescaleAction or give its Box a low and a high."
        )
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


def _require_divisor(name: SuiteTask | GymTask, frame_skip: int, frames: int) -> None:
    """Refuse a frame skip that would cut an episode's last action short."""
    if frames % frame_skip == 0:
        return
    divisors = (number for number in range(1, frames + 1) if frames % number == 0)
    works = ", ".join(map(str, itertools.islice(divisors, 7)))
    raise UserError(
        f"A frame skip of {frame_skip} does not divide the {frames:,} frames of an episode of "
        f"{name}: use one that does, such as {works}."
    )


@contextlib.contextmanager
def _renderer(name: SuiteTask | GymTask, render_mode: str | None) -> Iterator[None]:
    """Choose MuJoCo's renderer, which is fixed by the environment variable at its import."""
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
    if isinstance(name, SuiteTask) and backend in _DISABLED:
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
            raise UserError(f"{name} cannot be drawn: {_one_line(error)}") from None
        raise UserError(
            f"{name} cannot be drawn ({_one_line(error)}): install the Debian packages libegl1 and "
            "libgl1 (apt-get install libegl1 libgl1) and set MUJOCO_GL=egl."
        ) from None


def _one_line(error: Exception) -> str:
    """Its message on one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
