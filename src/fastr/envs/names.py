"""Names of tasks and the environments they mean."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from fastr.core import UserError, nearest
from fastr.envs import shifts

# Written out, because importing dm_control to check a name would fix this process's renderer for
# good. A test compares the list with the installed suite.
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
_GYM_HINT = (
    " Gymnasium environments are written gym:HalfCheetah-v5, or my_module:MyRobot-v0 if your "
    "own my_module registers them (docs/own-robot.md)."
)
_GYM_NAME = re.compile(r"([^\W\d]\w*(\.[^\W\d]\w*)*:)?([\w-]+/)?[\w.-]+")


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
        return self.name if ":" in self.name else f"gym:{self.name}"


class MadeTask(NamedTuple):
    """An environment that a function of the program makes."""

    name: str

    def __str__(self) -> str:
        return f"made:{self.name}"


MADE: dict[str, Callable[..., Any]] = {}
"""Functions that make environments, by name; worker processes get a copy."""


def make(function: Callable[[], Any], name: str) -> str:
    """The task of the environments that this function makes, in this process and its workers."""
    name = re.sub(r"\W+", "-", name).strip("-") or "environment"
    MADE[name] = function
    return str(MadeTask(name))


def tasks() -> tuple[str, ...]:
    """Every DM Control Suite task."""
    return tuple(map(str, _KNOWN.values()))


def parse(task: str) -> SuiteTask | GymTask | MadeTask:
    """The environment that a name means; a Gymnasium name is not yet looked up."""
    if not task:
        raise UserError("No task is named; a run that learned from a log alone has none.")
    task, shifted = shifts.split(task)
    if shifted is not None:
        shifts.check(shifted)
    if task.startswith("made:"):
        return MadeTask(task.removeprefix("made:"))
    if ":" in task:
        name = task.removeprefix("gym:")
        if not _GYM_NAME.fullmatch(name):
            raise UserError(f"{task!r} is not a task.{_GYM_HINT}")
        return GymTask(name)
    if known := _KNOWN.get(_spelling(task)):
        return known
    gym = task.endswith(".py") or re.search(r"-v\d+$|/", task)
    hint = _GYM_HINT if gym else nearest(task, tasks()) or _GYM_HINT
    raise UserError(f"{task!r} is not a DM Control Suite task.{hint}")


def spelled(task: str) -> str:
    """The one way to write a task; UserError if there is no such task."""
    parse(task)
    return respelled(task)


def respelled(task: str) -> str:
    """A task in its one spelling (walker_walk is walker-walk); an unknown name stays as it is."""
    name, at, shifted = task.partition("@")
    return f"{_KNOWN.get(_spelling(name), name)}{at}{shifted}"


def module_of(task: str) -> str:
    """The Python module that registers this task; empty if none does."""
    if ":" not in shifts.split(task)[0]:
        return ""
    name = parse(task)
    return name.name.rpartition(":")[0] if isinstance(name, GymTask) else ""


def require_imported(task: str, run: Path) -> None:
    """Raise UserError if playing a run's task would import a module that is not yet imported.

    A run's config.json may come from anywhere, and importing a module executes it.
    """
    module = module_of(task)
    if module and module not in sys.modules:
        raise UserError(
            f"{run} is on {task}, which imports the Python module {module}: if you trust that "
            f"module, add `fastr --import {quote(module)} ...` (docs/security.md)."
        )


def _spelling(name: str) -> str:
    """Hyphens for underscores: no two suite tasks differ only in these."""
    return name.replace("_", "-")


_KNOWN = {
    _spelling(f"{domain}-{task}"): SuiteTask(domain, task)
    for domain, words in _SUITE.items()
    for task in words.split()
}
