"""Tasks by name: DM Control Suite and Gymnasium environments behind one interface.

`load` gives an `Environment` (base.py); names.py says what a task is called, suite.py and gym.py
are the two libraries, shifts.py changes the actuators behind a
task's @, anatomy.py finds the limbs of a robot, and processes.py runs one simulator per process
(`EnvPool`). Importing this room loads neither JAX nor a simulator.
"""

import contextlib
from typing import Any, Literal

from fastr.core import EnvSpec, UserError
from fastr.envs import shifts
from fastr.envs.base import (
    Bounds,
    Environment,
    Part,
    Robot,
    SimulatorError,
    Step,
    episode_seed,
    finite_state,
    finite_step,
)
from fastr.envs.gym import Gym
from fastr.envs.names import (
    GymTask,
    MadeTask,
    SuiteTask,
    make,
    module_of,
    parse,
    require_imported,
    tasks,
)
from fastr.envs.suite import Suite

__all__ = [
    "Bounds",
    "Environment",
    "GymTask",
    "MadeTask",
    "Part",
    "Robot",
    "SimulatorError",
    "Step",
    "SuiteTask",
    "ending_spec",
    "episode_seed",
    "finite_state",
    "finite_step",
    "frame_limit",
    "load",
    "make",
    "module_of",
    "parse",
    "require_imported",
    "spec",
    "tasks",
]


def load(
    task: str, frame_skip: int, *, render_mode: Literal["rgb_array"] | None = None
) -> Environment:
    """Load the task of this name, holding each action for `frame_skip` frames."""
    name = parse(task)
    if frame_skip < 1:
        raise UserError(f"A frame skip of {frame_skip} is not possible: it must be 1 or more.")
    kind: Any = Suite if isinstance(name, SuiteTask) else Gym
    environment = kind(name, frame_skip, render_mode)
    _, shifted = shifts.split(task)
    return environment if shifted is None else shifts.Shifted(environment, shifted)


def spec(task: str, frame_skip: int) -> EnvSpec:
    """Sizes of a task's states and actions."""
    with contextlib.closing(load(task, frame_skip)) as environment:
        return environment.spec


def ending_spec(task: str, frame_skip: int) -> EnvSpec:
    """Sizes of a task that must have a step limit; UserError if it has none."""
    with contextlib.closing(load(task, frame_skip)) as environment:
        frame_limit(task, environment)
        return environment.spec


def frame_limit(task: str, environment: Environment) -> int:
    """Frames of the longest possible episode; UserError if there is no limit.

    Required even if episodes end by themselves: a policy may learn never to end one.
    """
    if environment.episode_frames is None:
        raise UserError(
            f"{task} has no step limit, and evaluations play whole episodes: register it with "
            "max_episode_steps, or wrap it in gymnasium.wrappers.TimeLimit, even if it ends by "
            "itself (docs/own-robot.md)."
        )
    return environment.episode_frames
