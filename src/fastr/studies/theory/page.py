"""One page of sections: self-contained HTML, with each plot's numbers as CSV beside it."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from fastr.report.pages import rendering
from fastr.report.pages.rendering import embedded
from fastr.studies.theory.report import Curve, Plot, Section

LINES = {"line": "-", "dashed": "--", "dotted": ":"}


def write_page(sections: Sequence[Section], command: str, directory: Path) -> Path:
    """Write index.html and the CSV files; the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for plot in section.plots:
            write_csv(plot, directory / f"{plot.name}.csv")
    page = directory / "index.html"
    page.write_text(page_text(sections, command), encoding="utf-8")
    return page


def page_text(sections: Sequence[Section], command: str) -> str:
    """The whole page."""
    plots = [plot for section in sections for plot in section.plots]
    pictures = {plot.name: embedded(svg(plot), "svg+xml") for plot in plots}
    return rendering.page(
        "fastr.studies.theory", parts=sections, command=command, pictures=pictures
    )


def svg(plot: Plot) -> bytes:
    """The picture as SVG."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for curve in plot.curves:
        draw_curve(axes, curve)
    axes.set(xscale=plot.x_scale, yscale=plot.y_scale, title=plot.title)
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    buffer = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(buffer)
    return buffer.getvalue()


def draw_curve(axes, curve: Curve) -> None:
    """A line with its interval as a band."""
    color = f"C{curve.color}"
    marker = "o" if curve.low and len(curve.x) < 20 else None
    axes.plot(
        *(curve.x, curve.y),
        LINES[curve.look],
        color=color,
        marker=marker,
        markersize=3,
        label=curve.label,
    )
    if curve.low:
        axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)


def write_csv(plot: Plot, path: Path) -> None:
    """Every point of every curve: curve, x, y, and the interval where there is one."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("curve", plot.x_label, plot.y_label, "low", "high"))
        for curve in plot.curves:
            blank = [""] * len(curve.x)
            sides = (curve.low or blank, curve.high or blank)
            rows = zip(curve.x, curve.y, *sides, strict=True)
            writer.writerows((curve.label, *row) for row in rows)
