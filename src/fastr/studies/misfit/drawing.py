"""The pictures of a diagnosis."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastr.report.old_plots import plotting
from fastr.studies.misfit.report import NAMES, Tested


def draw_curves(tested: Tested, chance: float, path: Path) -> None:
    """Validation losses against epochs, one line per seed."""
    pyplot = plotting()
    figure, both = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axes, loss, title in (
        (both[0], "nce", "ranking loss (nats)"),
        (both[1], "moment", "moment loss (share of variance)"),
    ):
        for kind, color in (("cp", "tab:blue"), ("joint", "tab:orange")):
            for i, seed in enumerate(tested.seeds):
                rows = [r for r in tested.curves if r["predictor"] == kind and r["seed"] == seed]
                rows.sort(key=lambda row: row["epoch"])
                axes.plot(
                    [row["epoch"] for row in rows],
                    [row[f"validation_{loss}"] for row in rows],
                    color=color,
                    alpha=0.8,
                    label=NAMES[kind] if i == 0 else None,
                )
        axes.set(xlabel="epoch", ylabel=f"validation {title}")
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.3)
    both[0].axhline(chance, color="grey", linestyle=":", label="chance, ln(batch)")
    both[0].legend(frameon=False)
    figure.suptitle(tested.name, parse_math=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def draw_misfits(datasets: Sequence[dict[str, Any]], path: Path) -> None:
    """Both misfits of every dataset with their intervals, and each seed as a dot."""
    pyplot = plotting()
    height = 1.8 + 0.5 * len(datasets)
    figure, both = pyplot.subplots(1, 2, figsize=(10, height), layout="constrained", sharey=True)
    for axes, key, title in (
        (both[0], "nce_misfit", "NCE misfit (nats)"),
        (both[1], "moment_misfit", "moment misfit (share of variance)"),
    ):
        for i, entry in enumerate(datasets):
            misfit = entry[key]
            axes.plot([misfit["low"], misfit["high"]], [i, i], color="tab:blue", linewidth=3)
            axes.plot([seed[key] for seed in entry["seeds"]], [i] * len(entry["seeds"]), "k.")
        axes.axvline(0.0, color="grey", linewidth=1)
        said = "CP less joint, test part; bar: 95% interval, dots: training seeds"
        axes.set_xlabel(f"{title}\n{said}")
        axes.grid(alpha=0.3, axis="x")
    names = [entry["name"] for entry in datasets]
    both[0].set_yticks(range(len(datasets)), names, parse_math=False)
    both[0].invert_yaxis()
    both[0].margins(y=0.4)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
