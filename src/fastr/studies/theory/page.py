"""What a study reports: claims with verdicts, tables and plots, as data and on one page."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fastr.report import plots
from fastr.report.page import Page, write_page
from fastr.report.page import Section as Part
from fastr.report.table import Cell, Table
from fastr.studies.theory.intervals import Interval

Progress = Callable[[float], None]
"""Takes the share of the work that is done, from 0 to 1."""
DASHES = {"line": "-", "dashed": "--", "dotted": ":"}
VERDICTS = {
    True: Cell("holds", tone="good"),
    False: Cell("does not hold", tone="bad"),
    None: Cell("no verdict"),
}
LEAD = (
    "Each section states a claim of the paper, what was measured, and whether the measurement "
    "agrees. A claim that does not hold is marked so."
)


@dataclass(frozen=True)
class Curve:
    """One line of a plot; `low` and `high`, if given, are its interval over seeds."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    look: str = "line"
    """One of `DASHES`."""
    color: int = 0
    """Place in the palette."""


def banded(label: str, x: Any, summary: Interval, look: str = "line", color: int = 0) -> Curve:
    """A curve of means with their interval, if there is one."""
    mean, low, high = (() if part is None else part.tolist() for part in summary)
    return Curve(label, np.asarray(x, float).tolist(), mean, low, high, look=look, color=color)


@dataclass(frozen=True)
class Plot:
    """A plot, whose numbers are written as CSV under its name."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_scale: str = "log"
    y_scale: str = "log"

    def figure(self) -> plots.Figure:
        """The plot for the page."""
        axes = plots.Axes(self.x_label, self.y_label, self.x_scale, self.y_scale)
        lines = [
            plots.Curve(one.label, one.x, one.y, one.low, one.high, one.color, DASHES[one.look])
            for one in self.curves
        ]
        return plots.curves(self.name, self.title, lines, axes)


@dataclass(frozen=True)
class Grid:
    """A table of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Verdict:
    """A claim, what was measured, and whether the measurement agrees."""

    claim: str
    measured: str
    holds: bool | None
    """None if intervals decide and one seed has none."""


@dataclass(frozen=True)
class Section:
    """One study's part of the page, and of theory.json."""

    name: str
    title: str
    statement: tuple[str, ...]
    """Paragraphs: what is claimed, where the paper claims it, how it was measured."""
    verdicts: tuple[Verdict, ...]
    grids: tuple[Grid, ...] = ()
    plots: tuple[Plot, ...] = ()

    def part(self) -> Part:
        """The section for the page: plots, then verdicts and tables."""
        rows = [(one.claim, one.measured, VERDICTS[one.holds]) for one in self.verdicts]
        claims = Table(f"{self.name}-claims", "Claims", ("claim", "measured", "verdict"), rows)
        tables = [
            Table(f"{self.name}-{place}", grid.title, grid.columns, grid.rows)
            for place, grid in enumerate(self.grids, start=1)
        ]
        figures = [plot.figure() for plot in self.plots]
        return Part(f"claim-{self.name}", self.title, self.statement, figures, [claims, *tables])


def write_sections(sections: Sequence[Section], command: str, path: Path) -> None:
    """Write the page of these sections, made by this command."""
    parts = [section.part() for section in sections]
    write_page(Page("The theory, run", LEAD, parts, command), path)


@dataclass(frozen=True)
class Claim:
    """A claim to be judged by a study's results, which are named in braces in both texts."""

    text: str
    measured: str
    holds: Callable[[Any], Any]
    """Whether the results agree, at every size if at several; None if there are no intervals."""


def judge(claims: Iterable[Claim], **results: Any) -> tuple[Verdict, ...]:
    """The verdicts of these results on these claims."""
    verdicts = []
    for claim in claims:
        text, measured = claim.text.format_map(results), claim.measured.format_map(results)
        agrees = claim.holds(SimpleNamespace(**results))
        verdicts.append(Verdict(text, measured, None if agrees is None else bool(np.all(agrees))))
    return tuple(verdicts)


def how_often(apart: np.ndarray | None) -> str:
    """At how many sizes two intervals are apart."""
    if apart is None:
        return "one seed has no interval"
    return f"intervals apart at {apart.sum()} of {len(apart)} sizes"
