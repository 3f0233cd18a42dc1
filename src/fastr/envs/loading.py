"""From a task's name to its environment."""

import contextlib
from typing import Literal

from fastr.core import EnvSpec, UserError
from fastr.envs import shifts
from fastr.envs.base import Environment
from fastr.envs.gym import Gym
from fastr.envs.names import SuiteTask, parse
from fastr.envs.shifted import Shifted
from fastr.envs.suite import Suite


def load(
    task: str, frame_skip: int, *, render_mode: Literal["rgb_array"] | None = None
) -> Environment:
    """Load the task of this name, to hold each action for `frame_skip` frames."""
    name = parse(task)
    if frame_skip < 1:
        raise UserError(f"A frame skip of {frame_skip} is not possible: it must be 1 or more.")
    if isinstance(name, SuiteTask):
        environment = Suite(name, frame_skip, render_mode)
    else:
        environment = Gym(name, frame_skip, render_mode)
    _, shifted = shifts.split(task)
    return environment if shifted is None else Shifted(environment, shifted)


def spec(task: str, frame_skip: int) -> EnvSpec:
    """Sizes of a task's states and actions."""
    with contextlib.closing(load(task, frame_skip)) as environment:
        return environment.spec


def ending_spec(task: str, frame_skip: int) -> EnvSpec:
    """The same of a task whose whole episodes are to be played; UserError if they have no limit."""
    with contextlib.closing(load(task, frame_skip)) as environment:
        frame_limit(task, environment)
        return environment.spec


def frame_limit(task: str, environment: Environment) -> int:
    """Frames after which an episode is over, whatever is done; UserError if it may go on for ever.

    Also for what ends by itself: a policy may learn not to let it.
    """
    if environment.episode_frames is None:
        raise UserError(
            f"{task} has no step limit, and whole episodes of it are to be played: register it "
            "with max_episode_steps, even if it ends by itself (docs/own-robot.md)."
        )
    return environment.episode_frames
