"""Pictures of a run's rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastr.summary import evaluations


def learning_curve(
    rows: Sequence[dict[str, Any]], seeds: Sequence[int], title: str, path: Path
) -> None:
    """Mean evaluation return against frames, one line per seed, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for seed in seeds:
        curve = evaluations(rows, seed)
        axes.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=f"seed {seed}")
    axes.set(xlabel="frames (simulator steps)", ylabel="return of the greedy policy", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
