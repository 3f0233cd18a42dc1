"""What every source of transitions offers, and the checks that all of them pass through."""

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from fastr.core import EnvSpec, UserError, counted

CHUNK_ROWS = 16_384
"""Transitions in memory at a time while a dataset is read."""
CHUNK_NUMBERS = 2**21
"""Numbers in memory at a time, for rows so wide that fewer of them are taken."""
WIDEST = 2**20
"""Numbers in one transition."""
RATIO, SPARE_BYTES = 200, 2**20
"""A file may hold this many times its own size, and so many bytes more."""
ROUNDING = 1e-5
"""How far an action may lie outside its bounds, as a share of their distance."""


class Chunk(NamedTuple):
    """Some transitions in the order of their source."""

    state: Float32[np.ndarray, "rows state"]
    action: Float32[np.ndarray, "rows action"]
    next_state: Float32[np.ndarray, "rows state"]
    episode: Int64[np.ndarray, " rows"]
    """The source's own number of each row's episode."""
    label: str
    """What the source calls its rows: "row", or "episode_3 step"."""
    first: int
    """The number of the first row under that label."""


@dataclass(frozen=True)
class About:
    """What a source says of itself before its rows are read."""

    name: str
    """For titles and reports."""
    spec: EnvSpec
    rows: int
    bounds: tuple[Sequence[float], Sequence[float]] | None = None
    """Smallest and largest value of each action coordinate, where the source names them."""
    task: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)


class Source(abc.ABC):
    """A dataset on disk, read in pieces."""

    path: Path
    about: About
    columns: dict[str, str]
    """What the source calls state, action, next_state and episode."""

    @abc.abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """All transitions, at most `rows_at_once` at a time."""

    @property
    def rows_at_once(self) -> int:
        """Rows of one chunk."""
        return max(1, min(CHUNK_ROWS, CHUNK_NUMBERS // self.about.spec.row_dim))


def checked(source: Source, *, within_bounds: bool) -> Iterator[Chunk]:
    """The source's chunks; UserError with file, column and row at the first bad number."""
    low, high = action_bounds(source)
    for chunk in source.chunks():
        for column in ("state", "action", "next_state"):
            refuse_not_finite(source, column, getattr(chunk, column), chunk)
        if within_bounds:
            refuse_outside(source, chunk, low, high)
        yield chunk


def refuse_bomb(path: Path, spec: EnvSpec, rows: int, stored_bytes: int) -> None:
    """Raise UserError if a file promises far more than it can honestly hold, before it is read.

    Real numbers hardly compress. Without this, a file of a megabyte could fill memory and disk.
    """
    if spec.row_dim > WIDEST:
        raise UserError(f"{path}: a transition of {spec.row_dim:,} numbers is too wide.")
    if rows * spec.row_dim * 4 > RATIO * stored_bytes + SPARE_BYTES:
        raise UserError(
            f"{path} promises {counted(rows, 'transition')} in {stored_bytes:,} bytes, "
            f"more than {RATIO} times its own size: store it without compression if that is true."
        )


def action_bounds(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of each action coordinate: the source's own, or -1 and 1."""
    dims = source.about.spec.action_dim
    low, high = source.about.bounds or ((-1.0,) * dims, (1.0,) * dims)
    return np.asarray(low, np.float64), np.asarray(high, np.float64)


def require_bounds(source: Source) -> None:
    """Raise UserError unless the bounds can be mapped onto [-1, 1]."""
    low, high = action_bounds(source)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise UserError(
            f"{source.path} gives no finite range for every action coordinate: use "
            "--action-scale observed to take each coordinate's smallest and largest value."
        )


def refuse_not_finite(source: Source, column: str, values: np.ndarray, chunk: Chunk) -> None:
    """Raise UserError at the first number that is NaN, infinite or beyond float32."""
    if np.isfinite(values).all():
        return
    row, coordinate = np.argwhere(~np.isfinite(values))[0]
    raise UserError(
        f"{source.path}: column {source.columns[column]}, {chunk.label} {chunk.first + row}, "
        f"coordinate {coordinate} is {values[row, coordinate]} in float32; every number must be "
        "finite, and smaller than 3.4e38: remove or repair these rows."
    )


def refuse_outside(source: Source, chunk: Chunk, low: np.ndarray, high: np.ndarray) -> None:
    """Raise UserError at the first action outside its bounds."""
    slack = ROUNDING * (high - low)
    outside = (chunk.action < low - slack) | (chunk.action > high + slack)
    if not outside.any():
        return
    row, coordinate = np.argwhere(outside)[0]
    raise UserError(
        f"{source.path}: column {source.columns['action']}, {chunk.label} {chunk.first + row}, "
        f"coordinate {coordinate} is {chunk.action[row, coordinate]:g}, outside "
        f"[{low[coordinate]:g}, {high[coordinate]:g}]: correct the bounds, or use "
        "--action-scale observed."
    )


def float32(values: np.ndarray) -> Float32[np.ndarray, "*any"]:
    """The numbers in float32; what it cannot hold becomes infinite and is refused later."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def numeric(dtype: np.dtype) -> bool:
    """Whether arrays of this type hold plain numbers."""
    return dtype.kind in "fiub"
