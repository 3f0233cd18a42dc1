"""Changes between a policy's output and a robot's actuators (Sec. Modular Reuse).

Written behind a task's name, walker-walk@permutation:7+latency=2, and applied from left to right.
The number after the colon is the seed of what is drawn at random, so that a name means the same
shift everywhere: in training, in evaluation and for every method.
"""

import abc
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from fastr.core import UserError, counted, nearest

Action = Float32[np.ndarray, " action"]
_ITEM = re.compile(r"([a-z-]+)(?:=(\d{1,6}(?:\.\d{1,6})?))?(?::(\d{1,9}))?")
_GAINS = (0.5, 1.0)


class Shift(abc.ABC):
    """What becomes of an action on its way to the actuators."""

    def begin(self) -> None:  # noqa: B027  (most remember nothing)
        """Forget the last episode."""

    @abc.abstractmethod
    def __call__(self, action: Action) -> Action:
        """The action that arrives."""


@dataclass(frozen=True)
class Permutation(Shift):
    """Channels reassigned: actuator i receives what was meant for order[i]."""

    order: tuple[int, ...]

    def __call__(self, action: Action) -> Action:
        """The channels in their new order."""
        return action[list(self.order)]


@dataclass(frozen=True)
class Degradation(Shift):
    """Every channel with a gain of its own; a negative one has its polarity inverted."""

    gains: tuple[float, ...]

    def __call__(self, action: Action) -> Action:
        """The scaled action."""
        return action * np.asarray(self.gains, np.float32)


@dataclass(frozen=True)
class Dead(Shift):
    """Actuators that receive nothing."""

    channels: tuple[int, ...]

    def __call__(self, action: Action) -> Action:
        """The action with these channels at zero."""
        return np.where(np.isin(np.arange(action.size), self.channels), np.float32(0), action)


class Latency(Shift):
    """Actions that arrive some agent steps late; before the first, none."""

    def __init__(self, steps: int):
        self.steps = steps
        self.begin()

    def begin(self) -> None:
        """Nothing is on its way."""
        self.underway: deque[Action] = deque()

    def __call__(self, action: Action) -> Action:
        """What was sent so many steps ago."""
        self.underway.append(action.copy())
        if len(self.underway) <= self.steps:
            return np.zeros_like(action)
        return self.underway.popleft()


@dataclass(frozen=True)
class DeadBand(Shift):
    """Small commands that have no effect."""

    width: float

    def __call__(self, action: Action) -> Action:
        """The action with what is below the width at zero."""
        return np.where(np.abs(action) < self.width, np.float32(0), action)


@dataclass(frozen=True)
class Quantization(Shift):
    """Commands rounded to evenly spaced values from -1 to 1."""

    levels: int

    def __call__(self, action: Action) -> Action:
        """The nearest values."""
        step = np.float32(2 / (self.levels - 1))
        return (np.round((action + 1) / step) * step - 1).astype(np.float32)


def _permutation(_: float, size: int, rng: np.random.Generator) -> Permutation:
    if size < 2:
        raise UserError("@permutation needs at least two actuators; this robot has one.")
    order = np.arange(size)
    while (order == np.arange(size)).any():  # about e tries
        order = rng.permutation(size)
    return Permutation(tuple(order.tolist()))


def _degradation(_: float, size: int, rng: np.random.Generator) -> Degradation:
    gains = rng.uniform(*_GAINS, size) * rng.choice([-1.0, 1.0], size)
    return Degradation(tuple(gains.tolist()))


def _dead(count: float, size: int, rng: np.random.Generator) -> Dead:
    if count > size:
        raise UserError(f"@dead={count:g} is more than this robot's {counted(size, 'actuator')}.")
    return Dead(tuple(sorted(rng.choice(size, int(count), replace=False).tolist())))


def _latency(steps: float, _: int, __: np.random.Generator) -> Latency:
    return Latency(int(steps))


def _dead_band(width: float, _: int, __: np.random.Generator) -> DeadBand:
    return DeadBand(width)


def _quantization(levels: float, _: int, __: np.random.Generator) -> Quantization:
    if levels < 2:
        raise UserError(f"@quantization={levels:g} has too few values; there must be at least 2.")
    return Quantization(int(levels))


Draw = Callable[[float, int, np.random.Generator], Shift]
KINDS: dict[str, tuple[Draw, float | None]] = {
    "permutation": (_permutation, None),
    "degradation": (_degradation, None),
    "dead": (_dead, 1),
    "latency": (_latency, 1),
    "dead-band": (_dead_band, 0.1),
    "quantization": (_quantization, 8),
}
"""How each is drawn, and the number it takes if none is given; None: it takes none."""
_WHOLE = ("dead", "latency", "quantization")


def split(task: str) -> tuple[str, str | None]:
    """A task's own name, and the shifts behind it, if there are any."""
    name, at, shifts = task.partition("@")
    return name, shifts if at else None


def check(text: str) -> None:
    """Raise UserError unless this text names shifts."""
    for item in text.split("+"):
        _read(item)


def drawn(text: str, action_dim: int) -> tuple[Shift, ...]:
    """The shifts that this text names, for a robot with so many actuators."""
    shifts = []
    for item in text.split("+"):
        kind, value, seed = _read(item)
        rng = np.random.default_rng([seed, list(KINDS).index(kind)])
        shifts.append(KINDS[kind][0](value, action_dim, rng))
    return tuple(shifts)


def _read(item: str) -> tuple[str, float, int]:
    """One shift's name, number and seed."""
    match = _ITEM.fullmatch(item.strip())
    if match is None or match[1] not in KINDS:
        hint = nearest(match[1] if match else item, KINDS)
        raise UserError(
            f"@{item} is not a shift of the actuators.{hint} They are written NAME=NUMBER:SEED, "
            f"as in @permutation:7+latency=2; the names are {', '.join(KINDS)}."
        )
    kind, number, seed = match.groups()
    default = KINDS[kind][1]
    if number is not None and default is None:
        raise UserError(f"@{item}: {kind} takes no number; a seed is written @{kind}:{number}.")
    if number is not None and kind in _WHOLE and "." in number:
        raise UserError(f"@{item}: {kind} takes a whole number.")
    return kind, float(number if number is not None else default or 0), int(seed or 0)
