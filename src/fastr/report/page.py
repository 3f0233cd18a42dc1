"""Figures, and one offline page of sections without scripts.

`fastr report`, `fastr misfit` and `fastr theory` write their pages with it. A figure is drawn
by matplotlib and carries its numbers as a table. The page shows it as SVG that takes its colours
from the page, light or dark. All text is escaped, and a content security policy lets the page fetch
and run nothing.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from fastr.core import UserError, write_errors
from fastr.report.table import Table, Value
from fastr.runs.summary import evaluations

PAGE, FIGURES, TABLES = "index.html", "figures", "tables"
MARK = "report.txt"
"""Lies in every report's folder: only such a folder may be overwritten by another report."""
RETURN = "return of the greedy policy"
FRAMES_LABEL = "frames (simulator steps)"
COLORS = ("#0072b2", "#d55e00", "#00845f", "#aa3377", "#8f6a00", "#2f93c9", "#7f4b1e", "#555555")
"""Okabe and Ito's set, darkened until each has a contrast of 3 to 1 with white.

page.html has the same colours lightened for its dark form.
"""
DASHES = ("-", (0, (5, 2)), (0, (6, 2, 1, 2)), (0, (1, 1.5)), (0, (9, 3)), (0, (3, 4)))
GREY = 7
"""Place of the colour of everything that is not a method."""


Numbers = Sequence[float | int] | np.ndarray


class Curve(NamedTuple):
    """One line; low and high, where given, bound its band."""

    label: str
    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    color: int | None = None
    """Place among COLORS; None takes the next one."""
    dash: Any = "-"
    """A matplotlib line style."""


def banded(
    label: str, x: Numbers, returns: np.ndarray, color: int | None = None, dash: Any = "-"
) -> Curve:
    """Mean over seeds, with a band of one standard deviation."""
    mean, std = returns.mean(axis=0), returns.std(axis=0)
    return Curve(label, x, mean, mean - std, mean + std, color, dash)


class Bar(NamedTuple):
    """One estimate with its interval, if it has one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    color: int = GREY
    detail: str = ""
    """A further column of the table."""


class Marker(NamedTuple):
    """A point with an interval along x, coloured by a number."""

    label: str
    x: float
    low: float
    high: float
    y: float
    color: float


class Axes(NamedTuple):
    """Labels and scales."""

    x: str
    y: str = ""
    x_scale: str = "linear"
    y_scale: str = "linear"


@dataclass(frozen=True)
class Figure:
    """A picture and its numbers."""

    name: str
    """Of its files: letters, digits and hyphens."""
    title: str
    draw: Callable[[Any], None]
    """Draws on matplotlib Axes."""
    numbers: Table
    notes: Sequence[str] = ()
    height: float = 4.0
    """Inches, without the legend."""

    def save(self, *targets: Path | io.BytesIO) -> None:
        """Write the picture: to a path in the form that its suffix names, to a buffer as SVG."""
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas

        style: Any = {"svg.fonttype": "none", "svg.hashsalt": self.name, "font.size": 11}
        with rc_context(style):
            canvas = Canvas(figsize=(6.6, self.height), layout="constrained")
            axes = canvas.add_subplot()
            self.draw(axes)
            axes.grid(alpha=0.3)
            axes.set_title(plain(self.title), fontsize=11, wrap=True)
            add_legend(axes)
            for target in targets:
                form = target.suffix[1:].lower() if isinstance(target, Path) else "svg"
                date = {"Date": None} if form == "svg" else None
                canvas.savefig(target, format=form, dpi=150, metadata=date)

    def svg(self) -> str:
        """The picture to stand within a page, in the page's colours."""
        self.save(buffer := io.BytesIO())
        text = buffer.getvalue().decode()
        text = re.sub(r"(?s)<metadata>.*?</metadata>", "", text[text.index("<svg") :])
        text = re.sub(r'<g id="[^"]*"', "<g", text)
        names = {shade: f"var(--c{place})" for place, shade in enumerate(COLORS)}
        names |= {"#000000": "var(--ink)", "#ffffff": "var(--paper)", "#b0b0b0": "var(--grid)"}
        return re.sub("|".join(names), lambda found: names[found[0]], text)


