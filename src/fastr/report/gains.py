"""Misfit against return gain (Figure cp-misfit): return of FaStR less that of CTRL-SR, by task."""

from collections.abc import Collection, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from fastr.core import LARGEST, UserError
from fastr.envs.names import respelled
from fastr.report.evaluations import json_object
from fastr.report.published import published
from fastr.report.series import NAMES, Series, differing, finals, grouped, options_of, united
from fastr.report.table import shown
from fastr.runs.summary import number

TABLE_TASKS = (
    "cheetah-run",
    "walker-walk",
    "walker-run",
    "quadruped-walk",
    "quadruped-run",
    "humanoid-stand",
    "humanoid-walk",
    "humanoid-run",
    "dog-stand",
    "dog-run",
)
"""The ten tasks of the paper's Table 1."""
EXTRA_TASKS = ("finger-spin", "hopper-hop", "fish-swim")
"""Three more, ours: the paper's figure has 13 tasks with 2 to 38 action dimensions and does not
name them. These have 2, 4 and 5, where Table 1 has none."""
FACTORED, JOINT = "fastr", "ctrl-sr"


REPORT = "report.json"
"""Of fastr misfit."""
ENDS = ("value", "low", "high")


class Misfit(NamedTuple):
    """Excess test loss of CP over joint on one dataset: each value, low, high."""

    task: str
    dataset: str
    action_dim: int
    nce: tuple[float, ...]
    moment: tuple[float, ...]


def read_misfits(path: Path) -> list[Misfit]:
    """The datasets in a report of fastr misfit."""
    entries = json_object(path).get("datasets")
    if not isinstance(entries, list) or not all(map(sound, entries)):
        raise UserError(f"{path} is not a report of fastr misfit.")
    return [
        Misfit(
            # A dataset without a task goes by its own name.
            shown(respelled(str(entry.get("task") or entry["name"]))),
            shown(entry["name"]),
            entry["action_dim"],
            *(tuple(entry[f"{kind}_misfit"][end] for end in ENDS) for kind in ("nce", "moment")),
        )
        for entry in entries
    ]


def sound(entry: Any) -> bool:
    """Whether every value of a dataset's entry is of its kind."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return False
    misfits = [entry.get("nce_misfit"), entry.get("moment_misfit")]
    return (
        type(entry.get("action_dim")) is int
        and 1 <= entry["action_dim"] <= LARGEST
        and all(
            isinstance(one, dict) and all(number(one.get(end)) for end in ENDS) for one in misfits
        )
    )


def gains(found: Sequence[Series]) -> dict[str, float]:
    """Return gain by task, of the first pair that was run alike and equally long."""
    result: dict[str, float] = {}
    for group in alike(found):
        for factored, joint in permutations(finals(united(group))[0], 2):
            one, other = factored.series, joint.series
            same = one.differences == other.differences and factored.frames == joint.frames
            if (one.method, other.method) == (FACTORED, JOINT) and same:
                result.setdefault(one.task, factored.mean - joint.mean)
    return result


def alike(found: Sequence[Series]) -> list[list[Series]]:
    """FaStR and CTRL-SR on one task, in groups with the same value of every varied option.

    An option in which only the methods differ belongs to the methods.
    """
    both = [one for one in found if one.method in (FACTORED, JOINT)]
    result = []
    for here in grouped(both, lambda one: (one.task, one.variant)):
        own = [[one for one in here if one.method == method] for method in (FACTORED, JOINT)]
        names = [*options_of(here), "frames"]
        varied = sorted({name for runs in own for name in differing(runs, names)})
        result += grouped(here, partial(option_values, names=varied))
    return result


def option_values(series: Series, names: Sequence[str]) -> tuple[str, ...]:
    """Some options of a run, to compare."""
    return tuple(repr(series.settings.get(name)) for name in names)


def published_gains() -> dict[str, float]:
    """Return gain by task from the paper's Table 1."""
    means = {(one.method, one.task): one.mean for one in published() if one.of_the_paper}
    return {task: means[NAMES[FACTORED], task] - means[NAMES[JOINT], task] for task in TABLE_TASKS}


def missing(misfits: Sequence[Misfit], known: Collection[str]) -> str:
    """Tasks of the paper's figure without a misfit, and those without a gain, in words."""
    measured = {one.task for one in misfits}
    without = [task for task in (*TABLE_TASKS, *EXTRA_TASKS) if task not in measured]
    parts = [f"no misfit measured: {', '.join(without)}"] if without else []
    if lacking := sorted(measured - set(known)):
        text = "no returns of both methods, run alike and equally long"
        parts.append(f"{text}: {', '.join(lacking)}")
    return "; ".join(parts)
