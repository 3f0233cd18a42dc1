"""The paper's theory as programs: each claim can be run, and seen where it stops holding.

The studies are in `linearity` (two of them), `certificates`, `separation` and `exploration`. They
share `mdp` (MDPs known exactly), `fits` (minimisers of both objectives) and this file: claims with
verdicts, tables and figures, with 95 % intervals over seeds.

All is exact or NumPy in float64, except the ranking loss: JAX in float32. Axis names: `term`
(products of waves), `wave` (frequencies), `fit` (samples fitted in parallel), `run` (explorations).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from fastr.report import page
from fastr.report.page import Axes, Curve, Figure, curves
from fastr.report.table import Cell, Table

Line = Float[np.ndarray, " point"]
VERDICTS = {
    True: Cell("holds", tone="good"),
    False: Cell("does not hold", tone="bad"),
    None: Cell("no verdict"),
}
LEAD = (
    "Each section states a claim of the paper, what was measured, and whether the measurement "
    "agrees (more in docs/theory.md). A claim that does not hold is marked so."
)


class Interval(NamedTuple):
    """A mean over seeds and its 95 % t-interval; one seed has none."""

    mean: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None

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
        return Interval(mean)
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


def curve(label: str, x: Any, y: Interval | Line, color: int = 0, dash: str = "-") -> Curve:
    """A curve of numbers, or of means with their intervals."""
    mean, low, high = y if isinstance(y, Interval) else (y, None, None)
    ends = () if low is None or high is None else (low, high)
    return Curve(label, np.asarray(x, float), mean, *ends, color=color, dash=dash)


def log_plot(name: str, title: str, x: str, y: str, lines: Sequence[Curve]) -> Figure:
    """Curves on two logarithmic scales."""
    return curves(name, title, lines, Axes(x, y, "log", "log"))


@dataclass(frozen=True)
class Verdict:
    """A claim, what was measured, and whether the measurement agrees."""

    claim: str
    measured: str
    holds: bool | None
    """None if intervals decide and one seed has none."""


def judge(claim: str, measured: str, agrees: Any) -> Verdict:
    """The verdict on a claim from whether the results agree: at every size, if at several."""
    return Verdict(claim, measured, None if agrees is None else bool(np.all(agrees)))


def how_often(apart: np.ndarray | None) -> str:
    """At how many sizes two intervals are apart."""
    if apart is None:
        return "one seed has no interval"
    return f"intervals apart at {apart.sum()} of {len(apart)} sizes"


@dataclass(frozen=True)
class Section:
    """One study's part of the page, and of theory.json."""

    name: str
    title: str
    statement: Sequence[str]
    """Paragraphs: what is claimed, where the paper claims it, how it was measured."""
    verdicts: Sequence[Verdict]
    tables: Sequence[Table]
    figures: Sequence[Figure]

    def part(self) -> page.Section:
        """The section for the page: figures, then verdicts and tables."""
        rows = [(one.claim, one.measured, VERDICTS[one.holds]) for one in self.verdicts]
        claims = Table(f"{self.name}-claims", "Claims", ("claim", "measured", "verdict"), rows)
        tables = [claims, *self.tables]
        return page.Section(f"claim-{self.name}", self.title, self.statement, self.figures, tables)

    def content(self) -> dict[str, Any]:
        """Everything in the section, for theory.json."""
        return {
            "name": self.name,
            "title": self.title,
            "statement": self.statement,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "tables": [asdict(table) for table in self.tables],
            "figures": [asdict(figure.numbers) for figure in self.figures],
        }


def write_sections(sections: Sequence[Section], command: str, path: Path) -> None:
    """Write the page of these sections, made by this command."""
    parts = [section.part() for section in sections]
    page.write_page(page.Page("The theory, run", LEAD, parts, command), path)
