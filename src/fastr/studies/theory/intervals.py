"""Means over seeds with 95 % intervals, and exponents and crossings of power laws."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

Line = Float[np.ndarray, " point"]


class Interval(NamedTuple):
    """A mean over seeds and its 95 % t-interval; one seed has none."""

    mean: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None

    def __format__(self, form: str) -> str:
        """A single mean and its interval, e.g. 1.50 [1.20, 1.80]."""
        if self.low is None:
            return f"{self.mean:{form}}"
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"

    def under(self, function: Callable[[np.ndarray], np.ndarray]) -> "Interval":
        """Mean and ends under an increasing function."""
        low, high = (None if end is None else function(end) for end in self[1:])
        return Interval(function(self.mean), low, high)

    def below(self, other: "Interval") -> np.ndarray | None:
        """Where this interval ends before the other starts; None without intervals."""
        if self.high is None or other.low is None:
            return None
        return np.asarray(self.high < other.low)


def interval(values: Float[np.ndarray, "seed *point"]) -> Interval:
    """The mean over the first axis."""
    seeds, mean = len(values), values.mean(0)
    if seeds == 1:
        return Interval(mean, None, None)
    half = stats.t.ppf(0.975, seeds - 1) * values.std(0, ddof=1) / np.sqrt(seeds)
    return Interval(mean, mean - half, mean + half)


def log_interval(values: Float[np.ndarray, "seed *point"]) -> Interval:
    """The geometric mean over the first axis, its interval from the logarithms."""
    return interval(np.log(values)).under(np.exp)


def exponents(x: Line, y: Float[np.ndarray, "seed point"]) -> Float[np.ndarray, " seed"]:
    """Each seed's slope of log y against log x, by least squares."""
    return np.polyfit(np.log(x), np.log(y).T, 1)[0]


def crossing(x: Line, first: Line, second: Line) -> float:
    """Where `second` falls below `first` for good, interpolated in logarithms; or infinity."""
    gap = np.log(second) - np.log(first)
    above = np.nonzero(gap > 0)[0]
    if len(above) == 0:
        return float(x[0])
    last = above[-1]
    if last == len(x) - 1:
        return float("inf")
    share = gap[last] / (gap[last] - gap[last + 1])
    return float(np.exp(np.log(x[last]) + share * np.log(x[last + 1] / x[last])))
