"""Methods over tasks: interquartile means, probabilities of improvement, frames, hours."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fastr.envs.names import tasks as suite_tasks
from fastr.report.finals import Final, horizons, labels
from fastr.report.stats import (
    Interval,
    Scores,
    interval,
    iqm,
    median_frames,
    probability_of_improvement,
)

LARGEST_RETURN = 1_000.0
"""Of the DM Control Suite's tasks but lqr's: rewards from 0 to 1 over 1,000 steps."""
SCALED = frozenset(task for task in suite_tasks() if not task.startswith("lqr-"))
"""Tasks whose returns share that scale; lqr's rewards are 1 less a cost without bound."""
SHARES = (0.5, 0.9)
"""Of the best final mean: the returns whose reaching is timed unless others are named."""


class Middle(NamedTuple):
    """A method's interquartile mean over a set of tasks, as a share of the largest return."""

    label: str
    tasks: tuple[str, ...]
    runs: int
    score: Interval


class Improvement(NamedTuple):
    """How likely a run of the first method beats one of the second, over the tasks they share."""

    first: str
    second: str
    tasks: tuple[str, ...]
    runs: tuple[int, int]
    probability: Interval


class Reached(NamedTuple):
    """Frames until an evaluation first reached a return."""

    task: str
    label: str
    wanted: float
    per_seed: tuple[int | None, ...]
    """None: not reached within the run."""
    frames: int
    """How long was waited."""

    @property
    def successes(self) -> int:
        """Seeds that reached it."""
        return sum(frame is not None for frame in self.per_seed)

    @property
    def median(self) -> float | None:
        """Over all seeds, those that never got there included; None: not reached."""
        return median_frames(self.per_seed)


class Clock(NamedTuple):
    """Wall-clock of a method's runs on a task, all seeds together."""

    task: str
    label: str
    hardware: str
    seeds: int
    frames: int
    """Of all seeds together."""
    hours: float
    cost: float | None


def comparable(found: Sequence[Final]) -> tuple[list[Final], dict[str, list[Final]]]:
    """Finals on tasks that share a scale, to compare, and those left out, by the reason.

    One run that has just begun would take all others on its task back to its own beginning, so
    what ended before half of the longest is left out. So is what has no evaluation as early as the
    last one of another: a curve of one point at the end of a longer training, say.
    """
    inside = [final for final in found if final.task in SCALED]
    longest: dict[str, int] = {}
    for final in inside:
        longest[final.task] = max(final.frames, longest.get(final.task, 0))
    long = [final for final in inside if 2 * final.frames >= longest[final.task]]
    until = horizons(long)
    kept = [final for final in long if final.whole.frames[0] <= until[final.task]]
    return kept, {
        "it ended before half of the longest on its task": without(inside, long),
        "another on its task ended before its first evaluation": without(long, kept),
    }


def without(found: Sequence[Final], kept: Sequence[Final]) -> list[Final]:
    """The finals that were not kept."""
    return [final for final in found if not any(final is one for one in kept)]


def scores_by_task(found: Sequence[Final]) -> dict[str, dict[str, Final]]:
    """Finals by method and task."""
    result: dict[str, dict[str, Final]] = {label: {} for label in labels(found)}
    for final in found:
        result[final.label][final.task] = final
    return {label: tasks for label, tasks in result.items() if tasks}


def shares(tasks: Mapping[str, Final], names: Sequence[str], until: Mapping[str, int]) -> Scores:
    """Scores up to the frame at which a task is compared, as shares of the largest return."""
    return [tasks[name].whole.scores(until[name]) / LARGEST_RETURN for name in names]


def middles(found: Sequence[Final], seed: int) -> list[list[Middle]]:
    """Interquartile means, a list for each set of tasks on which two methods or more were measured.

    A method that was measured on further tasks as well counts with those of the set alone.
    """
    methods, until = scores_by_task(found), horizons(found)
    panels = []
    for names in dict.fromkeys(tuple(sorted(tasks)) for tasks in methods.values()):
        panel = []
        for label, tasks in methods.items():
            if tasks.keys() >= set(names):
                scores = shares(tasks, names, until)
                score = interval(iqm, [scores], np.random.default_rng(seed))
                panel.append(Middle(label, names, sum(len(task) for task in scores), score))
        if len(panel) > 1:
            panels.append(panel)
    return panels


def improvements(found: Sequence[Final], seed: int) -> list[Improvement]:
    """Each method against the first that shares most tasks with it, at their common frames."""
    methods = scores_by_task(found)
    result = []
    for place, second in enumerate(methods):
        overlap = {
            first: sorted(methods[first].keys() & methods[second].keys())
            for first in list(methods)[:place]
        }
        first = max(overlap, key=lambda label: len(overlap[label]), default=None)
        if first is None or not overlap[first]:
            continue
        names = overlap[first]
        both = methods[first], methods[second]
        until = {name: min(tasks[name].frames for tasks in both) for name in names}
        groups = [shares(tasks, names, until) for tasks in both]
        chance = interval(probability_of_improvement, groups, np.random.default_rng(seed))
        runs = (sum(len(task) for task in groups[0]), sum(len(task) for task in groups[1]))
        result.append(Improvement(first, second, tuple(names), runs, chance))
    return result


def reaching(found: Sequence[Final], wanted: Sequence[float]) -> list[Reached]:
    """Frames to each of these returns, or to shares of the best final mean of each task."""
    result = []
    for task in dict.fromkeys(final.task for final in found):
        here = [final for final in found if final.task == task]
        best = max(final.mean for final in here)
        levels = wanted or [share * best for share in SHARES if best > 0]
        result += [
            Reached(task, final.label, level, first_frames(final, level), final.frames)
            for level in levels
            for final in here
        ]
    return result


def first_frames(final: Final, level: float) -> tuple[int | None, ...]:
    """For each seed the frame of its first evaluation at or above a return, of all it has."""
    curves = [final.series.curves[seed] for seed in final.series.seeds]
    return tuple(next((f for f, value in curve if value >= level), None) for curve in curves)


def clocks(found: Sequence[Final], price: float | None) -> list[Clock]:
    """Hours of every method whose runs recorded them; cost at a price per hour of machine."""
    result = []
    for final in found:
        series = final.series
        if not series.seconds:
            continue
        hours = series.seconds / 3600
        hardware = " | ".join(dict.fromkeys(origin.hardware for origin in series.origins))
        frames = sum(series.curves[seed][-1][0] for seed in series.seeds)
        cost = None if price is None else hours * price
        seeds = len(series.seeds)
        result.append(Clock(series.task, final.label, hardware, seeds, frames, hours, cost))
    return result
