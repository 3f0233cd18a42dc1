"""Encoders that are constant on the cells of a grid, as fine as held-out data ask for.

Classes of this kind grow with n as Lipschitz classes do: cells per axis k leave a bias of order
k^-2 in L and have k^max(ds,da) or k^(ds+da) numbers per coordinate to estimate. Balancing the two
gives L of order n^(-2/(2+D)) with the D of App. Lipschitz Instantiation.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fastr.studies.theory.certificates import Class
from fastr.studies.theory.sampling import draw
from fastr.studies.theory.spectral_fit import Fit, empirical_loss, factored_fit, joint_fit, risk
from fastr.studies.theory.waves import Waves


@dataclass(frozen=True)
class Sample:
    """Shares of training and of held-out transitions in the finest cells."""

    train: Float[np.ndarray, "state action next"]
    held_out: Float[np.ndarray, "state action next"]


def sample(truth: Waves, n: int, cells: int, generator: np.random.Generator) -> Sample:
    """n transitions, a fifth of them held out."""
    means = truth.cell_means(cells)
    held_out = max(n // 5, 1)
    return Sample(draw(means, n - held_out, generator), draw(means, held_out, generator))


def merged(
    shares: Float[np.ndarray, "s a x"], dims: tuple[int, int], times: int
) -> Float[np.ndarray, "s2 a2 x2"]:
    """The shares in cells `times` as wide along every axis."""
    state_dim, action_dim = dims
    axes = 2 * state_dim + action_dim
    cells = round(shares.shape[0] ** (1 / state_dim))
    split = shares.reshape((cells // times, times) * axes)
    sums = split.sum(tuple(range(1, 2 * axes, 2)))
    kept = cells // times
    return sums.reshape(kept**state_dim, kept**action_dim, kept**state_dim)


def fit(
    kind: Class,
    shares: Float[np.ndarray, "state action next"],
    terms: int,
    generator: np.random.Generator,
) -> Fit:
    """The empirical minimiser over one class, the constant term given."""
    if kind == "joint":
        return joint_fit(shares, terms, 1.0)
    return factored_fit(shares, terms, generator, offset=1.0, starts=3, sweeps=60)


def sieve_risk(
    kind: Class, truth: Waves, data: Sample, finest: int, generator: np.random.Generator
) -> tuple[float, int]:
    """L of the fit at the resolution that held-out data prefer, and that resolution."""
    dims = truth.state_waves.shape[1], truth.action_waves.shape[1]
    tried = []
    cells = finest
    while cells >= 1:
        parts = (data.train, data.held_out)
        shares, held_out = (merged(part, dims, finest // cells) for part in parts)
        fitted = fit(kind, shares, truth.cp_terms, generator)
        tried.append((empirical_loss(fitted, held_out), cells, fitted))
        cells //= 2
    _, cells, fitted = min(tried, key=lambda trial: trial[0])
    means = truth.cell_means(cells)
    within = truth.second_moment - np.square(means).mean()
    return risk(fitted.score, means) + float(within), cells
