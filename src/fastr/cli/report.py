"""fastr report: tables, curves and statistics of finished and unfinished runs, on one page."""

import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import tyro

import fastr
from fastr.cli.show import Json, Several, places, print_json, print_table
from fastr.core import UserError, counted, require, write_errors
from fastr.envs.names import respelled
from fastr.report.page import MARK, PAGE, Page, claim, write_page
from fastr.report.reading import Found, external, read
from fastr.report.sections import returns_table, sections
from fastr.report.series import Final, labels
from fastr.runs.provenance import commit
from fastr.runs.summary import LAST


@dataclass(frozen=True)
class Report:
    """Learning curves, the paper's Table 1, statistics and misfit of any number of runs.

    OUT gets index.html, one page that needs no network; figures/ with each figure as PNG and SVG
    and its numbers as CSV; tables/ as CSV, Markdown and LaTeX. JAX is never loaded. A method with
    fewer seeds, evaluations or frames than its peers is marked.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, places("PATH")] = ()
    """Run directories, folders that hold any (however deep), results files with a sidecar, reports
    of fastr misfit (docs/report.md)."""
    out: Path = Path("report")
    """Folder of the report."""
    compare: Several[tuple[str, str, Path]] = ()
    """Other people's curves: NAME TASK FILE, and more of them; FILE is a CSV of frames (simulator
    steps), seed and return."""
    tasks: Several[str] = ()
    """Returns on these tasks only (default: all); diagnoses and tables are shown in any case."""
    bootstrap_seed: int = 0
    """Seed of the resampling behind the 95 % intervals."""
    json: Json = False

    def run(self) -> int:
        """Read, compare, write."""
        if not self.paths and not self.compare:
            raise UserError("fastr report needs RUNS, for example `fastr report runs`.")
        require(self, "bootstrap_seed", low=0)
        found = self.found()
        parts, numbers = sections(found, self.bootstrap_seed)
        command = shlex.join(["fastr", *sys.argv[1:]])
        revision = ((commit() or {}).get("revision") or "")[:12]
        version = f"fastr {fastr.__version__} {revision}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        tasks = counted(len({final.task for final in numbers}), "task")
        lead = f"{counted(len(labels(numbers)), 'method')} on {tasks}."
        with write_errors(self.out):
            claim(self.out)
            page = Page("Measured results", lead, parts, command, version)
            write_page(page, self.out / PAGE)
            (self.out / MARK).write_text(f"{command}\n{version}\n", encoding="utf-8")
        for message in found.left_out:
            print(f"fastr: left out: {message}", file=sys.stderr)
        return self.print(numbers, found)

    def found(self) -> Found:
        """Everything to report on; UserError if that is nothing."""
        found = read(self.paths)
        for name, task, path in self.compare:
            found.series.append(external(name, task, path))
        if self.tasks:
            known = sorted({series.task for series in found.series})
            wanted = [respelled(task) for task in self.tasks]
            if odd := [task for task in wanted if task not in known]:
                raise UserError(
                    f"--tasks {odd[0]}: nothing was measured on it, but on {', '.join(known)}."
                )
            found.series = [series for series in found.series if series.task in wanted]
        if not (found.series or found.misfits or found.tables):
            raise UserError(f"There is nothing to report on. {' '.join(found.left_out[:1])}")
        return found

    def print(self, numbers: list[Final], found: Found) -> int:
        """The numbers on stdout, and the page's place."""
        page = str(self.out / PAGE)
        if self.json:
            lines = [as_json(final) for final in numbers]
            return print_json({"page": page, "returns": lines, "left_out": found.left_out})
        if numbers:
            table = returns_table(numbers)
            rows = [
                (*(cell.text for cell in row[:4]), f"{row[4].text} {table.marks(row[4])}".strip())
                for row in table.cells
            ]
            title = "Mean ± std over seeds of the last 10 evaluations"
            print_table(title, tuple(table.columns[:5]), rows)
            for note, letter in table.notes.items():
                print(f"  {letter}: {note}")
        print(f"report  {page}")
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
