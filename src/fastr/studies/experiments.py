"""The paper's experiments as plain values: which commands, with which options, in which order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fastr.core import Method, Preset, UserError
from fastr.report.gains import EXTRA_TASKS, FACTORED, JOINT, TABLE_TASKS
from fastr.studies.units import Grid, Unit, slug

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
    options: tuple[str, ...] = ()


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
