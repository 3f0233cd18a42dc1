"""Returns that others have published at the paper's protocol, each with its source.

published.csv: the paper's Table 1, and what other authors' repositories hold at one million frames
and action repeat 2 (two of them with two updates per step, and named so).
"""

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

FRAMES = 1_000_000
"""The budget of every published number here."""


class Published(NamedTuple):
    """One number."""

    method: str
    task: str
    mean: float
    std: float
    seeds: int
    source: str

    @property
    def of_the_paper(self) -> bool:
        """Whether the paper reports it."""
        return self.source.startswith("paper Table 1")


@cache
def published() -> tuple[Published, ...]:
    """All of them, in the file's order."""
    text = resources.files("fastr.report").joinpath("published.csv").read_text(encoding="utf-8")
    numbers = [line for line in csv.DictReader(text.splitlines()) if int(line["frames"]) == FRAMES]
    return tuple(
        Published(
            line["method"],
            line["task"],
            float(line["mean"]),
            float(line["std"]),
            int(line["seeds"]),
            line["source"],
        )
        for line in numbers
    )
