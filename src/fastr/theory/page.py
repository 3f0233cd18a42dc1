"""One page of sections: self-contained HTML, with each plot's numbers as CSV beside it."""

import base64
import csv
import html
import io
from collections.abc import Sequence
from pathlib import Path

from fastr.theory.report import Curve, Grid, Plot, Section, Verdict

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c1c1c; }
h2 { margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.85rem; display: block;
        overflow-x: auto; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; }
td, th { border: 1px solid #ddd; padding: 0.25rem 0.5rem; text-align: left; vertical-align: top;
         font-variant-numeric: tabular-nums; }
img { width: 100%; max-width: 46rem; display: block; margin: 1rem 0 0; }
.yes { color: #17692f; font-weight: 600; } .no { color: #a8201a; font-weight: 600; }
.small { font-size: 0.85rem; color: #555; margin: 0 0 1.5rem; }
"""
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
    links = " · ".join(f'<a href="#{s.name}">{html.escape(s.title)}</a>' for s in sections)
    body = "".join(section_text(section) for section in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>fastr theory</title><style>{STYLE}</style></head><body>"
        "<h1>The theory, run</h1>"
        "<p>Each section states a claim of the paper, what was measured, and whether the "
        "measurement agrees. A claim that does not hold is marked so.</p>"
        f"<p class='small'>Made by <code>{html.escape(command)}</code></p><p>{links}</p>"
        f"{body}</body></html>\n"
    )


def section_text(section: Section) -> str:
    """One study."""
    paragraphs = "".join(f"<p>{html.escape(text)}</p>" for text in section.statement)
    grids = "".join(table_text(grid) for grid in section.grids)
    plots = "".join(plot_text(plot) for plot in section.plots)
    heading = f'<h2 id="{section.name}">{html.escape(section.title)}</h2>'
    return f"{heading}{paragraphs}{verdict_text(section.verdicts)}{plots}{grids}"


def verdict_text(verdicts: Sequence[Verdict]) -> str:
    """The claims with their measurements."""
    rows = "".join(
        f"<tr><td>{html.escape(v.claim)}</td><td>{html.escape(v.measured)}</td>"
        f"<td class='{'yes' if v.holds else 'no'}'>{'holds' if v.holds else 'does not hold'}</td>"
        "</tr>"
        for v in verdicts
    )
    return f"<table><tr><th>claim</th><th>measured</th><th></th></tr>{rows}</table>"


def table_text(grid: Grid) -> str:
    """A table."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in grid.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in grid.rows
    )
    return f"<table><caption>{html.escape(grid.title)}</caption><tr>{head}</tr>{rows}</table>"


def plot_text(plot: Plot) -> str:
    """A picture inside the page, and where its numbers are."""
    picture = base64.b64encode(svg(plot)).decode()
    title = html.escape(plot.title)
    return (
        f'<img alt="{title}" src="data:image/svg+xml;base64,{picture}">'
        f"<p class='small'>Numbers: <a href='{plot.name}.csv'>{plot.name}.csv</a></p>"
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
