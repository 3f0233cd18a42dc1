"""What a diagnosis leaves behind: numbers for programs, a page and pictures for people."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastr.studies.misfit.drawing import draw_curves, draw_misfits
from fastr.studies.misfit.intervals import by_episode
from fastr.studies.misfit.page import page
from fastr.studies.misfit.report import KINDS, REPORT, Protocol, Tested

CURVES, EPISODES, PAGE = "curves.csv", "episodes.csv", "report.html"
CURVE_COLUMNS: tuple[str, ...] = (
    "dataset",
    "predictor",
    "seed",
    "epoch",
    "train_nce",
    "train_moment",
    "validation_nce",
    "validation_moment",
    "seconds",
)


def write(
    folder: Path, report: dict[str, Any], tested: Sequence[Tested], protocol: Protocol
) -> None:
    """All files of a diagnosis."""
    (folder / REPORT).write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    write_curves(folder / CURVES, tested)
    write_episodes(folder / EPISODES, tested)
    pictures = [folder / "misfit.png"]
    draw_misfits(report["datasets"], pictures[0])
    for i, one in enumerate(tested):
        pictures.append(folder / f"curves-{i}.png")
        draw_curves(one, math.log(protocol.batch_size), pictures[-1])
    (folder / PAGE).write_text(page(report, pictures), encoding="utf-8")


def write_curves(path: Path, tested: Sequence[Tested]) -> None:
    """Every epoch of every predictor, seed and dataset as a line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, CURVE_COLUMNS)
        lines.writeheader()
        for one in tested:
            lines.writerows({"dataset": one.name} | row for row in one.curves)


def write_episodes(path: Path, tested: Sequence[Tested]) -> None:
    """The mean test losses of every episode and seed: all that the intervals are made from."""
    header = ("dataset", "episode", "transitions", "seed")
    losses = [f"{kind}_{loss}" for kind in KINDS for loss in ("nce", "moment")]
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow((*header, *losses))
        for one in tested:
            sums, counts = by_episode(one.losses, one.test_episodes)
            for i, episode in enumerate(np.unique(one.test_episodes)):
                for j, seed in enumerate(one.seeds):
                    values = (sums[:, j, :, i] / counts[i]).ravel().tolist()
                    lines.writerow((one.name, episode, counts[i], seed, *values))
