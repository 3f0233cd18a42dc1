"""fastr report: tables, curves and statistics of finished and unfinished runs, on one page."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fastr.cli.show import Flag, Maybe, Several, places, print_json, print_table
from fastr.core import UserError, require, write_errors
from fastr.envs.names import respelled
from fastr.report.page import PAGE
from fastr.report.reading import Found, external, read
from fastr.report.sections import returns_table, sections
from fastr.report.series import Final
from fastr.report.writing import around, update, write
from fastr.runs.summary import LAST


@dataclass(frozen=True)
class Report:
    """Learning curves, the paper's Table 1, statistics, misfit and cost of any number of runs.

    OUT gets index.html, one page that needs no network; figures/ with each figure as PNG, SVG and
    PDF and its numbers as CSV; tables/ as CSV and LaTeX. JAX is never loaded. A method with fewer
    seeds, evaluations or frames than its peers is marked.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, places("PATH")] = ()
    """Run directories, folders that hold any (however deep), results files with a sidecar, reports
    of fastr misfit (docs/report.md)."""
    out: Maybe[Path] = None
    """Folder of the report (default: report; none if --readme is given)."""
    compare: Several[tuple[str, str, Path]] = ()
    """Other people's curves: NAME TASK FILE, and more of them; FILE is a CSV of frames (simulator
    steps), seed and return. TASK may be `all` if FILE has a column task."""
    tasks: Several[str] = ()
    """Returns on these tasks only (default: all); diagnoses and tables are shown in any case."""
    reach: Several[float] = ()
    """Returns whose first reaching is timed (default: 50 % and 90 % of a task's best final
    mean)."""
    price_per_hour: Maybe[float] = None
    """What an hour of the machine costs, in any currency."""
    bootstrap_seed: int = 0
    """Seed of the resampling behind the 95 % intervals."""
    readme: Maybe[Path] = None
    """Markdown file whose part between the two `fastr report` comments is written anew."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Read, compare, write."""
        self.check()
        found = self.found()
        parts, numbers = sections(found, self.reach, self.price_per_hour, self.bootstrap_seed)
        out = self.out or (None if self.readme else Path("report"))
        if out:
            with write_errors(out):
                write(parts, numbers, sys.argv[1:], out)
        if self.readme:
            update(self.readme, numbers, found.left_out)
        for message in found.left_out:
            print(f"fastr: left out: {message}", file=sys.stderr)
        return self.print(numbers, found, out)

    def check(self) -> None:
        """Raise UserError for options that cannot be."""
        if not self.paths and not self.compare:
            raise UserError("fastr report needs RUNS, for example `fastr report runs`.")
        if self.price_per_hour is not None:
            require(self, "price_per_hour", low=0, high=1_000_000_000)
        require(self, "bootstrap_seed", low=0)
        if any(not abs(value) < 1e12 for value in self.reach):
            raise UserError("--reach takes finite returns.")
        if self.readme:
            around(self.readme)

    def found(self) -> Found:
        """Everything to report on; UserError if that is nothing."""
        found = read(self.paths)
        for name, task, path in self.compare:
            found.series += external(name, task, path)
        if self.tasks:
            known = sorted({series.task for series in found.series})
            wanted = [respelled(task) for task in self.tasks]
            if odd := [task for task in wanted if task not in known]:
                raise UserError(
                    f"--tasks {odd[0]}: nothing was measured on it, but on {', '.join(known)}."
                )
            found.series = [series for series in found.series if series.task in wanted]
        if found.empty:
            reason = f" {found.left_out[0]}" if found.left_out else ""
            raise UserError(f"There is nothing to report on.{reason}")
        return found

    def print(self, numbers: list[Final], found: Found, out: Path | None) -> int:
        """The numbers on stdout, and where everything lies."""
        page = None if out is None else str(out / PAGE)
        if self.json:
            lines = [as_json(final) for final in numbers]
            return print_json({"page": page, "returns": lines, "left_out": found.left_out})
        if numbers:
            table = returns_table(numbers)
            rows = [
                (*(cell.text for cell in row[:4]), f"{row[4].text} {table.marks(row[4])}".strip())
                for row in table.cells
            ]
            columns = tuple(table.columns[:5])
            print_table("Mean ± std over seeds of the last 10 evaluations", columns, rows)
            for note, letter in table.notes.items():
                print(f"  {letter}: {note}")
        if page:
            print(f"report  {page}")
        if self.readme:
            print(f"results {self.readme}")
        return 0


def as_json(final: Final) -> dict[str, object]:
    """One number with its units in the names."""
    return {
        "task": final.task,
        "method": final.label,
        "frames": final.frames,
        "seeds": list(final.series.seeds),
        "evaluations_averaged": min(LAST, len(final.evaluated)),
        "last_10_evaluations_return_mean": final.mean,
        "last_10_evaluations_return_std": final.std,
        "last_evaluation_return_mean": float(final.returns[:, -1].mean()),
        "notes": list(final.notes),
    }
