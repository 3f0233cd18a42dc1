"""Differences between two predictors on the same test rows, with their uncertainty."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

LEVEL = 0.95
"""Of every interval."""


class Estimate(NamedTuple):
    """A mean difference and where it may lie."""

    value: float
    low: float
    high: float
    """The ends of the interval over test episodes and training seeds together."""
    episodes_low: float
    episodes_high: float
    """Over test episodes alone: what another test set might say."""
    seeds_std: float | None
    """Standard deviation (ddof 1) over training seeds; None for a single seed."""


def estimate(
    differences: Float[np.ndarray, "seed rows"],
    episodes: Int[np.ndarray, " rows"],
    resamples: int,
    generator: np.random.Generator,
) -> Estimate:
    """The mean over rows and seeds, with bootstrap intervals.

    Whole episodes are drawn again, because the rows of one are not independent. Drawn seeds are
    spread further apart, without which the interval of few seeds would be too narrow.
    """
    sums, counts = by_episode(differences, episodes)
    seeds = len(differences)
    over_episodes = np.empty(resamples)
    over_both = np.empty(resamples)
    for i in range(resamples):
        drawn = generator.integers(len(counts), size=len(counts))
        means = sums[:, drawn].sum(axis=1) / counts[drawn].sum()
        over_episodes[i] = over_both[i] = means.mean()
        if seeds > 1:
            again = means[generator.integers(seeds, size=seeds)].mean()
            over_both[i] += spread(seeds) * (again - means.mean())
    per_seed = sums.sum(axis=1) / counts.sum()
    ends = [50 * (1 - LEVEL), 50 * (1 + LEVEL)]
    low, high = np.percentile(over_both, ends)
    episodes_low, episodes_high = np.percentile(over_episodes, ends)
    seeds_std = float(per_seed.std(ddof=1)) if seeds > 1 else None
    return Estimate(
        float(per_seed.mean()),
        float(low),
        float(high),
        float(episodes_low),
        float(episodes_high),
        seeds_std,
    )


def spread(seeds: int) -> float:
    """What makes a bootstrap over few seeds as wide as Student's interval.

    sqrt(n / (n - 1)) for the variance it leaves out, and Student's quantile over the normal one.
    """
    probability = (1 + LEVEL) / 2
    quantile = stats.t.ppf(probability, seeds - 1) / stats.norm.ppf(probability)
    return float(np.sqrt(seeds / (seeds - 1)) * quantile)


def by_episode(
    values: Float[np.ndarray, "*lead rows"], episodes: Int[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "*lead episode"], Int[np.ndarray, " episode"]]:
    """Sums of the values of each episode, and its number of rows."""
    _, places, counts = np.unique(episodes, return_inverse=True, return_counts=True)
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    sums = np.stack([np.bincount(places, weights=row, minlength=len(counts)) for row in flat])
    return sums.reshape(*values.shape[:-1], len(counts)), counts
