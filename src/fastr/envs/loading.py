"""From a task's name to its environment."""

import contextlib
from typing import Literal

from fastr import shifts
from fastr.envs.base import Environment
from fastr.envs.gym import Gym
from fastr.envs.names import SuiteTask, parse
from fastr.envs.shifted import Shifted
from fastr.envs.suite import Suite
from fastr.errors import UserError
from fastr.spec import EnvSpec


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
