"""Changes between a policy's output and a robot's actuators (Sec. Modular Reuse).

Written behind a task's name, walker-walk@permutation:7+latency=2, and applied from left to right.
The number after the colon is the seed of random values (of `reverse`, the actuator), so that a name
means the same shift everywhere: in training, in evaluation and for every method.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8

from fastr.core import UserError, counted, nearest
from fastr.envs.base import Environment, Step

Action = Float32[np.ndarray, " action"]
Shift = Callable[[Action], Action]
"""From the action sent to the action that arrives; one episode long, as latency has a memory."""
_ITEM = re.compile(r"([a-z-]+)(?:=(\d{1,6}(?:\.\d{1,6})?))?(?::(\d{1,9}))?")
_GAINS = (0.5, 1.0)


class _Item(NamedTuple):
    """One shift of a name, as written: KIND=NUMBER:SEED."""

    kind: str
    number: float
    seed: int

    def generator(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, list(KINDS).index(self.kind)])


def permutation(item: _Item, size: int) -> Shift:
    """Actuator i receives what was meant for another, order[i]."""
    if size < 2:
        raise UserError("@permutation needs at least two actuators; this robot has one.")
    generator, order = item.generator(), np.arange(size)
    while (order == np.arange(size)).any():  # about e tries
        order = generator.permutation(size)
    return lambda action: action[order]


def degradation(item: _Item, size: int) -> Shift:
    """Every channel is multiplied by its own gain; a negative gain inverts its polarity."""
    generator = item.generator()
    gains = generator.uniform(*_GAINS, size) * generator.choice([-1.0, 1.0], size)
    gains = gains.astype(np.float32)
    return lambda action: action * gains


def dead(item: _Item, size: int) -> Shift:
    """Some actuators receive nothing."""
    count = int(item.number)
    if count > size:
        raise UserError(f"@dead={count} is more than this robot's {counted(size, 'actuator')}.")
    channels = item.generator().choice(size, count, replace=False)
    off = np.isin(np.arange(size), channels)
    return lambda action: np.where(off, np.float32(0), action)


def latency(item: _Item, size: int) -> Shift:
    """Actions arrive some agent steps late; until the first one arrives, zeros do."""
    nothing = [np.zeros(size, np.float32)] * int(item.number)
    underway = deque(nothing)

    def delayed(action: Action) -> Action:
        underway.append(action.copy())
        return underway.popleft()

    return delayed


def dead_band(item: _Item, _: int) -> Shift:
    """Commands smaller than the width have no effect."""
    return lambda action: np.where(np.abs(action) < item.number, np.float32(0), action)


def quantization(item: _Item, _: int) -> Shift:
    """Commands are rounded to evenly spaced values from -1 to 1."""
    if item.number < 2:
        raise UserError(f"@quantization={item.number:g} has too few values; use at least 2.")
    step = np.float32(2 / (int(item.number) - 1))
    return lambda action: (np.round((action + 1) / step) * step - 1).astype(np.float32)


def reverse(item: _Item, size: int) -> Shift:
    """One actuator, number `seed` of the robot, turns the other way."""
    if item.seed >= size:
        raise UserError(
            f"@reverse:{item.seed}: this robot has {counted(size, 'actuator')}, numbered from 0."
        )
    signs = np.where(np.arange(size) == item.seed, np.float32(-1), np.float32(1))
    return lambda action: action * signs


# New kinds come last: a kind's place is part of its random seed.
KINDS: dict[str, tuple[Callable[[_Item, int], Shift], float | None]] = {
    "permutation": (permutation, None),
    "degradation": (degradation, None),
    "dead": (dead, 1),
    "latency": (latency, 1),
    "dead-band": (dead_band, 0.1),
    "quantization": (quantization, 8),
    "reverse": (reverse, None),
}
"""Each kind with its default number; None if it takes no number."""
_WHOLE = ("dead", "latency", "quantization")


def split(task: str) -> tuple[str, str | None]:
    """A task's own name, and the shifts behind its @, if it has one."""
    name, at, shifts = task.partition("@")
    return name, shifts if at else None


def check(text: str) -> None:
    """Raise UserError unless this text names shifts."""
    for item in text.split("+"):
        _item(item)


def draw(text: str, action_dim: int) -> tuple[Shift, ...]:
    """The shifts that this text names, for a robot with so many actuators."""
    items = map(_item, text.split("+"))
    return tuple(KINDS[item.kind][0](item, action_dim) for item in items)


def _item(text: str) -> _Item:
    """One shift's name, number and seed."""
    match = _ITEM.fullmatch(text.strip())
    if match is None or match[1] not in KINDS:
        hint = nearest(match[1] if match else text, KINDS)
        raise UserError(
            f"@{text} is not a shift of the actuators.{hint} They are written NAME=NUMBER:SEED, "
            f"as in @permutation:7+latency=2; the names are {', '.join(KINDS)}."
        )
    kind, number, seed = match.groups()
    default = KINDS[kind][1]
    if number is not None and default is None:
        raise UserError(f"@{text}: {kind} takes no number; a seed is written @{kind}:{number}.")
    if number is not None and kind in _WHOLE and "." in number:
        raise UserError(f"@{text}: {kind} takes a whole number.")
    return _Item(kind, float(number if number is not None else default or 0), int(seed or 0))


class Shifted(Environment):
    """An environment with shifted actuators."""

    def __init__(self, inner: Environment, text: str):
        self._inner, self._text = inner, text
        self.spec, self.episode_frames = inner.spec, inner.episode_frames
        self.bounds, self.parts, self.units = inner.bounds, inner.parts, inner.units
        self.action_shape, self.frame_seconds = inner.action_shape, inner.frame_seconds
        self._shifts = draw(text, self.spec.action_dim)

    def reset(self, seed: int) -> Float32[np.ndarray, " state"]:
        """Start the episode with new, equal shifts, which remember nothing."""
        self._shifts = draw(self._text, self.spec.action_dim)
        return self._inner.reset(seed)

    def step(self, action: Float32[np.ndarray, " action"]) -> Step:
        """Hold the shifted action."""
        for shift in self._shifts:
            action = shift(action)
        return self._inner.step(action)

    def frame(self, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
        """Draw the scene, which no shift changes."""
        return self._inner.frame(height, width)

    def robot(self) -> None:
        """None: its actuators no longer are the channels of an action."""

    def close(self) -> None:
        """Close the environment within."""
        self._inner.close()
