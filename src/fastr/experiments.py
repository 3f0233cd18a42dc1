"""The paper's experiments as plain values: which commands, with which options, in which order.

An experiment is a list of units. A unit is one command line, as a person would type it, with the
place where its result lies and the units it stands on. A unit is made from units that exist
already, so the list is in a possible order and cannot contain a cycle.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fastr.checks import require, require_seeds
from fastr.errors import UserError
from fastr.misfit.scatter import EXTRA_TASKS, FACTORED, JOINT, TABLE_TASKS
from fastr.names import Method, Preset

Name = Literal["table1", "ablation", "transfer", "misfit", "smoke"]
SEEDS = (0, 1, 2, 3, 42)
"""The paper's (App. Shared Training Protocol)."""
FRAMES: dict[Preset, int] = {"paper": 1_000_000, "quick": 25_000}
"""Budgets of the presets of `fastr train`."""
TABLE_METHODS: tuple[Method, ...] = ("sac-2layer", "sac", "td7", "diff-sr", "ctrl-sr", "fastr")
"""The rows of Table 1, in its order."""
CONDITIONS: tuple[Method, ...] = ("ctrl-sr", "concat", "tucker", "fastr")
"""The ablation's conditions (a) to (d) (App. Ablation)."""
HUMANOID = ("humanoid-stand", "humanoid-walk", "humanoid-run")
QUADRUPED = ("quadruped-walk", "quadruped-run")
SHIFTS = ("permutation:7", "degradation:7")
"""The two of Sec. Modular Reuse; what is drawn, by this seed, is ours (docs/transfer.md)."""
MISFIT_TRANSITIONS = 500_000
"""Of each task, all seeds together (App. Empirical CP Misfit Diagnostic)."""
JOINT_METHODS: tuple[Method, ...] = ("ctrl-sr", "ctrl-sr-matched")
WITHOUT_STATE_PART: tuple[Method, ...] = ("sac", "sac-2layer", "td7", "td3", "diff-sr")
"""Methods with nothing that depends on the state alone, or on it and the action, to keep."""
SMOKE = (
    *("--random-frames", "200", "--eval-frames", "200", "--eval-episodes", "1"),
    *("--checkpoint-frames", "200", "--batch-size", "16", "--hidden-dim", "8"),
)

WATCHING = ("--track", "--patience")
"""Options of `fastr train` that `fastr resume` has, too: they are no part of a run."""


