"""The paper's experiments as values: which commands, with which options, in which order.

A unit is one command line with the place of its result and the units whose results it reads. Units
are created after those that they need, so a list of them is in a possible order.
"""

import itertools
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from fastr.core import Method, Preset, UserError, require, require_seeds, slug
from fastr.report.series import EXTRA_TASKS, FACTORED, JOINT, TABLE_TASKS

Name = Literal["table1", "ablation", "transfer", "misfit", "smoke"]
SEEDS: dict[Preset, tuple[int, ...]] = {"paper": (0, 1, 2, 3, 42), "laptop": (0,)}
"""Seeds of the presets of `fastr train`; the paper's: App. Shared Training Protocol."""
FRAMES: dict[Preset, int] = {"paper": 1_000_000, "laptop": 100_000}
"""Budgets of the presets of `fastr train`."""
TABLE_METHODS: tuple[Method, ...] = ("sac-2layer", "sac", "td7", "diff-sr", "ctrl-sr", "fastr")
"""The rows of Table 1, in its order."""
CONDITIONS: tuple[Method, ...] = ("ctrl-sr", "concat", "tucker", "fastr")
"""The ablation's conditions (a) to (d) (App. Ablation)."""
ABLATION_TASKS = (
    *("humanoid-stand", "humanoid-walk", "humanoid-run"),
    *("quadruped-walk", "quadruped-run"),
)
SHIFTS = ("permutation:7", "degradation:7")
"""The two of Sec. Modular Reuse; the seed of the permutation and degradation is ours."""
MISFIT_TRANSITIONS = 500_000
"""Of each task, all seeds together (App. Empirical CP Misfit Diagnostic)."""
JOINT_METHODS: tuple[Method, ...] = ("ctrl-sr", "ctrl-sr-matched")
WITHOUT_STATE_PART: tuple[Method, ...] = ("sac", "sac-2layer", "td7", "td3", "diff-sr")
"""Methods without a part that depends on the state alone, or on state and action, to keep."""
SMOKE = (
    *("--random-frames", "200", "--eval-frames", "200", "--eval-episodes", "1"),
    *("--checkpoint-frames", "200", "--batch-size", "16", "--hidden-dim", "8"),
)
WATCHING = ("--track", "--patience")
"""Options that `fastr train` shares with `fastr resume` and a run does not record."""


