"""Misfit against return gain (Figure cp-misfit): return of FaStR less that of CTRL-SR, by task."""

from collections.abc import Collection, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from fastr.core import LARGEST, UserError
from fastr.envs.names import respelled
from fastr.report.evaluations import json_object
from fastr.report.published import published
from fastr.report.series import NAMES, Final, Series, differing, finals, grouped, options_of, united
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


def pairs(found: Sequence[Series]) -> list[tuple[Final, Final]]:
    """FaStR and CTRL-SR wherever both were run alike and equally long."""
    both = [one for one in found if one.method in (FACTORED, JOINT)]
    result = []
    for here in grouped(both, lambda one: (one.task, one.variant)):
        own = [[one for one in here if one.method == method] for method in (FACTORED, JOINT)]
        # An option in which only the methods differ belongs to the methods.
        names = [*options_of(here), "frames"]
        varied = sorted({name for runs in own for name in differing(runs, names)})
        for group in grouped(here, lambda one: tuple(repr(one.settings.get(n)) for n in varied)):  # noqa: B023
            result += [
                (factored, joint)
                for factored, joint in permutations(finals(united(group))[0], 2)
                if (factored.series.method, joint.series.method) == (FACTORED, JOINT)
                and alike(factored, joint)
            ]
    return result


def alike(factored: Final, joint: Final) -> bool:
    """Whether two finals have the same variant, the same options and the same length."""
    first, second = factored.series, joint.series
    names = (first.variant, first.differences), (second.variant, second.differences)
    return names[0] == names[1] and factored.frames == joint.frames


def gains(found: Sequence[Series]) -> dict[str, float]:
    """Return gain by task, of the first pair of runs on it."""
    result: dict[str, float] = {}
    for factored, joint in pairs(found):
        result.setdefault(factored.task, factored.mean - joint.mean)
    return result


def published_gains() -> dict[str, float]:
    """Return gain by task from the paper's Table 1."""
    means = {(one.method, one.task): one.mean for one in published() if one.of_the_paper}
    both = NAMES[FACTORED], NAMES[JOINT]
    return {
        task: means[both[0], task] - means[both[1], task]
        for task in TABLE_TASKS
        if all((name, task) in means for name in both)
    }


def missing(misfits: Sequence[Misfit], known: Collection[str]) -> str:
    """Tasks of the paper's figure without a misfit, and those without a gain, in words."""
    measured = {one.task for one in misfits}
    without = [task for task in (*TABLE_TASKS, *EXTRA_TASKS) if task not in measured]
    parts = [f"no misfit measured: {', '.join(without)}"] if without else []
    if lacking := sorted(measured - set(known)):
        text = "no returns of both methods, run alike and equally long"
        parts.append(f"{text}: {', '.join(lacking)}")
    return "; ".join(parts)
