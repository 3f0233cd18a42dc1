"""fastr report and sweep: runs compared on one page, and a whole experiment of the paper."""

import math
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, get_args

import tyro

import fastr
from fastr import sweep
from fastr.cli.interrupts import stop_requests, stopped_by
from fastr.cli.show import Flag, Json, Maybe, Several, places, print_json, print_table
from fastr.core import Method, Preset, UserError, counted, require, write_errors
from fastr.envs.names import respelled, spelled
from fastr.report.page import MARK, PAGE, Page, claim, write_page
from fastr.report.reading import Found, external, read
from fastr.report.sections import returns_table, sections
from fastr.report.series import Final, labels
from fastr.runs import locked
from fastr.runs.provenance import commit
from fastr.runs.summary import LAST
from fastr.studies.experiments import EXPERIMENTS, FRAMES, SEEDS, Grid, Name, Unit, parted

OWN = ("--method", "--preset", "--seeds", "--frames", "--out", "--init", "--init-parts", "--keep")
OWN += ("--json",)
"""Options of `fastr train` that a sweep sets itself."""
ANSWER = "waiting for the runs to save; Ctrl-C again ends them at once."


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


@dataclass(frozen=True)
class Sweep:
    """Run an experiment of the paper: every command in a process and a directory of its own.

    table1: ten tasks under six methods. ablation: joint, concat, Tucker and CP on humanoid and
    quadruped. transfer: sources, then shifted bodies. misfit: runs, their replays, both
    predictors. smoke: seconds, to see that everything works here. All end with a report.

    The same command continues after Ctrl-C, a kill or a power cut. Experiments in one --out share
    the runs they have in common. Options after -- go to every training:
    fastr sweep table1 -- --discount 0.98
    """

    name: Annotated[Name, tyro.conf.Positional]
    """Experiment."""
    tasks: Several[str] = ()
    """Tasks instead of the experiment's."""
    methods: Several[str] = ()
    """Methods instead of the experiment's; any that `fastr train --method` knows."""
    seeds: Several[int] = ()
    """Seeds of every training (default: the preset's, 0 1 2 3 42 or, if laptop, 0)."""
    preset: Maybe[Preset] = None
    """Sizes and budget of every training: paper, or laptop (smoke has laptop)."""
    frames: Maybe[int] = None
    """Budget of every training in frames, i.e. simulator steps (default: the preset's)."""
    seeds_per_run: Maybe[int] = None
    """Seeds that train together in one process (default: all, which is fastest on few devices);
    fewer make more runs, for many devices."""
    out: Maybe[Path] = None
    """Directory for everything (default: runs/NAME); on a cluster, on storage that all nodes
    share."""
    address: Maybe[str] = None
    """Ray cluster to run on: host:port, or auto for the one that this machine is part of (default:
    this machine alone)."""
    cpus_per_run: float = 1.0
    """Cores that each run reserves: this limits how many run at a time."""
    gpus_per_run: Maybe[float] = None
    """GPUs of each run, whole or a part like 0.5 (default: 1 where there are any)."""
    minutes: Maybe[float] = None
    """Stop after so long as Ctrl-C does: trainings save, and the same command continues later."""
    retries: int = 3
    """How often in a row a run may fail without a new checkpoint before it is given up."""
    dry_run: Flag = False
    """Print every command with its number of updates, and run nothing."""
    json: Json = False
    options: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    imports: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()

    def run(self) -> int:
        """Run all units, or print them."""
        require(self, "retries", low=0)
        grid = self.grid()
        units = EXPERIMENTS[self.name].units(grid)
        if self.dry_run:
            return self.plan(grid.out, units)
        if parted(self.options)[0] or grid.frames % 2:
            updates(units)
        internal = grid.out / sweep.INTERNAL
        with write_errors(internal):
            internal.mkdir(parents=True, exist_ok=True)
        with locked(internal):
            return self.work(grid.out, units)

    def grid(self) -> Grid:
        """The experiment's grid with the user's changes."""
        usual = EXPERIMENTS[self.name]
        if not set(self.methods) <= set(get_args(Method)):
            # Loads JAX, only for a method that fastr itself does not have.
            from fastr.training.config import named

            for method in self.methods:
                named(method)
        for word in self.options:
            if word.partition("=")[0] in OWN:
                raise UserError(f"{word} after -- is set by the sweep; put it before, or omit it.")
        options, watching = parted(self.options)
        preset = self.preset or usual.preset
        frames = (self.frames, usual.frames, FRAMES[preset])
        return Grid(
            out=(self.out or Path("runs") / self.name).absolute(),
            tasks=tuple(dict.fromkeys(map(spelled, self.tasks))) or usual.tasks,
            methods=self.methods or usual.methods,
            seeds=self.seeds or SEEDS[preset],
            frames=next(value for value in frames if value is not None),
            preset=preset,
            seeds_per_run=self.seeds_per_run,
            options=(*usual.options, *options),
            watching=watching,
            imports=self.imports,
        )

    def plan(self, out: Path, units: Sequence[Unit]) -> int:
        """Print what would be done."""
        counts = updates(units)
        runs = [
            {
                "name": unit.name,
                "command": list(unit.command),
                "needs": [need.name for need in unit.needs],
                "seeds": unit.seeds,
                "updates": counts.get(unit.method, 0),
                "finished": sweep.finished(out, unit),
            }
            for unit in units
        ]
        if self.json:
            return print_json({"out": str(out), "runs": runs})
        for unit, run in zip(units, runs, strict=True):
            size = f"  # {counted(run['seeds'], 'seed')}, {run['updates']:,} updates each"
            print(
                f"{unit.line}{'  # finished' if run['finished'] else size if unit.trains else ''}"
            )
        left = [run for run in runs if not run["finished"]]
        total = sum(run["seeds"] * run["updates"] for run in left)
        print(f"{len(left)} of {len(units)} to do: {total:,} updates of one seed.")
        return 0

    def work(self, out: Path, units: Sequence[Unit]) -> int:
        """Bring every unit to its end, with a line for each that changes."""
        threads = os.environ.get("OMP_NUM_THREADS")
        tasks = [sweep.Task(unit, out, self.retries, sweep.PROGRAM, threads) for unit in units]
        with sweep.connected(self.address) as ray:
            share = sweep.resources(ray, self.gpus_per_run, self.cpus_per_run)
            place = self.address or "this machine"
            say(f"{counted(len(units), 'command')} on {place}, in {out}")
            # Ray handles signals itself from its start on.
            with stop_requests(ANSWER) as asked:
                end = time.monotonic() + 60 * (math.inf if self.minutes is None else self.minutes)
                requests = lambda: max(len(asked), time.monotonic() > end)  # noqa: E731
                outcomes = sweep.run(ray, tasks, share, show, requests)
        return self.report(out, units, outcomes, stopped_by(asked[0]) if asked else 0)

    def report(
        self, out: Path, units: Sequence[Unit], outcomes: Sequence[sweep.Outcome], code: int
    ) -> int:
        """Print how it went; `code` is the exit code of a stopped sweep."""
        lost = [tuple(one) for one in outcomes if one.state in ("failed", "blocked")]
        counts = Counter(outcome.state for outcome in outcomes)
        if self.json:
            runs = [
                {**outcome._asdict(), "product": str(unit.product), "command": list(unit.command)}
                for unit, outcome in zip(units, outcomes, strict=True)
            ]
            finished = counts["done"] == len(units)
            print_json({"out": str(out), "finished": finished, "runs": runs})
        else:
            tally = ", ".join(f"{count} {name}" for name, count in counts.items())
            print(f"sweep {self.name}: {tally}, in {out}")
            if lost:
                print_table("", ("run", "state", "reason"), lost)
        for unit, outcome in zip(units, outcomes, strict=True):
            if outcome.state == "failed":
                log = sweep.log_file(out, unit)
                say("\n  | ".join((f"the end of {log}:", *sweep.tail(log))))
        if counts["stopped"]:
            say("stopped; the same command continues later.")
        return 1 if lost else code if counts["stopped"] else 0


def say(text: str) -> None:
    """A line on stderr."""
    print(f"fastr: {text}", file=sys.stderr, flush=True)


def show(name: str, event: str) -> None:
    """What has happened to a run; the log has the whole command."""
    say(f"{name} {event.partition(': fastr ')[0]}")


def updates(units: Sequence[Unit]) -> dict[str, int]:
    """Updates of one seed under every method; UserError for options that a method refuses."""
    import jax

    from fastr.cli import command

    # The trainings need the devices, this process does not.
    jax.config.update("jax_platforms", "cpu")
    first = {unit.method: unit for unit in reversed(units) if unit.trains}
    return {
        method: command(*unit.arguments, imports=unit.imports).config.updates
        for method, unit in first.items()
    }