def parted(options: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of a training's command that say what it is, and those on how it is watched."""
    run: list[str] = []
    watching: list[str] = []
    words = run
    for word in options:
        if word.startswith("--"):
            words = watching if word.partition("=")[0] in WATCHING else run
        words.append(word)
    return tuple(run), tuple(watching)


def importing(modules: Iterable[str]) -> tuple[str, ...]:
    """What stands before a command that needs modules of one's own."""
    return tuple(word for module in modules for word in ("--import", module))


@dataclass(frozen=True)
class Unit:
    """One command, which runs in a process of its own."""

    name: str
    """Where it stands in tables, and where its log and its result lie."""
    arguments: tuple[str, ...]
    """The command line behind `fastr`, which makes it what it is."""
    product: Path
    """The directory or file that it makes, and nobody else."""
    run: Path | None = None
    """The run directory that says how far it is; None if there is none."""
    needs: tuple["Unit", ...] = ()
    """What must be finished before."""
    method: str = ""
    seeds: int = 0
    frames: int = 0
    """Of a training."""
    preset: Preset = "paper"
    imports: tuple[str, ...] = ()
    """Modules of one's own that a training needs for its method."""
    watching: tuple[str, ...] = ()
    """Options of every process that trains it; another sweep may have others."""

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command."""
        return ("fastr", *importing(self.imports), *self.arguments, *self.watching)

    @property
    def line(self) -> str:
        """The command as one types it."""
        return shlex.join(self.command)


@dataclass(frozen=True)
class Grid:
    """What to run an experiment over, and what all its trainings share."""

    out: Path
    """Directory of everything, absolute."""
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    frames: int
    preset: Preset = "paper"
    seeds_per_run: int | None = None
    """Seeds that share a process; None for all."""
    options: tuple[str, ...] = ()
    """Further options of `fastr train`, the same for every training."""
    watching: tuple[str, ...] = ()
    """Those of them that are no part of a run."""
    imports: tuple[str, ...] = ()
    """Modules of one's own, which may register methods."""

    def __post_init__(self):
        for name in ("tasks", "methods"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise UserError(f"--{name} must name at least one, and each only once.")
        require_seeds(self.seeds)
        require(self, "frames", low=1)
        if self.seeds_per_run is not None:
            require(self, "seeds_per_run", low=1)

    @property
    def parts(self) -> list[tuple[int, ...]]:
        """The seeds of each process."""
        size = self.seeds_per_run or len(self.seeds)
        return [self.seeds[i : i + size] for i in range(0, len(self.seeds), size)]

    def folder(self, seeds: tuple[int, ...]) -> str:
        """What a directory's name has behind it where seeds are split over several."""
        return "" if len(self.parts) == 1 else f"/seeds-{'-'.join(map(str, seeds))}"

    def training(self, task: str, method: str, seeds: tuple[int, ...]) -> Unit:
        """A run: one task, one method, and these seeds side by side."""
        name = f"train/{slug(task)}/{method}{self.folder(seeds)}"
        return self.run(name, task, method, seeds)

    def run(
        self,
        name: str,
        task: str,
        method: str,
        seeds: tuple[int, ...],
        *extra: str,
        needs: tuple[Unit, ...] = (),
    ) -> Unit:
        """A run in this place, with options that no other run has."""
        place = self.out / name
        arguments = (
            *("train", task, "--method", method, "--preset", self.preset),
            *("--seeds", *map(str, seeds), "--frames", str(self.frames)),
            *(*self.options, *extra, "--out", str(place)),
        )
        return Unit(
            name,
            arguments,
            place,
            place,
            needs,
            method=method,
            seeds=len(seeds),
            frames=self.frames,
            preset=self.preset,
            imports=self.imports,
            watching=self.watching,
        )


def trainings(grid: Grid) -> list[Unit]:
    """Every task under every method."""
    return [
        grid.training(task, method, seeds)
        for task in grid.tasks
        for method in grid.methods
        for seeds in grid.parts
    ]


def transfers(grid: Grid) -> list[Unit]:
    """Figure transfer: the sources, each method kept and from scratch under each shift, the figure.

    Every condition is a run like any other, where `fastr transfer` would make it; that command
    finds all of them finished, and compares.
    """
    if strange := [method for method in grid.methods if method in WITHOUT_STATE_PART]:
        raise UserError(f"--methods {strange[0]} has nothing to keep under a shift; leave it out.")
    found = []
    for task in grid.tasks:
        for seeds in grid.parts:
            sources = [grid.training(task, method, seeds) for method in grid.methods]
            found += sources
            for shift in SHIFTS:
                found += shifted(grid, task, shift, seeds, sources)
    return found


def shifted(
    grid: Grid, task: str, shift: str, seeds: tuple[int, ...], sources: Sequence[Unit]
) -> list[Unit]:
    """All conditions of one task under one shift, and their comparison."""
    place = f"transfer/{slug(task)}@{slug(shift)}{grid.folder(seeds)}"
    body = f"{task}{'+' if '@' in task else '@'}{shift}"
    conditions = []
    for method, source in zip(grid.methods, sources, strict=True):
        part = "encoder" if method in JOINT_METHODS else "state-factor"
        origin = ("--keep", part, "--source", str(source.product))
        kept = f"{place}/{method}-keep-{part}"
        conditions += [
            grid.run(kept, body, method, seeds, *origin, needs=(source,)),
            grid.run(f"{place}/{method}-scratch", body, method, seeds),
        ]
    arguments = (
        *("transfer", *(str(source.product) for source in sources), "--figure", "--shift", shift),
        *("--frames", str(grid.frames), "--out", str(grid.out / place), "--json"),
    )
    picture = grid.out / place / "curves.png"
    figure = Unit(f"{place}/figure", arguments, picture, needs=(*sources, *conditions))
    return [*conditions, figure]


def misfits(grid: Grid) -> list[Unit]:
    """Figure cp-misfit: CTRL-SR's replay of each task, both predictors on it, the gain."""
    if grid.seeds_per_run is not None:
        raise UserError("The misfit reads all seeds of a run together: leave out --seeds-per-run.")
    if JOINT not in grid.methods:
        raise UserError(f"The misfit reads the replay of {JOINT}: --methods must name it.")
    runs = {unit.name: unit for unit in trainings(grid)}
    reports = []
    datasets = []
    for task in grid.tasks:
        source = runs[f"train/{slug(task)}/{JOINT}"]
        name = f"data/{slug(task)}-{JOINT}-v0"
        data = grid.out / name
        arguments = ("collect", str(source.product), "--out", str(data), "--json")
        datasets.append(Unit(name, arguments, data, needs=(source,)))
        name = f"misfit/{slug(task)}"
        limit = ("--limit", str(MISFIT_TRANSITIONS))
        arguments = ("misfit", str(data), "--preset", grid.preset, *limit)
        out = ("--out", str(grid.out / name), "--json")
        reports.append(Unit(name, (*arguments, *out), grid.out / name, needs=(datasets[-1],)))
    units = [*runs.values(), *datasets, *reports]
    if FACTORED not in grid.methods:
        return units
    picture = grid.out / "misfit" / "misfit.png"
    compared = [unit for unit in runs.values() if unit.method in (FACTORED, JOINT)]
    arguments = (
        *("misfit-figure", *(str(unit.product) for unit in reports)),
        *("--returns", *(str(unit.product) for unit in compared)),
        *("--out", str(picture), "--json"),
    )
    return [*units, Unit("misfit/figure", arguments, picture, needs=(*compared, *reports))]


@dataclass(frozen=True)
class Experiment:
    """An experiment's grid, as far as nobody asks for another."""

    about: str
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    units: Callable[[Grid], list[Unit]] = trainings
    seeds: tuple[int, ...] = SEEDS
    preset: Preset = "paper"
    frames: int | None = None
    """None for the preset's."""
    options: tuple[str, ...] = field(default=())


EXPERIMENTS: dict[Name, Experiment] = {
    "table1": Experiment("Table 1: final returns", TABLE_TASKS, TABLE_METHODS),
    "ablation": Experiment(
        "Figure nce-ablation: four interactions", (*HUMANOID, *QUADRUPED), CONDITIONS
    ),
    "transfer": Experiment(
        "Figure transfer: actuator shifts",
        ("walker-walk", "humanoid-walk"),
        ("ctrl-sr", "fastr"),
        transfers,
    ),
    "misfit": Experiment(
        "Figure cp-misfit: misfit against gain",
        (*TABLE_TASKS, *EXTRA_TASKS),
        ("ctrl-sr", "fastr"),
        misfits,
    ),
    "smoke": Experiment(
        "tiny networks for a few hundred frames: does everything run here?",
        ("gym:Pendulum-v1", "cartpole-swingup"),
        ("td3", "fastr"),
        seeds=(0,),
        preset="quick",
        frames=600,
        options=SMOKE,
    ),
}


def slug(name: str) -> str:
    """A task or a shift as one part of a path."""
    return re.sub(r"[^A-Za-z0-9@+=._-]", "-", name).lstrip(".") or "-"


def refuse_same_place(units: Sequence[Unit]) -> None:
    """Raise UserError if two units would write to one place, whatever their tasks are called."""
    names = [unit.name.lower() for unit in units]
    for unit in units:
        if names.count(unit.name.lower()) > 1:
            raise UserError(f"Two runs would both be {unit.name}; sweep one after the other.")
