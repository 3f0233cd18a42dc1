"""A method on a task: its seeds' curves, where they come from, and what they lack."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from fastr.core import counted
from fastr.report.text import shown
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
"""Methods as the paper spells them, in the order they are shown in."""
# What says where, how often or how long, but not what was learned or how it was measured.
NOT_SETTINGS = ("seeds", "task", "frames", "source", "method", "preset")
NOT_SETTINGS += ("checkpoint_frames", "keep_checkpoints", "agent.representation.groups")

FEW = 2
"""Options that fit into a name; runs that differ in more are numbered."""

Curve = tuple[tuple[int, float], ...]
"""(frames, return) of one seed's evaluations, in order."""


@dataclass(frozen=True)
class Origin:
    """Where numbers come from."""

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
    """As the command line spells it, or the name an external curve was given."""
    curves: Mapping[str, Curve]
    """By seed."""
    origins: tuple[Origin, ...]
    variant: str = ""
    """What sets it apart from the paper's form of the method."""
    announced: tuple[str, ...] = ()
    """Seeds that were to be trained."""
    last_evaluation: int | None = None
    """Frame of the last evaluation that the budget asks for."""
    lost: int = 0
    """Evaluations whose return was not a finite number."""
    seconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Every option of a run by its dotted name."""

    @property
    def label(self) -> str:
        """Its name on every page."""
        name = NAMES.get(self.method, self.method)
        return f"{name}, {self.variant}" if self.variant else name

    @property
    def seeds(self) -> tuple[str, ...]:
        """Seeds with at least one evaluation, in order."""
        return tuple(sorted((s for s, curve in self.curves.items() if curve), key=seed_order))


@dataclass(frozen=True)
class Aligned:
    """A series where all its seeds were evaluated."""

    frames: Int64[np.ndarray, " evaluation"]
    returns: Float64[np.ndarray, "seed evaluation"]

    @property
    def last(self) -> int:
        """The last frame that all seeds reached."""
        return int(self.frames[-1])

    def scores(self, until: int | None = None) -> Float64[np.ndarray, " seed"]:
        """Each seed's mean over the last ten evaluations up to a frame (App. Shared Training)."""
        kept = self.returns if until is None else self.returns[:, self.frames <= until]
        return kept[:, -LAST:].mean(axis=1)


def seed_order(seed: str) -> tuple[int, int, str]:
    """Numbers by size, then everything else by name."""
    return (0, int(seed), "") if seed.isdecimal() and len(seed) < 19 else (1, 0, seed)


def aligned(series: Series) -> Aligned | None:
    """The frames at which every seed was evaluated; None if there is no such frame."""
    curves = [dict(series.curves[seed]) for seed in series.seeds]
    if not curves:
        return None
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not common:
        return None
    returns = np.array([[curve[frame] for frame in common] for curve in curves])
    return Aligned(np.array(common, np.int64), returns.astype(np.float64))


def lacks(series: Series) -> list[str]:
    """What is missing from a series by its own account, in words."""
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
    for seed in series.seeds:
        own = {frame for frame, _ in series.curves[seed]}
        gaps = sum(frame <= ends[seed] for frame in frames - own)
        if gaps:
            found.append(f"seed {seed} lacks {counted(gaps, 'evaluation')} that other seeds have")
    if series.lost:
        found.append(f"{counted(series.lost, 'evaluation')} without a finite return")
    whole = aligned(series)
    if whole is not None and len(whole.frames) < LAST:
        found.append(f"only {counted(len(whole.frames), 'evaluation')}, all averaged")
    return found


def united(found: Sequence[Series]) -> list[Series]:
    """Series told apart by what differs, and joined where only the seeds do; in showing order."""
    groups: dict[tuple[str, str], list[Series]] = {}
    for one in varied(found):
        groups.setdefault((one.task, one.label), []).append(one)
    joined = [one for group in groups.values() for one in join(group)]
    return sorted(joined, key=lambda one: (one.task, *showing_order(one)))


