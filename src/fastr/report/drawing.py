"""Charts as pictures for papers: PNG, SVG and PDF."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastr.report.colors import LIGHT, looks, place
from fastr.report.content import Chart, Intervals, Lines, Scatter
from fastr.report.old_plots import band, from_zero, picture
from fastr.report.scatter import draw_panel


def draw(chart: Chart, methods: Sequence[str], paths: Sequence[Path]) -> None:
    """One chart into one file of each form."""
    if isinstance(chart, Lines):
        draw_lines(chart, methods, paths)
    elif isinstance(chart, Intervals):
        draw_intervals(chart, methods, paths)
    else:
        draw_scatter(chart, paths)


def stroke(pattern: str) -> Any:
    """A dash pattern as matplotlib takes it."""
    dashes = tuple(float(part) / 1.5 for part in pattern.split())
    return (0, dashes) if dashes else "-"


def plain(text: str) -> str:
    """Text in which matplotlib sees no formula and no hidden label."""
    return text.replace("$", r"\$").lstrip("_") or "unnamed"


def draw_lines(chart: Lines, methods: Sequence[str], paths: Sequence[Path]) -> None:
    """Curves with bands and levels."""
    known = looks([line.label for line in chart.lines], methods)
    labels = {"xlabel": chart.x_label, "ylabel": chart.y_label, "title": plain(chart.title)}
    with picture(*paths, **labels) as axes:
        for line in chart.lines:
            x, mean, low, high = zip(*line.points, strict=True)
            shade, pattern = known[line.label]
            style = "--" if line.dashed else stroke(pattern)
            label = None if line.dashed else plain(line.label)
            band(axes, x, mean, low, high, label=label, color=LIGHT[shade], linestyle=style)
        for label, level in chart.levels:
            axes.axhline(level, linestyle=":", color="#555555", label=plain(label))
        from_zero(axes)


def draw_intervals(chart: Intervals, methods: Sequence[str], paths: Sequence[Path]) -> None:
    """Dots with whiskers, the first on top."""
    with picture(*paths, xlabel=chart.x_label, title=plain(chart.title)) as axes:
        axes.figure.set_size_inches(7, 1.4 + 0.34 * len(chart.bars))
        for row, bar in enumerate(chart.bars):
            shade = LIGHT[place(bar.method, methods)]
            if bar.low is not None and bar.high is not None:
                axes.plot([bar.low, bar.high], [row, row], color=shade, linewidth=2)
            axes.plot([bar.value], [row], "o", color=shade)
        if chart.reference is not None:
            axes.axvline(chart.reference, color="#555555", linewidth=1)
        axes.set_yticks(range(len(chart.bars)), [plain(bar.label) for bar in chart.bars])
        axes.invert_yaxis()
        axes.margins(y=0.15)


def draw_scatter(chart: Scatter, paths: Sequence[Path]) -> None:
    """Misfit against gain, as fastr misfit-figure draws it."""
    drawn = [point for point in chart.points if point.gain is not None]
    with picture(*paths, ylabel=chart.y_label, title=plain(chart.title)) as axes:
        markers = draw_panel(axes, drawn, chart.misfit)
        axes.figure.colorbar(markers, ax=axes, label="action dimension")
