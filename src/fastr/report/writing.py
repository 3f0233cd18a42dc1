"""A report on disk: the page, and every figure and table with its numbers and its command."""

import csv
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import track

import fastr
from fastr.core import UserError
from fastr.report.aggregates import SCALED
from fastr.report.content import Section
from fastr.report.drawing import draw
from fastr.report.finals import Final, finals, labels
from fastr.report.latex import latex_table
from fastr.report.old_page import page
from fastr.report.reading import MADE_BY, Found
from fastr.report.returns import returns_section, table_one
from fastr.report.sections import (
    aggregate_section,
    clock_section,
    curves_section,
    efficiency_section,
)
from fastr.report.series import united
from fastr.report.studies import (
    ablation_section,
    coverage_section,
    misfit_section,
    provenance_section,
    transfer_section,
)
from fastr.report.text import csv_cell, shown
from fastr.runs.provenance import commit

FORMATS = ("png", "svg", "pdf")
LEFT = (".png", ".svg", ".pdf", ".csv", ".tex", ".txt")
PAGE, FIGURES, TABLES = "index.html", "figures", "tables"


@dataclass(frozen=True)
class Choices:
    """What a report is asked to be."""

    reach: tuple[float, ...] = ()
    price: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Made:
    """How a report was made."""

    command: str
    version: str
    date: str

    def text(self) -> str:
        """For a file beside a figure."""
        return f"{self.command}\nfastr {self.version}, {self.date}\n"


def made(arguments: Sequence[str]) -> Made:
    """The command line, the version and the date of this report."""
    revision = (commit() or {}).get("revision") or ""
    version = f"{fastr.__version__} {revision[:12]}".strip()
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Made(shown(shlex.join(["fastr", *arguments]), 2_000), version, date)


def sections(found: Found, choices: Choices) -> tuple[list[Section], list[Final]]:
    """Everything there is to show, and the numbers behind it."""
    numbers, without = finals(united(found.series))
    plain = [final for final in numbers if "@" not in final.task]
    suite = any(final.task in SCALED for final in plain)
    parts = [
        curves_section(plain) if plain else None,
        table_one(plain) if suite else None,
        returns_section(numbers) if numbers else None,
        aggregate_section(plain, choices.seed) if suite else None,
        efficiency_section(numbers, choices.reach) if numbers else None,
        clock_section(numbers, choices.price),
        ablation_section(found, numbers),
        transfer_section(found, numbers),
        misfit_section(found),
        coverage_section(found),
        provenance_section(numbers, found, without),
    ]
    return [part for part in parts if part is not None], numbers


def claim(out: Path) -> None:
    """Make the folder; UserError if something is there that is not a report."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out.")
    if out.exists() and any(out.iterdir()) and not (out / MADE_BY).exists():
        raise UserError(f"{out} is neither empty nor a report; choose another --out.")
    for folder in (out / FIGURES, out / TABLES):
        folder.mkdir(parents=True, exist_ok=True)
        # What an earlier report left, of runs that this one may not know.
        for old in folder.iterdir():
            if old.suffix in LEFT:
                old.unlink()


def write(found: Found, choices: Choices, by: Made, out: Path) -> list[Final]:
    """All files of a report; the numbers it shows."""
    parts, numbers = sections(found, choices)
    claim(out)
    (out / MADE_BY).write_text(by.text(), encoding="utf-8")
    methods = labels(numbers)
    charts = [chart for part in parts for chart in part.charts]
    for chart in track(charts, "drawing", console=Console(stderr=True), transient=True):
        stem = out / FIGURES / chart.name
        draw(chart, methods, [stem.with_suffix(f".{form}") for form in FORMATS])
        write_csv(stem.with_suffix(".csv"), chart.lines_of_csv())
        stem.with_suffix(".txt").write_text(by.text(), encoding="utf-8")
    for grid in [grid for part in parts for grid in part.grids]:
        stem = out / TABLES / grid.name
        write_csv(stem.with_suffix(".csv"), grid.lines())
        stem.with_suffix(".tex").write_text(latex_table(grid, by.command), encoding="utf-8")
        stem.with_suffix(".txt").write_text(by.text(), encoding="utf-8")
    (out / PAGE).write_text(page(parts, methods, by.command, by.text()), encoding="utf-8")
    return numbers


def write_csv(path: Path, lines: Sequence[Sequence[object]]) -> None:
    """A CSV file in which no cell is a formula."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([csv_cell(cell) for cell in line] for line in lines)
