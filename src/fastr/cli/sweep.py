"""fastr sweep: a whole experiment of the paper, on this machine or on a Ray cluster."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro

from fastr.cli.interrupts import stop_requests, stopped_by
from fastr.cli.plan import Plan
from fastr.cli.show import Flag, Maybe, Several, print_json, print_table
from fastr.core import Method, Preset, UserError, counted, option, require, write_errors
from fastr.runs import locked, refuse_within_run
from fastr.studies.experiments import EXPERIMENTS, FRAMES, Name
from fastr.studies.units import Grid, Unit, importing, parted, refuse_same_place
from fastr.sweep import state
from fastr.sweep.attempt import PROGRAM, tail
from fastr.sweep.engine import AbstractEngine
from fastr.sweep.hours import Hardware
from fastr.sweep.local import LocalEngine, slots
from fastr.sweep.schedule import Scheduler, Work
from fastr.sweep.view import View, summarized, tally

OWN = ("--method", "--preset", "--seeds", "--frames", "--out", "--source", "--keep", "--json")
"""Options of `fastr train` that a sweep sets itself."""
ANSWER = "waiting for the runs to save; Ctrl-C again ends them at once."
MOST_JOBS = 1_000
"""On each device, each a process of its own."""
INTERNAL = ".sweep"
"""Folder in the sweep's directory for its lock and, on a cluster, the request to stop."""
ENGINES = {"local": ("jobs",), "ray": ("address", "gpus_per_run", "cpus_per_run")}
"""What only one engine takes."""

MACHINES = tyro.conf.arg(
    metavar="{" + ",".join(f"'{name}'" for name in get_args(Hardware)) + "}", help_behavior_hint=""
)
"""Names with spaces as a shell takes them; the parser's own braces would be two around them."""