def showing_order(series: Series) -> tuple[int, str]:
    """The paper's methods first, others by name."""
    known = list(NAMES)
    place = known.index(series.method) if series.method in known else len(known)
    return place, series.label


def varied(found: Sequence[Series]) -> list[Series]:
    """With the options in which runs of one method differ as part of their names.

    Budgets may differ from task to task, so they are named only where they differ on one.
    """
    told = spelled(found, options_of(found), lambda one: (one.method, one.variant))
    return spelled(told, ["frames"], lambda one: (one.task, one.method, one.variant))


def options_of(found: Sequence[Series]) -> list[str]:
    """Every option that says what was learned or how it was measured."""
    names = dict.fromkeys(name for one in found for name in one.settings)
    return [name for name in names if name not in NOT_SETTINGS]


def spelled(
    found: Sequence[Series], options: Sequence[str], kind: Callable[[Series], tuple[str, ...]]
) -> list[Series]:
    """Each series with those of the options in its name that differ among series of its kind."""
    groups: dict[tuple[str, ...], list[Series]] = {}
    for one in found:
        groups.setdefault(kind(one), []).append(one)
    odd = {key: differing(group, options) for key, group in groups.items()}
    # Over all kinds: one number for the same options, whatever method they are of.
    numbered: dict[str, str] = {}
    result = []
    for one in found:
        own = [name for name in odd[kind(one)] if name in one.settings]
        said = ", ".join(f"{name.split('.')[-1]}={shown(one.settings[name])}" for name in own)
        if len(own) > FEW:
            number = numbered.setdefault(said, f"settings {len(numbered) + 1}")
            result.append(named(noted(one, f"{number}: {said}"), number))
        else:
            result.append(named(one, said))
    return result


def differing(group: Sequence[Series], options: Sequence[str]) -> list[str]:
    """Options that not all of these series share; those without settings have none."""
    known = [one.settings for one in group if one.settings]
    return [
        name
        for name in options
        if len({repr(settings[name]) for settings in known if name in settings}) > 1
    ]


def named(series: Series, what: str) -> Series:
    """With a further part of its name."""
    return replace(series, variant=", ".join(part for part in (series.variant, what) if part))


def noted(series: Series, note: str) -> Series:
    """With a further note on where it comes from."""
    origins = [
        replace(origin, note=f"{origin.note}; {note}" if origin.note else note)
        for origin in series.origins
    ]
    return replace(series, origins=tuple(origins))


def join(group: Sequence[Series]) -> list[Series]:
    """One series where no seed is there twice; else each by itself, named after its place."""
    seeds = [seed for one in group for seed in one.curves]
    kinds = {bool(one.settings) for one in group}
    if len(group) == 1:
        return list(group)
    if len(set(seeds)) == len(seeds) and kinds == {True}:
        return [together(group)]
    return [
        named(one, place)
        for one, place in zip(group, places([one.origins[0].path for one in group]), strict=True)
    ]


def places(paths: Sequence[str]) -> list[str]:
    """The ends of these paths, as long as they must be to differ."""
    parts = [PurePath(path).parts for path in paths]
    longest = max((len(part) for part in parts), default=1)
    for length in range(1, longest + 1):
        ends = ["/".join(part[-length:]) for part in parts]
        if len(set(ends)) == len(ends):
            return ends
    return [f"{path} ({i})" for i, path in enumerate(paths, 1)]


def together(group: Sequence[Series]) -> Series:
    """The seeds of several runs with the same settings as one series."""
    seconds = [one.seconds for one in group]
    known = [one.last_evaluation for one in group if one.last_evaluation is not None]
    return replace(
        group[0],
        curves={seed: curve for one in group for seed, curve in one.curves.items()},
        origins=tuple(origin for one in group for origin in one.origins),
        announced=tuple(seed for one in group for seed in one.announced),
        last_evaluation=max(known, default=None),
        lost=sum(one.lost for one in group),
        seconds=None if None in seconds else float(sum(s for s in seconds if s is not None)),
    )
