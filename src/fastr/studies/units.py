"""What an experiment consists of: units, and the grid that they are made over.

A unit is one command line, as a person would type it, with the place where its result lies and the
units it stands on. A unit is made from units that exist already, so a list of them is in a possible
order and cannot contain a cycle.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastr.core import Preset, UserError, require, require_seeds

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


def slug(name: str) -> str:
    """A task or a shift as one part of a path."""
    return re.sub(r"[^A-Za-z0-9@+=._-]", "-", name).lstrip(".") or "-"


def refuse_same_place(units: Sequence[Unit]) -> None:
    """Raise UserError if two units would write to one place, whatever their tasks are called."""
    names = [unit.name.lower() for unit in units]
    for unit in units:
        if names.count(unit.name.lower()) > 1:
            raise UserError(f"Two runs would both be {unit.name}; sweep one after the other.")
