"""What a report consists of: sections of text, charts and tables, before they take any form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fastr.report.old_plots import FRAMES, RETURN
from fastr.report.scatter import GAIN, Point


class Cell(NamedTuple):
    """One cell of a table."""

    text: str
    value: float | None = None
    """To sort by, and what the CSV file holds; None: the text itself."""
    bold: bool = False
    notes: tuple[str, ...] = ()
    """What must be known to read it; marked in the cell, said below the table."""


class Group(NamedTuple):
    """A heading over several columns."""

    label: str
    columns: int


@dataclass(frozen=True)
class Grid:
    """A table."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    remarks: tuple[str, ...] = ()
    """Sentences below it that belong to no cell."""
    groups: tuple[Group, ...] = ()

    @property
    def notes(self) -> list[tuple[str, str]]:
        """Every note with its letter, in order of appearance."""
        found = dict.fromkeys(note for row in self.rows for cell in row for note in cell.notes)
        return [(letter(i), note) for i, note in enumerate(found)]

    def marks(self, cell: Cell) -> str:
        """The letters of a cell's notes."""
        letters = {note: mark for mark, note in self.notes}
        return ",".join(letters[note] for note in dict.fromkeys(cell.notes))

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers, and so stand to the right."""
        places = range(len(self.columns))
        return tuple(any(row[i].value is not None for row in self.rows) for i in places)

    def lines(self) -> list[list[Any]]:
        """Header and rows for a CSV file, notes in words in the last column."""
        body = [
            [
                *(cell.text if cell.value is None else cell.value for cell in row),
                "; ".join(dict.fromkeys(note for cell in row for note in cell.notes)),
            ]
            for row in self.rows
        ]
        return [[*self.columns, "notes"], *body]


def letter(place: int) -> str:
    """a to z, then aa and so on."""
    text = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        text = chr(ord("a") + rest) + text
    return text


class Line(NamedTuple):
    """One curve: (x, y, low, high) at each point."""

    label: str
    points: Sequence[tuple[float, float, float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Lines:
    """Curves with bands over a common axis."""

    name: str
    title: str
    lines: Sequence[Line]
    x_label: str = FRAMES
    y_label: str = RETURN
    levels: tuple[tuple[str, float], ...] = ()
    """Values that belong to no x, by name."""
    notes: tuple[str, ...] = ()
    kind: ClassVar[str] = "lines"

    def lines_of_csv(self) -> list[list[Any]]:
        """Header and one row per point."""
        points = [[line.label, *point] for line in self.lines for point in line.points]
        levels = [[label, "", value, "", ""] for label, value in self.levels]
        return [["curve", self.x_label, self.y_label, "low", "high"], *points, *levels]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The same for readers: one row per x, one column per curve."""
        by_x: dict[float, dict[str, str]] = {}
        names = [f"{line.label}{' (dashed)' if line.dashed else ''}" for line in self.lines]
        for name, line in zip(names, self.lines, strict=True):
            for x, y, low, high in line.points:
                band = f" ({number(low)} to {number(high)})" if high > low else ""
                by_x.setdefault(x, {})[name] = f"{number(y)}{band}"
        rows = [
            [f"{x:,.0f}", *(cells.get(name, "") for name in names)]
            for x, cells in sorted(by_x.items())
        ]
        rows += [[label, number(value), *[""] * (len(names) - 1)] for label, value in self.levels]
        return [self.x_label, *names], rows


class Bar(NamedTuple):
    """One estimate with its interval."""

    label: str
    value: float
    low: float | None
    high: float | None
    method: str = ""
    """Whose colour it takes, if any."""
    detail: str = ""
    """More about it, for the table of numbers."""


@dataclass(frozen=True)
class Intervals:
    """Estimates with intervals, one below the other."""

    name: str
    title: str
    bars: Sequence[Bar]
    x_label: str
    reference: float | None = None
    """A value to compare with, drawn as a line."""
    notes: tuple[str, ...] = ()
    kind: ClassVar[str] = "intervals"

    def lines_of_csv(self) -> list[list[Any]]:
        """Header and one row per estimate."""
        blank = lambda value: "" if value is None else value  # noqa: E731
        rows = [
            [bar.label, bar.value, blank(bar.low), blank(bar.high), bar.detail] for bar in self.bars
        ]
        return [["name", self.x_label, "low", "high", "detail"], *rows]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The same for readers."""
        rows = [[bar.label, f"{bar.value:.3g}", span(bar), bar.detail] for bar in self.bars]
        return ["name", self.x_label, "95 % interval", "detail"], rows


@dataclass(frozen=True)
class Scatter:
    """Misfit against return gain (Figure cp-misfit), for one of the two misfits."""

    name: str
    title: str
    points: Sequence[Point]
    misfit: str
    """nce or moment."""
    x_label: str
    y_label: str = GAIN
    notes: tuple[str, ...] = ()
    kind: ClassVar[str] = "scatter"

    def drawn(self) -> list[tuple[str, float, float, float, float, int]]:
        """Task, misfit, its interval, gain and action dimension of every marker."""
        found = []
        for point in self.points:
            own = getattr(point, self.misfit)
            if point.gain is not None:
                values = own["value"], own["low"], own["high"], point.gain, point.action_dim
                found.append((point.task, *values))
        return found

    def lines_of_csv(self) -> list[list[Any]]:
        """Header and one row per marker."""
        head = ["task", self.x_label, "low", "high", self.y_label, "action dimension"]
        return [head, *(list(row) for row in self.drawn())]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The same for readers."""
        head, *rows = self.lines_of_csv()
        return head, [[str(v) if isinstance(v, str) else f"{v:.4g}" for v in row] for row in rows]


Chart = Lines | Intervals | Scatter


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str
    title: str
    paragraphs: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    grids: tuple[Grid, ...] = ()


def number(value: float) -> str:
    """A return as tables print it: whole, with a decimal where it is small."""
    return f"{value:.1f}" if abs(value) < 10 else f"{value:,.0f}"


def plus_minus(mean: float, std: float | None) -> str:
    """A mean with its deviation, if it has one."""
    if std is None:
        return number(mean)
    return f"{number(mean)} ± {std:.1f}" if abs(mean) < 10 else f"{number(mean)} ± {std:,.0f}"


def span(bar: Bar) -> str:
    """An interval in words."""
    if bar.low is None or bar.high is None:
        return "none (one seed)"
    return f"{bar.low:.3g} to {bar.high:.3g}"