@dataclass(frozen=True)
class Sweep:
    """Run an experiment of the paper: every command in a process and a directory of its own.

    table1: ten tasks under six methods. ablation: joint, concat, Tucker and CP on humanoid and
    quadruped. transfer: sources, then shifted bodies. misfit: runs, their replays, both
    predictors, the figure. smoke: seconds, to see that everything works here.

    The same command goes on after Ctrl-C, a kill or a power cut: a stopped run continues from its
    last checkpoint, a finished one is not repeated. Experiments in one --out share the runs they
    have in common. Options behind -- go to every training: fastr sweep table1 -- --discount 0.98
    """

    name: Annotated[Name, tyro.conf.Positional]
    """Experiment."""
    tasks: Several[str] = ()
    """Tasks instead of the experiment's."""
    methods: Several[str] = ()
    """Methods instead of the experiment's; any that `fastr train --method` knows."""
    seeds: Several[int] = ()
    """Seeds instead of the experiment's (the paper's 0 1 2 3 42; smoke has 0)."""
    preset: Maybe[Preset] = None
    """Sizes and budget of every training: paper, or quick (smoke has quick)."""
    frames: Maybe[int] = None
    """Budget of every training in frames, i.e. simulator steps (default: the preset's)."""
    seeds_per_run: Maybe[int] = None
    """Seeds that train side by side in one process (default: all, which is fastest on few
    devices); fewer make more runs, for many devices."""
    out: Maybe[Path] = None
    """Directory for everything (default: runs/NAME); on storage that all nodes share for ray."""
    engine: Literal["local", "ray"] = "local"
    """Where to run: processes on this machine, or a Ray cluster (pip install 'ray>=2.60')."""
    jobs: Maybe[int] = None
    """local: runs at a time on each GPU (default 1), or on the machine where there is none
    (default: one for every four cores, each on its own)."""
    address: str = "auto"
    """ray: the cluster, host:port or ray://host:port; auto is the one this machine is part of."""
    gpus_per_run: Maybe[float] = None
    """ray: GPUs of each run, whole or a part like 0.5 (default: 1 where the cluster has any)."""
    cpus_per_run: Maybe[float] = None
    """ray: cores of each run (default: 4, or what the largest node has)."""
    retries: int = 3
    """How often in a row a run may fail without a new checkpoint before it is given up."""
    dry_run: Flag = False
    """Show every command with its predicted hours, and run nothing."""
    hours_on: Annotated[Hardware | None, MACHINES] = None
    """Hardware to predict the hours for (default: this machine's)."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""
    options: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    imports: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()

    def run(self) -> int:
        """All units, or what they would be."""
        require(self, "retries", low=0)
        self.refuse_idle()
        if self.jobs is not None:
            require(self, "jobs", low=1, high=MOST_JOBS)
        grid = self.grid()
        refuse_within_run(grid.out)
        units = EXPERIMENTS[self.name].units(grid)
        refuse_same_place(units)
        if parted(self.options)[0] or grid.frames % 2:
            check_options(grid)
        if self.dry_run:
            return self.plan(grid, units)
        internal = grid.out / INTERNAL
        with write_errors(internal):
            internal.mkdir(parents=True, exist_ok=True)
        with locked(internal):
            return self.work(grid, units)

    def refuse_idle(self) -> None:
        """Raise UserError for an option that would do nothing."""
        for engine, names in ENGINES.items():
            for name in names:
                if engine != self.engine and getattr(self, name) != getattr(type(self), name):
                    raise UserError(
                        f"{option(name)} is for --engine {engine}, and this is --engine "
                        f"{self.engine}; leave it out, or add --engine {engine}."
                    )
        if self.hours_on and not self.dry_run:
            raise UserError("--hours-on is for --dry-run, which shows the hours; add that.")

    def grid(self) -> Grid:
        """The experiment's grid with what was asked for instead."""
        usual = EXPERIMENTS[self.name]
        check_methods(self.methods)
        for word in self.options:
            if word.partition("=")[0] in OWN:
                raise UserError(
                    f"{word} behind -- is set by the sweep; put it before, or leave it."
                )
        options, watching = parted(self.options)
        preset = self.preset or usual.preset
        return Grid(
            out=(self.out or Path("runs") / self.name).absolute(),
            tasks=distinct_tasks(self.tasks) or usual.tasks,
            methods=self.methods or usual.methods,
            seeds=self.seeds or usual.seeds,
            frames=first_given(self.frames, usual.frames, FRAMES[preset]),
            preset=preset,
            seeds_per_run=self.seeds_per_run,
            options=(*usual.options, *options),
            watching=watching,
            imports=self.imports,
        )

    def plan(self, grid: Grid, units: Sequence[Unit]) -> int:
        """What would be done."""
        places = None
        if self.engine == "local" and not self.hours_on:
            places = len({str(slot.environment) for slot in slots(self.jobs)})
        plan = Plan.of(grid.out, units, self.hours_on, places)
        if self.json:
            return print_json(plan.as_json())
        plan.show(f"sweep {self.name}: {EXPERIMENTS[self.name].about}")
        return 0

    def work(self, grid: Grid, units: Sequence[Unit]) -> int:
        """Bring every unit to its end, showing how far it is."""
        engine = self.chosen_engine(grid)
        try:
            scheduler = Scheduler(grid.out, units, engine, self.retries)
            runs = counted(len(units), "run")
            print(f"fastr: {runs}, {engine.places()}, in {grid.out}", file=sys.stderr)
            # After the engine is there: Ray takes the signals for itself when it starts.
            with stop_requests(ANSWER) as asked, View(f"sweep {self.name}") as view:
                scheduler.run(view, lambda: len(asked))
        finally:
            engine.close()
        return self.report(grid, scheduler.works, stopped_by(asked[0]) if asked else 0)

    def chosen_engine(self, grid: Grid) -> AbstractEngine:
        """Where to run."""
        if self.engine == "local":
            return LocalEngine(slots(self.jobs))
        from fastr.sweep.cluster import RayEngine

        stop = grid.out / INTERNAL / "stop"
        return RayEngine(self.address, self.gpus_per_run, self.cpus_per_run, stop)

    def report(self, grid: Grid, works: Sequence[Work], stop: int) -> int:
        """How it went, and the exit code that says so; `stop` is that of what was stopped."""
        lost = [work for work in works if work.state in ("failed", "blocked")]
        stopped = [work for work in works if work.state == "stopped"]
        for work in lost:
            print(f"fastr: {work.unit.name} {work.state}: {work.note}", file=sys.stderr)
            log = state.log_file(grid.out, work.unit)
            if work.state == "failed":
                print(f"  the end of {log}:", file=sys.stderr)
                for line in tail(log, work.log_before).splitlines():
                    print(f"  | {line}", file=sys.stderr)
        if stopped:
            print("fastr: stopped; the same command goes on later.", file=sys.stderr)
        runs = [summarized(work) for work in works]
        if self.json:
            finished = not lost and not stopped
            print_json({"out": str(grid.out), "finished": finished, "runs": runs})
        else:
            columns = ("run", "state", "frames", "last return", "training s")
            names = ("name", "state", "frames", "last_evaluation_return_mean", "training_seconds")
            lines = [
                tuple("" if run[name] is None else run[name] for name in names) for run in runs
            ]
            print_table(f"sweep {self.name}: {tally(works)}", columns, lines)
            print(f"everything lies in {grid.out}")
        if lost:
            return 1
        return stop if stopped else 0


def first_given(*values: int | None) -> int:
    """The first that is not None."""
    return next(value for value in values if value is not None)


def distinct_tasks(tasks: Sequence[str]) -> tuple[str, ...]:
    """Each task once, in its one spelling; UserError for one that does not exist."""
    if not tasks:
        return ()
    from fastr.envs.names import spelled

    return tuple(dict.fromkeys(map(spelled, tasks)))


def check_methods(methods: Sequence[str]) -> None:
    """Raise UserError for a method that does not exist; JAX is loaded only if one is unusual."""
    if not set(methods) <= set(get_args(Method)):
        from fastr.training.methods import named

        for method in methods:
            named(method)


def check_options(grid: Grid) -> None:
    """Raise UserError if a method would not accept the training options, before any run starts."""
    print("fastr: trying the options on each method ...", file=sys.stderr)
    for method in grid.methods:
        example = grid.training(grid.tasks[0], method, grid.parts[0]).arguments[1:-2]
        command = [sys.executable, *PROGRAM, *importing(grid.imports), "info", *example, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            said = reason.removeprefix("fastr: ").replace(" info --", " train --")
            raise UserError(f"{method}: {said}")
