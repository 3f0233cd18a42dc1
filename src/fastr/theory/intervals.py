"""Means over seeds with 95 % intervals, and exponents of power laws."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats


class Interval(NamedTuple):
    """A mean over seeds and its 95 % t-interval; with one seed the interval is the mean."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def text(self, form: str = ".2f") -> str:
        """A single mean and interval for people."""
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"


def interval(values: Float[np.ndarray, "seed *point"]) -> Interval:
    """The mean over the first axis."""
    seeds, mean = len(values), values.mean(0)
    if seeds == 1:
        return Interval(mean, mean, mean)
    half = stats.t.ppf(0.975, seeds - 1) * values.std(0, ddof=1) / np.sqrt(seeds)
    return Interval(mean, mean - half, mean + half)


def log_interval(values: Float[np.ndarray, "seed *point"]) -> Interval:
    """The geometric mean over the first axis, its interval from the logarithms."""
    return Interval(*(np.exp(part) for part in interval(np.log(values))))


def exponents(
    x: Float[np.ndarray, " point"], y: Float[np.ndarray, "seed point"]
) -> Float[np.ndarray, " seed"]:
    """Each seed's slope of log y against log x, by least squares."""
    return np.polyfit(np.log(x), np.log(y).T, 1)[0]


def crossing(
    x: Float[np.ndarray, " point"],
    first: Float[np.ndarray, " point"],
    second: Float[np.ndarray, " point"],
) -> float:
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
