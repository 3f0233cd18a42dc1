"""Statistics over runs and tasks, with stratified bootstrap intervals.

Scores come as one array of runs per task, so that tasks may have different numbers of runs. The
statistics work on stacks of such arrays, (resamples, runs), so that a bootstrap is one call.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Float64

RESAMPLES = 2_000
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


def resampled(scores: Scores, generator: np.random.Generator, resamples: int) -> Stacks:
    """Runs drawn with replacement within each task."""
    return [task[generator.integers(len(task), size=(resamples, len(task)))] for task in scores]


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
    draws = statistic(*(resampled(group, generator, resamples) for group in groups))
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(value, float(low), float(high))


def median_frames(frames: Sequence[int | None]) -> float | None:
    """Median over seeds of the frames needed; None, not reached, lies beyond every number."""
    median = float(np.median([math.inf if frame is None else frame for frame in frames]))
    return median if math.isfinite(median) else None