def add_legend(axes: Any) -> None:
    """Name the lines below the axes, in a figure that grows by the rows of the legend."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    columns = 1 if max(map(len, labels)) > 45 else 2
    rows = -(-len(labels) // columns)
    axes.figure.set_figheight(axes.figure.get_figheight() + 0.1 + 0.23 * rows)
    style = {"frameon": False, "fontsize": 10, "handlelength": 3.5}
    axes.figure.legend(handles, labels, loc="outside lower left", ncols=columns, **style)


def plain(text: str) -> str:
    """Text in which matplotlib sees no formula and no hidden label."""
    return text.replace("$", r"\$").lstrip("_") or "unnamed"


def curves(
    name: str,
    title: str,
    lines: Sequence[Curve],
    axes: Axes,
    levels: Sequence[tuple[str, float]] = (),
) -> Figure:
    """Lines over a common axis; levels are values that belong to no x, drawn across."""

    def draw(canvas: Any) -> None:
        for place, line in enumerate(lines):
            color = COLORS[(place if line.color is None else line.color) % len(COLORS)]
            look = {"color": color, "linestyle": line.dash, "label": plain(line.label)}
            few = {"marker": "o", "markersize": 3} if len(line.x) < 20 else {}
            canvas.plot(line.x, line.y, **look, **few)
            if len(line.low):
                canvas.fill_between(line.x, line.low, line.high, color=color, alpha=0.15, lw=0)
        for label, level in levels:
            canvas.axhline(level, linestyle=":", color=COLORS[GREY], label=plain(label))
        canvas.set(xscale=axes.x_scale, yscale=axes.y_scale, xlabel=axes.x, ylabel=axes.y)
        if axes.x == FRAMES_LABEL:
            canvas.xaxis.set_major_formatter("{x:,.0f}")
            canvas.locator_params(axis="x", nbins=6)
        if axes.y_scale == "linear" and canvas.dataLim.y0 >= 0:
            canvas.set_ylim(bottom=0)

    rows: list[list[Value]] = []
    for line in lines:
        bounds = [line.low, line.high] if len(line.low) else [[None] * len(line.x)] * 2
        columns = [np.asarray(part).tolist() for part in (line.x, line.y, *bounds)]
        rows += [[line.label, *point] for point in zip(*columns, strict=True)]
    rows += [[label, None, level, None, None] for label, level in levels]
    table = Table(name, title, ("curve", axes.x, axes.y, "low", "high"), rows)
    return Figure(name, title, draw, table)


def intervals(
    name: str,
    title: str,
    bars: Sequence[Bar],
    x_label: str,
    reference: float | None = None,
    notes: Sequence[str] = (),
) -> Figure:
    """Estimates with intervals, the first on top; the reference is a value to compare with."""

    def draw(canvas: Any) -> None:
        rows, shades = range(len(bars)), [COLORS[bar.color % len(COLORS)] for bar in bars]
        ends = [(bar.low, bar.high) if bar.low is not None else (bar.value,) * 2 for bar in bars]
        canvas.hlines(rows, *zip(*ends, strict=True), colors=shades, linewidth=2)
        canvas.scatter([bar.value for bar in bars], rows, c=shades, s=36, zorder=2)
        if reference is not None:
            canvas.axvline(reference, color=COLORS[GREY], linewidth=1)
        canvas.set_yticks(rows, [plain(bar.label) for bar in bars], fontsize=9)
        canvas.set_xlabel(x_label)
        canvas.invert_yaxis()
        canvas.margins(y=0.15)

    detail = ["detail"] if any(bar.detail for bar in bars) else []
    rows = [
        [bar.label, bar.value, bar.low, bar.high, bar.detail][: 4 + len(detail)] for bar in bars
    ]
    table = Table(name, title, ("name", x_label, "low", "high", *detail), rows)
    return Figure(name, title, draw, table, notes, height=1.5 + 0.34 * len(bars))


def markers(
    name: str, title: str, points: Sequence[Marker], axes: Axes, color_label: str
) -> Figure:
    """Labelled points with intervals along x."""

    def draw(canvas: Any) -> None:
        _, x, low, high, y, colors = zip(*points, strict=True)
        canvas.hlines(y, low, high, color="grey", linewidth=1, zorder=1)
        sizes = [25 + 5 * color for color in colors]
        drawn = canvas.scatter(x, y, c=colors, s=sizes, vmin=0, vmax=max(colors), zorder=2)
        canvas.margins(0.12)
        middle = np.mean(canvas.get_xlim())
        for one in points:
            # Towards the middle of the figure, so that no name leaves it.
            right, below = one.x > middle, one.y < 0
            canvas.annotate(
                plain(one.label),
                (one.x, one.y),
                xytext=(-6 if right else 6, -4 if below else 4),
                textcoords="offset points",
                ha="right" if right else "left",
                va="top" if below else "bottom",
                fontsize=8,
            )
        for line in (canvas.axhline, canvas.axvline):
            line(0.0, color=COLORS[GREY], linewidth=0.8)
        canvas.set(xlabel=axes.x, ylabel=axes.y)
        canvas.figure.colorbar(drawn, ax=canvas, label=color_label)

    columns = ("name", axes.x, "low", "high", axes.y, color_label)
    return Figure(name, title, draw, Table(name, title, columns, points))


def learning_curve(
    rows: Sequence[dict[str, Any]], seeds: Sequence[int], title: str, path: Path
) -> None:
    """Draw mean evaluation return against frames, one line per seed."""
    found = {seed: np.array(evaluations(rows, seed)).reshape(-1, 2) for seed in seeds}
    lines = [Curve(f"seed {seed}", points[:, 0], points[:, 1]) for seed, points in found.items()]
    curves("curve", title, lines, Axes(FRAMES_LABEL, RETURN)).save(path)


def compared_curves(
    found: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    title: str,
    path: Path,
    levels: Mapping[str, float],
) -> None:
    """Draw each method's mean return over seeds with a band of one standard deviation."""
    lines = [
        banded(name, [frame for frame, _ in seeds[0]], np.array(seeds)[..., 1])
        for name, seeds in found.items()
    ]
    axes = Axes(FRAMES_LABEL, f"{RETURN}\n(mean and standard deviation over seeds)")
    curves("curves", title, lines, axes, list(levels.items())).save(path)


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, then figures, then tables; the name is the address in the page."""

    name: str
    title: str
    paragraphs: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    code: str = ""
    """Preformatted text at the end."""


@dataclass(frozen=True)
class Page:
    """A title, what the page is about, how it was made, and its sections."""

    title: str
    lead: str
    sections: Sequence[Section]
    command: str
    version: str = ""

    def html(self) -> str:
        """The page as text."""
        from jinja2 import Environment, StrictUndefined

        template = resources.files("fastr.report").joinpath("page.html").read_text("utf-8")
        environment = Environment(
            autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
        )
        return environment.from_string(template).render(page=self)


def claim(out: Path) -> None:
    """Create the folder, or empty an earlier report; UserError if something else is there."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out.")
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise UserError(f"{out} is neither empty nor a report; choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    # Every figure and table has its CSV file; what has none is not of a report.
    for old in [*(out / FIGURES).glob("*.csv"), *(out / TABLES).glob("*.csv")]:
        for form in (".png", ".svg", ".md", ".tex", ".csv"):
            old.with_suffix(form).unlink(missing_ok=True)


def write_page(page: Page, path: Path) -> None:
    """Write the page, figures/NAME.* and tables/NAME.*; all numbers are in CSV files."""
    figures, tables = path.parent / FIGURES, path.parent / TABLES
    with write_errors(path):
        for folder in (figures, tables):
            folder.mkdir(parents=True, exist_ok=True)
        every = [figure for section in page.sections for figure in section.figures]
        for figure in track(every, "drawing", console=Console(stderr=True), transient=True):
            figure.save(*(figures / f"{figure.name}.{form}" for form in ("png", "svg")))
            (figures / f"{figure.name}.csv").write_text(figure.numbers.csv(), "utf-8")
        for table in [table for section in page.sections for table in section.tables]:
            (tables / f"{table.name}.csv").write_text(table.csv(), "utf-8")
            (tables / f"{table.name}.md").write_text(table.markdown(), "utf-8")
            (tables / f"{table.name}.tex").write_text(table.latex(page.command), "utf-8")
        path.write_text(page.html(), encoding="utf-8")
