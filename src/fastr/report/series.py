"""A method on a task: its seeds' curves, their origin, and the final number with its caveats.

Runs that differ only in their seeds are one series; others are told apart by name.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from fastr.core import counted
from fastr.report.table import shown
from fastr.runs.summary import LAST

NAMES = {
    "fastr": "FaStR",
    "ctrl-sr": "CTRL-SR",
    "diff-sr": "Diff-SR",
    "sac": "SAC (3-layer)",
    "sac-2layer": "SAC (2-layer)",
    "td7": "TD7",
    "td3": "TD3",
    "concat": "Concat",
    "tucker": "Tucker",
    "tucker-22": "Tucker (d = 22)",
    "block": "Block",
    "low-rank": "Low-rank",
    "tree": "Tree",
    "ctrl-sr-matched": "CTRL-SR (matched)",
    "tucker-matched": "Tucker (matched)",
}
"""Methods as the paper spells them, in the order of every table."""
FACTORED, JOINT = "fastr", "ctrl-sr"
TABLE_TASKS = (
    "cheetah-run",
    "walker-walk",
    "walker-run",
    "quadruped-walk",
    "quadruped-run",
    "humanoid-stand",
    "humanoid-walk",
    "humanoid-run",
    "dog-stand",
    "dog-run",
)
"""The ten tasks of the paper's Table 1."""
EXTRA_TASKS = ("finger-spin", "hopper-hop", "fish-swim")
"""Three more, ours: the paper's figure has 13 tasks with 2 to 38 action dimensions and does not
name them. These have 2, 4 and 5, where Table 1 has none."""
# Neither what was learned nor how it was measured; budgets are compared task by task.
NOT_SETTINGS = ("seeds", "task", "frames", "init", "init_parts", "method", "preset")
NOT_SETTINGS += ("checkpoint_frames", "keep_checkpoints", "agent.representation.groups")

Curve = tuple[tuple[int, float], ...]
"""(frames, return) of one seed's evaluations, in order."""


@dataclass(frozen=True)
class Origin:
    """Provenance of numbers, in words."""

    path: str
    command: str = ""
    commit: str = ""
    hardware: str = ""
    note: str = ""


@dataclass(frozen=True)
class Series:
    """One method on one task, all its seeds."""

    task: str
    method: str
    """As the command line spells it, or the name given to an external curve."""
    curves: Mapping[str, Curve]
    """By seed."""
    origins: tuple[Origin, ...]
    variant: str = ""
    """Difference from the paper's form of the method: preset, what is kept of another run."""
    differences: str = ""
    """Options in which it differs from other runs of the same method."""
    announced: tuple[str, ...] = ()
    """Seeds that were to be trained."""
    last_evaluation: int | None = None
    """Frame of the last evaluation within the budget."""
    lost: int = 0
    """Evaluations whose return was not a finite number."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Every option of a run by its dotted name."""

    @property
    def label(self) -> str:
        """Name on every page."""
        parts = (NAMES.get(self.method, self.method), self.variant, self.differences)
        return ", ".join(filter(None, parts))

    @property
    def seeds(self) -> tuple[str, ...]:
        """Seeds with at least one evaluation: numbers by size, then other names."""
        seeds = (seed for seed, curve in self.curves.items() if curve)
        return tuple(sorted(seeds, key=lambda s: (not s.isdecimal(), s.isdecimal() * len(s), s)))

    @property
    def order(self) -> tuple[int, str]:
        """The paper's methods first, others by name."""
        return [*NAMES, self.method].index(self.method), self.label

    def named(self, *differences: str) -> "Series":
        """The series with these differences added to its name."""
        return replace(self, differences=", ".join(filter(None, (self.differences, *differences))))


def united(found: Sequence[Series]) -> list[Series]:
    """Runs that differ only in their seeds joined, others told apart by name; in table order."""
    told = told_apart(
        found, lambda one: (one.method, one.variant), lambda name: name not in NOT_SETTINGS
    )
    # Budgets may differ from task to task: they are part of a name only where they differ on one.
    told = told_apart(told, lambda one: (one.task, one.label), lambda name: name == "frames")
    keys = dict.fromkeys((one.task, one.label) for one in told)
    groups = ([one for one in told if (one.task, one.label) == key] for key in keys)
    return sorted(
        (one for group in groups for one in join(group)), key=lambda one: (one.task, *one.order)
    )


def told_apart(
    found: Sequence[Series], kind: Callable[[Series], Any], counts: Callable[[str], bool]
) -> list[Series]:
    """Each series with the options in its name that count and differ among its kind."""
    values: dict[Any, set[str]] = {}
    for one in found:
        for name, value in one.settings.items():
            values.setdefault((kind(one), name), set()).add(repr(value))
    return [
        one.named(
            *(
                f"{name.split('.')[-1]}={shown(value)}"
                for name, value in one.settings.items()
                if counts(name) and len(values[kind(one), name]) > 1
            )
        )
        for one in found
    ]


def join(group: Sequence[Series]) -> list[Series]:
    """One series if each is a run and no seed occurs twice; else each, named after its folder."""
    seeds = [seed for one in group for seed in one.curves]
    if len(group) == 1:
        return list(group)
    if len(set(seeds)) < len(seeds) or not all(one.settings for one in group):
        paths = [one.origins[0].path for one in group]
        names = [PurePath(path).name for path in paths]
        places = names if len(set(names)) == len(names) else paths
        return [one.named(place) for one, place in zip(group, places, strict=True)]
    ends = [one.last_evaluation for one in group if one.last_evaluation is not None]
    together = replace(
        group[0],
        curves={seed: curve for one in group for seed, curve in one.curves.items()},
        origins=tuple(origin for one in group for origin in one.origins),
        announced=tuple(seed for one in group for seed in one.announced),
        last_evaluation=max(ends, default=None),
        lost=sum(one.lost for one in group),
    )
    return [together]


