"""Predicted hours, from rates that were measured, with how far each can be trusted.

A rate is updates per second of one process that trains all its seeds, one process per device; agent
steps before the first update take next to no time. Runs that lie in the sweep's own directory are
the best source; else a few measurements on known machines are taken, each with its origin. What was
never measured is guessed, and says so.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from fastr.core import Preset, counted
from fastr.envs.processes import usable_cores
from fastr.studies.units import Unit
from fastr.sweep.local import gpus, nvidia_smi
from fastr.sweep.state import progress

Hardware = Literal["NVIDIA H200", "2 CPU cores"]
"""What rates were measured on."""
H200, CPU = get_args(Hardware)
FRAME_SKIP = 2
"""Frames per agent step, as in the paper."""
RANDOM_FRAMES: dict[Preset, int] = {"paper": 10_000, "quick": 2_000}
"""Before the first update, under the presets of `fastr train`."""
OF_METHODS: dict[tuple[Preset, str], int] = {("paper", "td7"): 50_000}
"""The same where a method has its own."""
STEADY = frozenset(
    (
        *("--method", "--preset", "--seeds", "--frames", "--frame-skip", "--random-frames"),
        *("--replay-capacity", "--checkpoint-frames", "--keep-checkpoints", "--out"),
        *("--keep", "--source", "--discount", "--target-rate", "--reward-weight"),
        *("--learning-rate", "--representation-learning-rate", "--critic-learning-rate"),
        *("--actor-learning-rate", "--temperature-learning-rate", "--initial-temperature"),
        *("--exploration-noise", "--target-noise", "--target-noise-clip"),
    )
)
"""Options of `fastr train` under which an update takes no more time than without them."""


class Rate(NamedTuple):
    """Updates per second, from the slowest to the fastest seen."""

    hardware: str
    preset: str
    method: str
    seeds: int
    low: float
    high: float
    origin: str


RATES = (
    Rate(H200, "paper", "fastr", 5, 284, 308, "results/h200/bench-eighth.jsonl"),
    # From all stages one after the other to the update alone.
    Rate(H200, "paper", "sac", 5, 193, 464, "results/h200/bench-third.jsonl"),
    Rate(H200, "paper", "td7", 5, 317, 1706, "results/h200/bench-third.jsonl"),
    Rate(H200, "paper", "ctrl-sr", 5, 127, 273, "results/h200/bench-fourth.jsonl"),
    Rate(H200, "paper", "diff-sr", 5, 125, 257, "results/h200/bench-fourth.jsonl"),
    Rate(H200, "paper", "sac-2layer", 5, 196, 757, "results/h200/bench-fourth.jsonl"),
    Rate(H200, "paper", "td3", 5, 225, 1019, "results/h200/bench-fourth.jsonl"),
    Rate(H200, "paper", "fastr", 3, 343, 343, "docs/speed.md: training, humanoid-walk"),
    Rate(H200, "paper", "ctrl-sr", 3, 364, 364, "docs/speed.md: training, humanoid-walk"),
    Rate(H200, "paper", "fastr", 2, 180, 190, "docs/speed.md: training, three such at once"),
    Rate(H200, "paper", "ctrl-sr", 2, 278, 278, "docs/speed.md: training, two such at once"),
    Rate(CPU, "quick", "fastr", 1, 47, 50, "results/cpu/walker-walk-quick-seed0.jsonl"),
    Rate(CPU, "paper", "ctrl-sr", 1, 0.65, 0.82, "docs/speed.md: the update alone"),
)
SEEDS_FACTOR = 2.0
"""How far a rate that was measured for another number of seeds may be off."""
WIDEST = 10.0
"""Between the fewest and the most hours of a prediction; a wider one would tell nothing."""


class Hours(NamedTuple):
    """Of one unit, or of many, from the fewest to the most."""

    low: float
    high: float

    def __str__(self) -> str:
        if self.high < 0.1:
            return f"{self.low * 60:.1f}-{self.high * 60:.1f} min"
        return f"{self.low:.1f}-{self.high:.1f} h"


class Prediction(NamedTuple):
    """Hours of a unit and where they come from; None where nobody knows."""

    hours: Hours | None
    origin: str


def predicted(unit: Unit, hardware: str, here: Sequence[Rate]) -> Prediction:
    """What is left of a unit to do."""
    if unit.run is None:
        return Prediction(None, "not measured")
    odd = unsteady(unit)
    rate = fitting(unit, [*here, *([] if odd else tabled(unit, hardware))])
    if rate is None:
        what = " ".join((f"{unit.method}, {unit.preset}", *odd))
        return Prediction(None, f"{what}: not measured on {hardware}")
    if rate.high > WIDEST * rate.low:
        return Prediction(None, f"too wide a guess ({rate.origin})")
    left = updates(unit) - updates_done(unit)
    hours = Hours(left / rate.high / 3600, left / rate.low / 3600)
    return Prediction(hours, rate.origin)


def unsteady(unit: Unit) -> list[str]:
    """The options of a training that make its updates others than those of the table."""
    names = [word.partition("=")[0].replace("_", "-") for word in unit.arguments]
    return [name for name in names if name.startswith("--") and name not in STEADY]


def frame_skip(unit: Unit) -> int:
    """Frames per agent step of a training."""
    return given(unit, "--frame-skip", FRAME_SKIP)


def random_steps(unit: Unit) -> int:
    """Agent steps of a training before its first update."""
    usual = OF_METHODS.get((unit.preset, unit.method), RANDOM_FRAMES[unit.preset])
    return given(unit, "--random-frames", usual) // frame_skip(unit)


def updates(unit: Unit) -> int:
    """Of a whole training: one for every agent step behind the random ones, frame 0 among them."""
    return max(0, unit.frames // frame_skip(unit) + 1 - random_steps(unit))


def updates_done(unit: Unit) -> int:
    """Of those, how many a training has behind it."""
    done = progress(unit)
    return min(updates(unit), max(0, done.agent_steps - random_steps(unit))) if done else 0


def given(unit: Unit, option: str, usual: int) -> int:
    """What a training's command says of an option, the last time that it does; else the usual."""
    value = str(usual)
    for word, following in pairwise((*unit.arguments, "")):
        name, equals, behind = word.partition("=")
        if name.replace("_", "-") == option:
            value = behind if equals else following
    return int(value)