def parted(options: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the options of a training into those of the run and those of `WATCHING`."""
    run: list[str] = []
    watching: list[str] = []
    words = run
    for word in options:
        if word.startswith("--"):
            words = watching if word.partition("=")[0] in WATCHING else run
        words.append(word)
    return tuple(run), tuple(watching)


def importing(modules: Iterable[str]) -> tuple[str, ...]:
    """The words that import a user's modules before a command."""
    return tuple(word for module in modules for word in ("--import", module))


@dataclass(frozen=True)
class Unit:
    """One command, which runs in a process of its own."""

    name: str
    """Its path in the sweep's directory, and its name in tables and logs."""
    arguments: tuple[str, ...]
    """The command line after `fastr` that determines the result."""
    product: Path
    """The directory or file that only this unit writes."""
    needs: tuple["Unit", ...] = ()
    """Units that must be finished before."""
    method: str = ""
    seeds: int = 0
    imports: tuple[str, ...] = ()
    """Modules of the user that register a training's method."""
    watching: tuple[str, ...] = ()
    """Those of `WATCHING`, which may differ between sweeps."""

    @property
    def trains(self) -> bool:
        """Whether the product is a run directory."""
        return self.arguments[0] == "train"

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command."""
        return ("fastr", *importing(self.imports), *self.arguments, *self.watching)

    @property
    def line(self) -> str:
        """The command as typed in a shell."""
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
    """Options of `WATCHING`."""
    imports: tuple[str, ...] = ()
    """Modules of the user, which may register methods."""

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
        """Suffix of a run's path where the seeds are split over several runs."""
        return "" if len(self.parts) == 1 else f"/seeds-{'-'.join(map(str, seeds))}"

    def training(self, task: str, method: str, seeds: tuple[int, ...]) -> Unit:
        """A run: one task, one method, and these seeds together."""
        return self.run(f"train/{slug(task)}/{method}{self.folder(seeds)}", task, method, seeds)

    def trainings(self) -> list[Unit]:
        """Every task under every method."""
        every = itertools.product(self.tasks, self.methods, self.parts)
        return [self.training(*choice) for choice in every]

    def run(
        self,
        name: str,
        task: str,
        method: str,
        seeds: tuple[int, ...],
        *extra: str,
        needs: tuple[Unit, ...] = (),
    ) -> Unit:
        """A run at this path, with options that no other run has."""
        place = self.out / name
        arguments = (
            *("train", task, "--method", method, "--preset", self.preset),
            *("--seeds", *map(str, seeds), "--frames", str(self.frames)),
            *(*self.options, *extra, "--out", str(place)),
        )
        watched = (self.imports, self.watching)
        return Unit(name, arguments, place, needs, method, len(seeds), *watched)

    def derived(self, name: str, *arguments: str, needs: Sequence[Unit]) -> Unit:
        """A command that reads the products of other units."""
        place = self.out / name
        return Unit(name, (*arguments, "--out", str(place)), place, tuple(needs))

    def report(self, name: str, units: Sequence[Unit]) -> Unit:
        """Tables, curves and statistics of the products of these units."""
        products = (str(unit.product) for unit in units)
        return self.derived(f"report/{name}", "report", *products, needs=units)


def compared(grid: Grid, name: str) -> list[Unit]:
    """All trainings, then one report on them."""
    runs = grid.trainings()
    return [*runs, grid.report(name, runs)]


def transfers(grid: Grid) -> list[Unit]:
    """Figure transfer: sources, then each method kept and from scratch under each shift.

    Every condition is a run like any other, at the path where `fastr transfer` would train it; that
    command finds all of them finished, and compares.
    """
    if strange := [method for method in grid.methods if method in WITHOUT_STATE_PART]:
        raise UserError(f"--methods {strange[0]} has nothing to keep under a shift; leave it out.")
    found = []
    for task, seeds in itertools.product(grid.tasks, grid.parts):
        sources = [grid.training(task, method, seeds) for method in grid.methods]
        found += sources
        for shift in SHIFTS:
            found += _shifted(grid, task, shift, seeds, sources)
    return found


def _shifted(
    grid: Grid, task: str, shift: str, seeds: tuple[int, ...], sources: Sequence[Unit]
) -> list[Unit]:
    """All conditions of one task under one shift, and their comparison."""
    place = f"transfer/{slug(task)}@{slug(shift)}{grid.folder(seeds)}"
    body = f"{task}{'+' if '@' in task else '@'}{shift}"
    conditions = []
    for method, source in zip(grid.methods, sources, strict=True):
        part = "encoder" if method in JOINT_METHODS else "state-factor"
        origin = ("--keep", part, "--init", str(source.product), "--init-parts", part)
        kept = f"{place}/{method}-keep-{part}"
        conditions += [
            grid.run(kept, body, method, seeds, *origin, needs=(source,)),
            grid.run(f"{place}/{method}-scratch", body, method, seeds),
        ]
    arguments = (
        *("transfer", *(str(source.product) for source in sources), "--figure", "--shift", shift),
        *("--frames", str(grid.frames), "--out", str(grid.out / place)),
    )
    picture, needs = grid.out / place / "curves.png", (*sources, *conditions)
    return [*conditions, Unit(f"{place}/figure", arguments, picture, needs)]


def misfits(grid: Grid) -> list[Unit]:
    """Figure cp-misfit: CTRL-SR's replay of each task, both predictors on it, the report."""
    if grid.seeds_per_run is not None:
        raise UserError("The misfit reads all seeds of a run together: leave out --seeds-per-run.")
    if JOINT not in grid.methods:
        raise UserError(f"The misfit reads the replay of {JOINT}: --methods must name it.")
    runs, datasets, diagnoses = grid.trainings(), [], []
    for source in (unit for unit in runs if unit.method == JOINT):
        task = slug(source.arguments[1])
        place = f"data/{task}-{JOINT}-v0"
        data = grid.derived(place, "collect", str(source.product), needs=[source])
        options = ("--preset", grid.preset, "--limit", str(MISFIT_TRANSITIONS))
        words = ("misfit", str(data.product), *options)
        datasets.append(data)
        diagnoses.append(grid.derived(f"misfit/{task}", *words, needs=[data]))
    gains = [unit for unit in runs if unit.method in (FACTORED, JOINT)]
    return [*runs, *datasets, *diagnoses, grid.report("misfit", [*diagnoses, *gains])]


@dataclass(frozen=True)
class Experiment:
    """Default grid of an experiment, and how its units follow from a grid."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    units: Callable[[Grid], list[Unit]]
    preset: Preset = "paper"
    frames: int | None = None
    """None for the preset's."""
    options: tuple[str, ...] = ()


EXPERIMENTS: dict[Name, Experiment] = {
    "table1": Experiment(TABLE_TASKS, TABLE_METHODS, partial(compared, name="table1")),
    "ablation": Experiment(ABLATION_TASKS, CONDITIONS, partial(compared, name="ablation")),
    "transfer": Experiment(("walker-walk", "humanoid-walk"), ("ctrl-sr", "fastr"), transfers),
    "misfit": Experiment((*TABLE_TASKS, *EXTRA_TASKS), ("ctrl-sr", "fastr"), misfits),
    "smoke": Experiment(
        ("gym:Pendulum-v1", "cartpole-swingup"),
        ("td3", "fastr"),
        partial(compared, name="smoke"),
        preset="laptop",
        frames=600,
        options=SMOKE,
    ),
}
