"""Statistics over runs and tasks with stratified bootstrap intervals, and methods compared.

Scores come as one array of runs per task, so that tasks may have different numbers of runs. The
statistics work on stacks of such arrays, (resamples, runs), so that a bootstrap is one call.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import product
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Float64

from fastr.envs.names import tasks as suite_tasks
from fastr.report.series import FACTORED, JOINT, NAMES, TABLE_TASKS, Final, horizons, labels

RESAMPLES = 2_000
LARGEST_RETURN = 1_000.0
"""Of DM Control Suite tasks except lqr: rewards from 0 to 1 over 1,000 steps."""
SCALED = frozenset(task for task in suite_tasks() if not task.startswith("lqr-"))
"""Tasks whose returns share that scale; lqr's rewards have no lower bound."""
FRAMES = 1_000_000
"""The budget of every published number."""
Scores = Sequence[Float64[np.ndarray, " _"]]
Stacks = Sequence[Float64[np.ndarray, "resamples _"]]


class Interval(NamedTuple):
    """An estimate and its 95 % interval; no interval where resampling has nothing to vary."""

    value: float
    low: float | None
    high: float | None


def iqm(tasks: Stacks) -> Float64[np.ndarray, " resamples"]:
    """Mean of the middle half of all runs of all tasks."""
    return np.asarray(scipy.stats.trim_mean(np.concatenate(tasks, axis=1), 0.25, axis=1))


def probability_of_improvement(first: Stacks, second: Stacks) -> Float64[np.ndarray, " resamples"]:
    """Mean over tasks of P(X > Y) + P(X = Y) / 2 for a run X of the first and Y of the second."""
    per_task = [
        (x[:, :, None] > y[:, None, :]).mean(axis=(1, 2))
        + 0.5 * (x[:, :, None] == y[:, None, :]).mean(axis=(1, 2))
        for x, y in zip(first, second, strict=True)
    ]
    return np.mean(per_task, axis=0)


def interval(
    statistic: Callable[..., Float64[np.ndarray, " resamples"]],
    groups: Sequence[Scores],
    generator: np.random.Generator,
    *,
    resamples: int = RESAMPLES,
) -> Interval:
    """A statistic of one or two groups of scores, with its percentile interval."""
    value = float(statistic(*([task[None] for task in group] for group in groups))[0])
    if any(len(task) < 2 for group in groups for task in group):
        return Interval(value, None, None)
    # Runs are drawn with replacement within each task.
    draws = statistic(
        *(
            [task[generator.integers(len(task), size=(resamples, len(task)))] for task in group]
            for group in groups
        )
    )
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(value, float(low), float(high))


class Middle(NamedTuple):
    """A method's interquartile mean over a set of tasks, as a share of the largest return."""

    label: str
    tasks: tuple[str, ...]
    runs: int
    score: Interval


class Improvement(NamedTuple):
    """Probability that a run of the first method beats one of the second on their common tasks."""

    first: str
    second: str
    tasks: tuple[str, ...]
    runs: tuple[int, int]
    probability: Interval


def comparable(found: Sequence[Final]) -> tuple[list[Final], list[Final]]:
    """Finals on tasks that share a scale, to compare, and those left out.

    All methods on a task are compared at a frame that all have reached. Runs shorter than half of
    the longest are left out, and runs whose first evaluation comes after another run's last.
    """
    inside = [final for final in found if final.task in SCALED]
    longest: dict[str, int] = {}
    for final in inside:
        longest[final.task] = max(final.frames, longest.get(final.task, 0))
    long = [final for final in inside if 2 * final.frames >= longest[final.task]]
    until = horizons(long)
    kept = [final for final in long if final.evaluated[0] <= until[final.task]]
    return kept, [final for final in inside if final not in kept]


def by_method(found: Sequence[Final]) -> dict[str, dict[str, Final]]:
    """Finals by method and task."""
    return {
        label: {final.task: final for final in found if final.label == label}
        for label in labels(found)
    }


def shares(tasks: Mapping[str, Final], names: Sequence[str], until: Mapping[str, int]) -> Scores:
    """Scores up to the frame at which a task is compared, as shares of the largest return."""
    return [tasks[name].scores(until[name]) / LARGEST_RETURN for name in names]


def middles(found: Sequence[Final], seed: int) -> list[list[Middle]]:
    """Interquartile means: a list for each set of tasks on which two or more methods were measured.

    A method measured on further tasks counts with those of the set alone.
    """
    methods, until = by_method(found), horizons(found)
    panels = []
    for names in dict.fromkeys(tuple(sorted(tasks)) for tasks in methods.values()):
        panel = []
        for label, tasks in methods.items():
            if tasks.keys() >= set(names):
                scores = shares(tasks, names, until)
                score = interval(iqm, [scores], np.random.default_rng(seed))
                panel.append(Middle(label, names, sum(map(len, scores)), score))
        if len(panel) > 1:
            panels.append(panel)
    return panels


def improvements(found: Sequence[Final], seed: int) -> list[Improvement]:
    """Each method against the first that shares most tasks with it, at their common frames."""
    methods = by_method(found)
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
        runs = (sum(map(len, groups[0])), sum(map(len, groups[1])))
        result.append(Improvement(first, second, tuple(names), runs, chance))
    return result


class Published(NamedTuple):
    """A return that others have published at the paper's protocol."""

    method: str
    task: str
    mean: float
    std: float
    seeds: int
    source: str

    @property
    def of_the_paper(self) -> bool:
        """Whether the paper reports it."""
        return self.source.startswith("paper Table 1")


@cache
def published() -> tuple[Published, ...]:
    """The paper's Table 1, and other authors' numbers at the same budget and action repeat 2."""
    text = resources.files("fastr.report").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(
        Published(method, task, float(mean), float(std), int(seeds), source)
        for method, task, frames, mean, std, seeds, source in csv.reader(text.splitlines()[1:])
        if int(frames) == FRAMES
    )


def published_gains() -> dict[str, float]:
    """Return of FaStR less that of CTRL-SR by task, from the paper's Table 1."""
    means = {(one.method, one.task): one.mean for one in published() if one.of_the_paper}
    return {task: means[NAMES[FACTORED], task] - means[NAMES[JOINT], task] for task in TABLE_TASKS}


def gains(found: Sequence[Final]) -> dict[str, float]:
    """Return of FaStR less that of CTRL-SR by task, of the most similar pair of runs.

    Both have the same preset and ended at the same frame; the fewer options differ, the better.
    """
    closest: dict[str, tuple[int, float]] = {}
    for factored, joint in product(found, found):
        one, other = factored.series, joint.series
        if (
            (one.method, other.method) == (FACTORED, JOINT)
            and (one.task, one.variant) == (other.task, other.variant)
            and factored.frames == joint.frames
        ):
            names = {*one.settings, *other.settings}
            unlike = sum(one.settings.get(name) != other.settings.get(name) for name in names)
            pair = unlike, factored.mean - joint.mean
            closest[one.task] = min(closest.get(one.task, pair), pair, key=lambda it: it[0])
    return {task: gain for task, (_, gain) in closest.items()}