def tabled(unit: Unit, hardware: str) -> list[Rate]:
    """The table's rates on this hardware; the simulators in them made two frames a step."""
    rates = [rate for rate in RATES if rate.hardware == hardware]
    if frame_skip(unit) == FRAME_SKIP:
        return rates
    guess = f"a guess, from --frame-skip {FRAME_SKIP}"
    return [rate._replace(origin=f"{guess}: {rate.origin}") for rate in rates]


def fitting(unit: Unit, rates: Sequence[Rate]) -> Rate | None:
    """The rate of the same method and seeds; else one of other seeds, as a guess.

    Another method's says nothing: an update of TD7 is a fortieth of FaStR's arithmetic.
    """
    known = [rate for rate in rates if (rate.preset, rate.method) == (unit.preset, unit.method)]
    if not known:
        return None
    near = min(known, key=lambda rate: abs(rate.seeds - unit.seeds))
    if near.seeds == unit.seeds:
        return near
    # A full device makes so many seeds' steps a second, however they are dealt out.
    share = near.seeds / unit.seeds
    return near._replace(
        low=near.low * share / SEEDS_FACTOR,
        high=near.high * share * SEEDS_FACTOR,
        origin=f"a guess, from {counted(near.seeds, 'seed')}: {near.origin}",
    )


def measured_here(units: Sequence[Unit]) -> list[Rate]:
    """Rates of the runs that lie in the sweep's directory already."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for unit in units:
        done = progress(unit)
        if done and done.seconds > 0 and updates_done(unit) > 0:
            key = (unit.preset, unit.method, unit.seeds)
            found.setdefault(key, []).append(updates_done(unit) / done.seconds)
    return [
        Rate(
            "here", *key, min(rates), max(rates), f"{counted(len(rates), 'run')} in this directory"
        )
        for key, rates in found.items()
    ]


def this_hardware() -> str:
    """What trainings would run on here; CPU is one such name, for a machine that has two."""
    if not gpus():
        return counted(usable_cores(), "CPU core")
    return next(iter(nvidia_smi("name")), "this GPU")


def wall_clock(units: Sequence[Unit], hours: dict[str, float], places: int) -> float:
    """Hours until the last unit ends, if each begins as soon as it may and a place is free.

    A unit's needs stand before it in the list, or are finished and not in it.
    """
    free = [0.0] * places
    ends: dict[str, float] = {}
    left = list(units)

    def earliest(unit: Unit) -> float:
        return max((ends.get(need.name, 0.0) for need in unit.needs), default=0.0)

    while left:
        waiting = {unit.name for unit in left}
        ready = [unit for unit in left if not any(n.name in waiting for n in unit.needs)]
        place = free.index(min(free))
        unit = min(ready, key=lambda unit: max(earliest(unit), free[place]))
        ends[unit.name] = max(earliest(unit), free[place]) + hours.get(unit.name, 0.0)
        free[place] = ends[unit.name]
        left.remove(unit)
    return max(ends.values(), default=0.0)
