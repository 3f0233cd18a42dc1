"""The report as one HTML file, whose charts its own script draws."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from fastr.core import counted
from fastr.report.colors import DARK, LIGHT, looks, place
from fastr.report.content import Chart, Intervals, Lines, Scatter, Section, number
from fastr.report.pages import rendering


def page(parts: Sequence[Section], methods: Sequence[str], command: str, made_by: str) -> str:
    """The whole page."""
    charts = [chart for part in parts for chart in part.charts]
    return rendering.page(
        "fastr.report",
        script=rendering.asset("fastr.report", "page.js"),
        parts=parts,
        command=command,
        version=made_by.splitlines()[-1],
        summary=summary(parts, methods),
        data={chart.name: drawn(chart, methods) for chart in charts},
        alternatives={chart.name: alternative(chart) for chart in charts},
        palette=Markup(palette()),
    )


def palette() -> str:
    """The methods' colours on light and on dark."""
    light, dark = (
        "".join(f"--c{i}:{shade};" for i, shade in enumerate(shades)) for shades in (LIGHT, DARK)
    )
    return (
        f":root{{{light}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
    )


def summary(parts: Sequence[Section], methods: Sequence[str]) -> str:
    """What the report covers, in one sentence."""
    grids = {grid.name: grid for part in parts for grid in part.grids}
    if "returns" not in grids:
        return "No learning curves among the inputs."
    rows = grids["returns"].rows
    tasks = len({row[0].text for row in rows})
    noted = sum(any(cell.notes for cell in row) for row in rows)
    sentence = f"{counted(len(methods), 'method')} on {counted(tasks, 'task')}."
    if not noted:
        return sentence
    return f"{sentence} Numbers that carry a note: {noted} of {len(rows)}."


def drawn(chart: Chart, methods: Sequence[str]) -> dict[str, Any]:
    """What the page's script draws a chart from."""
    common = {"kind": chart.kind, "x": chart.x_label}
    if isinstance(chart, Lines):
        known = looks([line.label for line in chart.lines], methods)
        lines = []
        for line in chart.lines:
            shade, dash = known[line.label]
            points = [[round(value, 4) for value in point] for point in line.points]
            dashes = "4 4" if line.dashed else dash
            lines.append({"name": line.label, "color": shade, "dash": dashes, "points": points})
        levels = [{"name": name, "value": value} for name, value in chart.levels]
        return common | {"y": chart.y_label, "lines": lines, "levels": levels}
    if isinstance(chart, Intervals):
        bars = [bar._asdict() | {"color": place(bar.method, methods)} for bar in chart.bars]
        return common | {"bars": bars, "reference": chart.reference}
    keys = ("name", "x", "low", "high", "y", "size")
    points = [dict(zip(keys, point, strict=True)) for point in chart.drawn()]
    return common | {"y": chart.y_label, "points": points}


def alternative(chart: Chart) -> str:
    """A chart in one sentence, for those who do not see it."""
    if isinstance(chart, Lines):
        ends = [
            f"{line.label} {number(line.points[-1][1])} at {line.points[-1][0]:,.0f}"
            for line in chart.lines
            if not line.dashed
        ]
        return f"{chart.title}. {chart.y_label} against {chart.x_label}; ends: {'; '.join(ends)}."
    if isinstance(chart, Scatter):
        said = [f"{name} {x:.3g}, {y:.3g}" for name, x, _, _, y, _ in chart.drawn()]
    else:
        said = [f"{bar.label} {bar.value:.3g}" for bar in chart.bars]
    return f"{chart.title}. {chart.x_label}: {'; '.join(said)}."
