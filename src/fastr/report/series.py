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
# Neither what was learned nor how it was measured.
NOT_SETTINGS = ("seeds", "task", "frames", "source", "method", "preset")
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
    seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Every option of a run by its dotted name."""

    @property
    def label(self) -> str:
        """Name on every page."""
        parts = (NAMES.get(self.method, self.method), self.variant, self.differences)
        return ", ".join(part for part in parts if part)

    @property
    def seeds(self) -> tuple[str, ...]:
        """Seeds with at least one evaluation: numbers by size, then other names."""
        seeds = (seed for seed, curve in self.curves.items() if curve)
        return tuple(sorted(seeds, key=lambda s: (not s.isdecimal(), s.isdecimal() * len(s), s)))

    @property
    def order(self) -> tuple[int, str]:
        """The paper's methods first, others by name."""
        known = list(NAMES)
        place = known.index(self.method) if self.method in known else len(known)
        return place, self.label


def shortcomings(series: Series) -> list[str]:
    """Missing seeds, frames and evaluations of a series, in words."""
    found = []
    if absent := [seed for seed in series.announced if seed not in series.seeds]:
        found.append(f"no evaluation of seed {', '.join(absent)}")
    ends = {seed: series.curves[seed][-1][0] for seed in series.seeds}
    wanted = series.last_evaluation or max(ends.values(), default=0)
    found += [
        f"seed {seed} ends at {end:,} of {wanted:,} frames"
        for seed, end in ends.items()
        if end < wanted
    ]
    frames = {frame for seed in series.seeds for frame, _ in series.curves[seed]}
    for seed, end in ends.items():
        own = {frame for frame, _ in series.curves[seed]}
        if gaps := sum(frame <= end for frame in frames - own):
            found.append(f"seed {seed} lacks {counted(gaps, 'evaluation')} that other seeds have")
    if series.lost:
        found.append(f"{counted(series.lost, 'evaluation')} without a finite return")
    return found


def united(found: Sequence[Series]) -> list[Series]:
    """Runs that differ only in their seeds joined, others told apart by name; in table order."""
    told = told_apart(found, options_of(found), lambda one: (one.method, one.variant))
    # Budgets may differ from task to task: they are part of a name only where they differ on one.
    told = told_apart(told, ["frames"], lambda one: (one.task, one.label))
    joined = [
        one for group in grouped(told, lambda one: (one.task, one.label)) for one in join(group)
    ]
    return sorted(joined, key=lambda one: (one.task, *one.order))


def grouped(found: Sequence[Series], kind: Callable[[Series], Any]) -> list[list[Series]]:
    """Series of the same kind together, sorted by kind."""
    groups: dict[Any, list[Series]] = {}
    for one in found:
        groups.setdefault(kind(one), []).append(one)
    return [group for _, group in sorted(groups.items())]


def told_apart(
    found: Sequence[Series], options: Sequence[str], kind: Callable[[Series], Any]
) -> list[Series]:
    """Each series with the options in its name that differ among series of its kind."""
    varied = {kind(group[0]): differing(group, options) for group in grouped(found, kind)}
    result = []
    for one in found:
        own = [name for name in varied[kind(one)] if name in one.settings]
        values = [f"{name.split('.')[-1]}={shown(one.settings[name])}" for name in own]
        parts = [one.differences, *values] if one.differences else values
        result.append(replace(one, differences=", ".join(parts)))
    return result


def options_of(found: Sequence[Series]) -> list[str]:
    """Every option of these runs that decides what was learned or how it was measured."""
    names = dict.fromkeys(name for one in found for name in one.settings)
    return [name for name in names if name not in NOT_SETTINGS]


def differing(group: Sequence[Series], options: Sequence[str]) -> list[str]:
    """Options whose value is not the same in all of these series."""
    known = [one.settings for one in group]
    values = {name: {repr(one[name]) for one in known if name in one} for name in options}
    return [name for name in options if len(values[name]) > 1]


def join(group: Sequence[Series]) -> list[Series]:
    """One series if each is a run and no seed occurs twice; else each, named after its folder."""
    seeds = [seed for one in group for seed in one.curves]
    if len(group) == 1:
        return list(group)
    if len(set(seeds)) < len(seeds) or not all(one.settings for one in group):
        paths = [one.origins[0].path for one in group]
        names = [PurePath(path).name for path in paths]
        places = names if len(set(names)) == len(names) else paths
        return [
            replace(one, differences=", ".join(filter(None, (one.differences, place))))
            for one, place in zip(group, places, strict=True)
        ]
    seconds = [one.seconds for one in group if one.seconds is not None]
    ends = [one.last_evaluation for one in group if one.last_evaluation is not None]
    whole = replace(
        group[0],
        curves={seed: curve for one in group for seed, curve in one.curves.items()},
        origins=tuple(origin for one in group for origin in one.origins),
        announced=tuple(seed for one in group for seed in one.announced),
        last_evaluation=max(ends, default=None),
        lost=sum(one.lost for one in group),
        seconds=sum(seconds) if len(seconds) == len(group) else None,
    )
    return [whole]


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
    series = final.series
    found = shortcomings(series)
    if len(final.evaluated) < LAST:
        found.append(f"only {counted(len(final.evaluated), 'evaluation')}, all averaged")
    most = max(len(other.returns) for other in peers)
    if len(final.returns) < most:
        found.append(f"{counted(len(final.returns), 'seed')} where another method has {most}")
    longest = max(other.frames for other in peers)
    if final.frames < longest:
        frames = counted(final.frames, "frame")
        found.append(f"at {frames} where another method reaches {longest:,}")
    usual = Counter(spacing(other) for other in peers).most_common(1)[0][0]
    own = spacing(final)
    if own != usual and own and usual:
        found.append(f"evaluated every {counted(own, 'frame')}, most methods every {usual:,}")
    found += [origin.note for origin in series.origins if origin.note]
    return tuple(dict.fromkeys(found))


def spacing(final: Final) -> int | None:
    """Frames between evaluations, the most common; None for a single one."""
    steps, counts = np.unique(np.diff(final.evaluated), return_counts=True)
    return int(steps[counts.argmax()]) if len(steps) else None


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
