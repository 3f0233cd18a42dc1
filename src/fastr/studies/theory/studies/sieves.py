"""The separation on continuous spaces: both classes on sieves, which grow with n."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fastr.studies.theory.certificates import KINDS
from fastr.studies.theory.intervals import Interval, exponents, interval, log_interval
from fastr.studies.theory.report import Curve, Grid, Plot, Verdict, banded
from fastr.studies.theory.sieve import sample, sieve_risk
from fastr.studies.theory.waves import waves

Errors = dict[str, Float[np.ndarray, "seed n"]]
"""L of both classes, by seed and n."""


@dataclass(frozen=True)
class Sieve:
    """Sizes of one measurement with encoders that are constant on the cells of a grid."""

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
        return {
            "factored": max(self.state_dim, self.action_dim),
            "joint": self.state_dim + self.action_dim,
        }

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

    def slope(self, errors: Float[np.ndarray, "seed n"]) -> Interval:
        """The measured exponent of L in n."""
        return interval(exponents(self.n, errors))

    def verdict(self, errors: Errors) -> Verdict:
        """Whether the classes differ in the exponent."""
        slopes = {kind: self.slope(errors[kind]) for kind in KINDS}
        said = ", ".join(f"{k} {slopes[k].text()} for {self.predicted[k]:.2f}" for k in KINDS)
        apart = slopes["factored"].below(slopes["joint"])
        return Verdict(
            "On continuous spaces the classes differ in the exponent "
            f"(d_s, d_a = {self.state_dim}, {self.action_dim}).",
            said,
            None if apart is None else bool(apart),
        )

    def row(self, kind: str, errors: Errors) -> tuple[str, ...]:
        """The measured exponent of one class beside those of balancing and of the certificates."""
        size = self.dims[kind]
        return (
            f"{self.state_dim}, {self.action_dim}",
            kind,
            self.slope(errors[kind]).text(".3f"),
            f"{self.predicted[kind]:.3f}",
            f"{-1 / size:.3f}" if size >= 3 else "none: D < 3",
        )

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
    rows = [sieve.row(kind, errors) for sieve, errors in measured for kind in KINDS]
    columns = ("d_s, d_a", "class", "fitted exponent", "-2/(2+D)", "certificate -1/D")
    return Grid("Exponents of L in n on continuous spaces", columns, tuple(rows))
