"""Pictures of a run's rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fastr.runs.summary import evaluations

RETURN = "return of the greedy policy"
FRAMES = "frames (simulator steps)"
CROWDED, WIDER = 5, 3.0
"""The most lines named among themselves; inches that the names of more take beside them."""


def plotting() -> Any:
    """Matplotlib's pyplot, without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


@contextmanager
def picture(*paths: Path, **labels: Any) -> Iterator[Any]:
    """Axes to draw on; what is on them in the end is saved, in the form each path's end names."""
    pyplot = plotting()
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    yield axes
    axes.set(**labels)
    axes.grid(alpha=0.3)
    if axes.get_xlabel() == FRAMES:
        axes.xaxis.set_major_formatter("{x:,.0f}")
    name_lines(axes)
    for path in paths:
        figure.savefig(path, dpi=150)
    pyplot.close(figure)


def name_lines(axes: Any) -> None:
    """A legend: among a few lines where there is room, beside many, whose dashes it shows."""
    names = axes.get_legend_handles_labels()[1]
    if len(names) > CROWDED:
        axes.figure.set_figwidth(axes.figure.get_figwidth() + WIDER)
        axes.legend(
            frameon=False, loc="upper left", bbox_to_anchor=(1, 1), handlelength=4, fontsize="small"
        )
    elif names:
        axes.legend(frameon=False)


def band(axes: Any, x: Any, mean: Any, low: Any, high: Any, **style: Any) -> None:
    """A line with its band."""
    (line,) = axes.plot(x, mean, **style)
    axes.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def learning_curve(
    rows: Sequence[dict[str, Any]], seeds: Sequence[int], title: str, path: Path
) -> None:
    """Mean evaluation return against frames, one line per seed, as a PNG."""
    with picture(path, xlabel=FRAMES, ylabel=RETURN, title=title) as axes:
        for seed in seeds:
            curve = evaluations(rows, seed)
            axes.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=f"seed {seed}")
        from_zero(axes)


def compared_curves(
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    title: str,
    path: Path,
    levels: Mapping[str, float] | None = None,
) -> None:
    """Mean return of each method's seeds against frames, with a band of one standard deviation.

    Levels are returns that belong to no frame, drawn as dashed lines.
    """
    several = any(len(seeds) > 1 for seeds in curves.values())
    said = f"{RETURN}\n(mean and standard deviation over seeds)" if several else RETURN
    with picture(path, xlabel=FRAMES, ylabel=said, title=title) as axes:
        for name, seeds in curves.items():
            frames = [frame for frame, _ in seeds[0]]
            returns = np.array([[value for _, value in curve] for curve in seeds])
            mean, std = returns.mean(axis=0), returns.std(axis=0)
            band(axes, frames, mean, mean - std, mean + std, label=name)
        for number, (name, level) in enumerate((levels or {}).items()):
            axes.axhline(level, linestyle="--", color=f"C{len(curves) + number}", label=name)
        from_zero(axes)


def coverage_curves(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Share of the next-state factor's directions that a batch reaches, against its size."""
    labels = {
        "xlabel": "batch size N",
        "ylabel": "directions over dim M\n(dashed: those with 99 % of the gradient)",
    }
    with picture(path, **labels, title="Directions one batch can train") as axes:
        for method in dict.fromkeys(line["method"] for line in lines):
            own = sorted(
                (line["batch_size"], line["rank"], line["effective"], line["dimension"])
                for line in lines
                if line["method"] == method
            )
            sizes, rank, effective, dimension = np.array(own).T
            (line,) = axes.plot(sizes, rank / dimension, marker="o", markersize=3, label=method)
            axes.plot(sizes, effective / dimension, linestyle="--", color=line.get_color())
        axes.set_ylim(0, 1.05)


def from_zero(axes: Any) -> None:
    """Start the returns at zero, unless some are below."""
    if axes.dataLim.y0 >= 0:
        axes.set_ylim(bottom=0)