@dataclass(frozen=True, eq=False)
class Final:
    """One method on one task in the end, at the frames where all its seeds were evaluated."""

    series: Series
    evaluated: Int64[np.ndarray, " evaluation"]
    """Frames."""
    returns: Float64[np.ndarray, "seed evaluation"]
    notes: tuple[str, ...] = ()
    """Caveats in words; empty where nothing is missing."""
    best: bool = False
    """Best of the task, by more than its own standard deviation."""

    @property
    def task(self) -> str:
        """The task's name."""
        return self.series.task

    @property
    def label(self) -> str:
        """The method's name."""
        return self.series.label

    @property
    def frames(self) -> int:
        """The last frame that all seeds reached."""
        return int(self.evaluated[-1])

    def scores(self, until: int | None = None) -> Float64[np.ndarray, " seed"]:
        """Each seed's mean over the last ten evaluations up to a frame (App. Shared Training)."""
        kept = self.returns if until is None else self.returns[:, self.evaluated <= until]
        return kept[:, -LAST:].mean(axis=1)

    @property
    def mean(self) -> float:
        """Mean score over seeds."""
        return float(self.scores().mean())

    @property
    def std(self) -> float:
        """Standard deviation of the scores over seeds, ddof 0 as in the paper."""
        return float(self.scores().std())

    @property
    def spacing(self) -> int:
        """Frames between evaluations, the most common; 0 for a single one."""
        steps, counts = np.unique(np.diff(self.evaluated), return_counts=True)
        return int(steps[counts.argmax()]) if len(steps) else 0


def aligned(series: Series) -> Final | None:
    """The series at its seeds' common frames; None if there are none."""
    curves = [dict(series.curves[seed]) for seed in series.seeds]
    common = sorted(set.intersection(*map(set, curves))) if curves else []
    if not common:
        return None
    returns = [[curve[frame] for frame in common] for curve in curves]
    return Final(series, np.array(common, np.int64), np.array(returns, np.float64))


def finals(found: Sequence[Series]) -> tuple[list[Final], list[str]]:
    """The numbers of all series, and a sentence on each that has none."""
    result, without = [], []
    for task in dict.fromkeys(series.task for series in found):
        # The last of several series with one name.
        own = {series.label: aligned(series) for series in found if series.task == task}
        here = [final for final in own.values() if final is not None]
        lacking = "no frame at which all its seeds were evaluated"
        without += [f"{label} on {task}: {lacking}" for label in own if own[label] is None]
        best = clear_winner(here)
        result += [replace(one, notes=caveats(one, here), best=one is best) for one in here]
    return result, without


def caveats(final: Final, peers: Sequence[Final]) -> tuple[str, ...]:
    """What is missing, what other methods on the task have more of, and notes of the source."""
    series, found = final.series, []
    if absent := [seed for seed in series.announced if seed not in series.seeds]:
        found.append(f"no evaluation of seed {', '.join(absent)}")
    ends = {seed: series.curves[seed][-1][0] for seed in series.seeds}
    wanted = series.last_evaluation or max(ends.values())
    found += [
        f"seed {seed} ends at {end:,} of {wanted:,} frames"
        for seed, end in ends.items()
        if end < wanted
    ]
    if series.lost:
        found.append(f"{counted(series.lost, 'evaluation')} without a finite return")
    if len(final.evaluated) < LAST:
        found.append(f"only {counted(len(final.evaluated), 'evaluation')}, all averaged")
    most = max(len(other.returns) for other in peers)
    if len(final.returns) < most:
        found.append(f"{counted(len(final.returns), 'seed')} where another method has {most}")
    longest = max(other.frames for other in peers)
    if final.frames < longest:
        frames = counted(final.frames, "frame")
        found.append(f"at {frames} where another method reaches {longest:,}")
    usual = Counter(other.spacing for other in peers).most_common(1)[0][0]
    if final.spacing != usual and final.spacing and usual:
        every = counted(final.spacing, "frame")
        found.append(f"evaluated every {every}, most methods every {usual:,}")
    found += [origin.note for origin in series.origins if origin.note]
    return tuple(dict.fromkeys(found))


def clear_winner(peers: Sequence[Final]) -> Final | None:
    """The method to print in bold: its gap to the next exceeds its standard deviation (Table 1).

    None where methods ended at different frames, or where the best has one seed.
    """
    if len(peers) < 2 or len({final.frames for final in peers}) > 1:
        return None
    first, second, *_ = sorted(peers, key=lambda final: -final.mean)
    clear = len(first.returns) > 1 and first.mean - second.mean > first.std
    return first if clear else None


def labels(found: Sequence[Final]) -> list[str]:
    """Every method's name, the paper's first."""
    ordered = sorted(found, key=lambda final: final.series.order)
    return list(dict.fromkeys(final.label for final in ordered))


def horizons(found: Sequence[Final]) -> dict[str, int]:
    """For each task the last frame that all its methods reached: where they are compared."""
    return {
        task: min(final.frames for final in found if final.task == task)
        for task in dict.fromkeys(final.task for final in found)
    }
