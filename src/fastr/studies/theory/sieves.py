"""The separation on continuous spaces: both classes on sieves, which grow with n.

Encoders are constant on the cells of a grid whose resolution held-out data choose. Such classes
grow with n as Lipschitz classes do: k cells per axis leave a bias of order k^-2 in L and have
k^max(ds,da) or k^(ds+da) numbers per coordinate to estimate. Balancing the two gives L of order
n^(-2/(2+D)) with the D of App. Lipschitz Instantiation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from fastr.studies.theory.bounds import KINDS
from fastr.studies.theory.fits import empirical_loss, factored_fit, joint_fit, risk
from fastr.studies.theory.intervals import Interval, exponents, interval, log_interval
from fastr.studies.theory.mdp import Table, draw
from fastr.studies.theory.page import Claim, Curve, Grid, Plot, Verdict, banded, judge
from fastr.studies.theory.waves import Waves, waves

Errors = dict[str, Float[np.ndarray, "seed n"]]
"""L of both classes, by seed and n."""
CLAIM = Claim(
    "On continuous spaces the classes differ in the exponent (d_s, d_a = {sieve.state_dim}, "
    "{sieve.action_dim}).",
    "factored {factored:.2f} for {sieve.predicted[factored]:.2f}, "
    "joint {joint:.2f} for {sieve.predicted[joint]:.2f}",
    lambda found: found.factored.below(found.joint),
)


def sample(truth: Waves, n: int, cells: int, generator: Generator) -> tuple[Table, Table]:
    """Shares of n transitions in the finest cells: four fifths to fit, one fifth held out."""
    means = truth.cell_means(cells)
    held_out = max(n // 5, 1)
    return draw(means, n - held_out, generator), draw(means, held_out, generator)


def merged(
    shares: Float[np.ndarray, "s a x"], dims: tuple[int, int], times: int
) -> Float[np.ndarray, "s2 a2 x2"]:
    """The shares in cells `times` as wide along every axis."""
    state_dim, action_dim = dims
    axes = 2 * state_dim + action_dim
    kept = round(shares.shape[0] ** (1 / state_dim)) // times
    sums = shares.reshape((kept, times) * axes).sum(tuple(range(1, 2 * axes, 2)))
    return sums.reshape(kept**state_dim, kept**action_dim, kept**state_dim)


def sieve_risk(
    kind: str, truth: Waves, data: tuple[Table, Table], finest: int, generator: Generator
) -> tuple[float, int]:
    """L of the fit at the resolution with the smallest held-out loss, and that resolution."""
    dims = truth.state_waves.shape[1], truth.action_waves.shape[1]
    tried = []
    cells = finest
    while cells >= 1:
        shares, held_out = (merged(part, dims, finest // cells) for part in data)
        if kind == "joint":
            fitted = joint_fit(shares, truth.cp_terms, 1.0)
        else:
            sizes = {"offset": 1.0, "starts": 3, "sweeps": 60}
            fitted = factored_fit(shares, truth.cp_terms, generator, **sizes)
        tried.append((empirical_loss(fitted, held_out), cells, fitted))
        cells //= 2
    _, cells, fitted = min(tried, key=lambda trial: trial[0])
    means = truth.cell_means(cells)
    within = truth.second_moment - np.square(means).mean()
    return risk(fitted.score, means) + float(within), cells


@dataclass(frozen=True)
class Sieve:
    """Sizes of one measurement."""

    state_dim: int
    action_dim: int
    finest: int
    """The finest resolution."""
    powers: tuple[float, float]
    """The range of log10 n, before the finest resolution binds."""

    @property
    def n(self) -> Float[np.ndarray, " n"]:
        """The sample sizes."""
        low, high = self.powers
        return np.floor(10.0 ** np.arange(low, high + 0.01, 0.5))

    @property
    def dims(self) -> dict[str, int]:
        """The D of both classes."""
        largest, total = max(self.state_dim, self.action_dim), self.state_dim + self.action_dim
        return {"factored": largest, "joint": total}

    @property
    def predicted(self) -> dict[str, float]:
        """-2 / (2 + D) of both classes."""
        return {kind: -2.0 / (2.0 + size) for kind, size in self.dims.items()}

    def errors(self, seeds: Sequence[int]) -> Errors:
        """L of both classes, their resolution chosen by held-out data."""
        truth = waves(self.state_dim, self.action_dim, terms=2)
        found = {kind: [] for kind in KINDS}
        for seed in seeds:
            generator = np.random.default_rng(seed)
            samples = [sample(truth, int(n), self.finest, generator) for n in self.n]
            for kind in KINDS:
                fits = [sieve_risk(kind, truth, data, self.finest, generator) for data in samples]
                found[kind].append([risk for risk, _ in fits])
        return {kind: np.array(rows) for kind, rows in found.items()}

    def slopes(self, errors: Errors) -> dict[str, Interval]:
        """The measured exponents of L in n."""
        return {kind: interval(exponents(self.n, errors[kind])) for kind in KINDS}

    def verdict(self, errors: Errors) -> Verdict:
        """Whether the classes differ in the exponent."""
        return judge([CLAIM], sieve=self, **self.slopes(errors))[0]

    def rows(self, errors: Errors) -> list[tuple[str, ...]]:
        """For each class the measured exponent, that of balancing and that of the certificates."""
        slopes, dims = self.slopes(errors), f"{self.state_dim}, {self.action_dim}"
        certified = {k: f"{-1 / d:.3f}" if d >= 3 else "none: D < 3" for k, d in self.dims.items()}
        return [
            (dims, kind, f"{slopes[kind]:.3f}", f"{self.predicted[kind]:.3f}", certified[kind])
            for kind in KINDS
        ]

    def plot(self, errors: Errors) -> Plot:
        """L against n."""
        curves = []
        for color, kind in enumerate(KINDS):
            summary, power = log_interval(errors[kind]), self.predicted[kind]
            guide = float(summary.mean[0]) * (self.n / self.n[0]) ** power
            curves.append(banded(kind, self.n, summary, "line", color))
            label = f"slope {power:.2f}"
            curves.append(Curve(label, self.n.tolist(), guide.tolist(), look="dotted", color=color))
        dims = f"d_s = {self.state_dim}, d_a = {self.action_dim}"
        title = f"Continuous, {dims}, resolution by held-out loss"
        name = f"sieve-{self.state_dim}-{self.action_dim}"
        return Plot(name, title, "n", "L(g_n)", tuple(curves))


SIEVES = (Sieve(1, 1, finest=64, powers=(3.5, 6.5)), Sieve(2, 2, finest=8, powers=(3.5, 5.5)))


def sieve_table(measured: Sequence[tuple[Sieve, Errors]]) -> Grid:
    """The exponents of every sieve and class."""
    rows = [row for sieve, errors in measured for row in sieve.rows(errors)]
    columns = ("d_s, d_a", "class", "fitted exponent", "-2/(2+D)", "certificate -1/D")
    return Grid("Exponents of L in n on continuous spaces", columns, tuple(rows))
