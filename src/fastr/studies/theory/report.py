"""What a study says: a statement, verdicts with numbers, tables and plots."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool

Progress = Callable[[float], None]
"""Takes the share of the work that is done, from 0 to 1."""
Scale = Literal["linear", "log"]
Look = Literal["line", "dashed", "dotted"]


@dataclass(frozen=True)
class Curve:
    """One line of a plot; `low` and `high`, where given, are its interval over seeds."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    look: Look = "line"
    color: int = 0
    """The same number, the same color."""


def banded(
    label: str, x: Iterable[float], summary: Iterable[np.ndarray | None], look: Look, color: int
) -> Curve:
    """A curve with its interval: mean and, where there is more than one seed, low and high."""
    mean, low, high = (() if part is None else part.tolist() for part in summary)
    return Curve(label, [float(place) for place in x], mean, low, high, look=look, color=color)


@dataclass(frozen=True)
class Plot:
    """A picture and, beside it, its numbers as CSV under the same name."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_scale: Scale = "log"
    y_scale: Scale = "log"


@dataclass(frozen=True)
class Grid:
    """A table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Verdict:
    """A claim, what was measured, and whether the measurement agrees."""

    claim: str
    measured: str
    holds: bool | None
    """None where intervals decide and there are none, because there is one seed."""


def all_apart(claim: str, apart: Bool[np.ndarray, " size"] | None, more: str) -> Verdict:
    """A claim that holds if two classes' intervals are apart at every size."""
    if apart is None:
        return Verdict(claim, f"one seed has no interval; {more}", None)
    said = f"intervals apart at {apart.sum()} of {len(apart)} sizes; {more}"
    return Verdict(claim, said, bool(apart.all()))


@dataclass(frozen=True)
class Section:
    """One study's part of the page."""

    name: str
    title: str
    statement: tuple[str, ...]
    """Paragraphs: what is claimed, where the paper claims it, how it was measured."""
    verdicts: tuple[Verdict, ...]
    grids: tuple[Grid, ...] = ()
    plots: tuple[Plot, ...] = ()
