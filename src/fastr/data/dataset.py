"""A dataset of transitions, and the one check that every format passes.

A reader opens a file and describes it from its headers alone (`describe`): sizes, shapes and types are refused before
anything is read. `spool` then reads the rows in chunks, checks every number, and writes them to a file that is mapped
into memory, so that a dataset may be larger than memory.
"""

import abc
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int

from fastr.core import EnvSpec, UserError, counted

CHUNK_ROWS = 16_384
"""Largest number of transitions in memory while a dataset is read."""
CHUNK_NUMBERS = 2**21
"""Largest count of numbers in memory while a dataset is read, for wide rows."""
WIDEST = 2**20
"""Largest count of numbers in one transition."""
RATIO, SPARE_BYTES = 200, 2**20
"""A file may expand to 200 times its own size and 1 MiB."""
SPARE_DISK_BYTES = 2**28
"""Disk space left free."""
ROUNDING = 1e-5
"""How far an action may lie outside its bounds, as a share of their distance."""
VECTORS = ("state", "action", "next_state")
SCALARS = ("episode", "reward", "terminated")
NUMBERS = "fiub"
"""Kinds of NumPy's types that are plain numbers."""


class Column(NamedTuple):
    """A column as its file's header describes it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


class Chunk(NamedTuple):
    """Consecutive transitions of a source."""

    state: np.ndarray
    action: np.ndarray
    next_state: np.ndarray
    episode: np.ndarray
    """The source's own number of each row's episode."""
    label: str
    """What the source calls its rows: "row", or "episode_3 step"."""
    first: int
    """Number of the first row under that label."""
    reward: np.ndarray | None = None
    terminated: np.ndarray | None = None


@dataclass(frozen=True)
class About:
    """What is known of a dataset before its rows are read."""

    name: str
    """For titles and reports."""
    spec: EnvSpec
    rows: int
    bounds: tuple[Sequence[float], Sequence[float]] | None = None
    """Smallest and largest value of each action coordinate, if the source gives them."""
    task: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    """The source's own name of each column it has."""


class Source(abc.ABC):
    """An opened dataset: its headers are checked, its rows are not read yet."""

    path: Path
    about: About

    @abc.abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """All transitions, at most `rows_at_once` at a time."""

    @property
    def rows_at_once(self) -> int:
        """Rows of one chunk."""
        return max(1, min(CHUNK_ROWS, CHUNK_NUMBERS // self.about.spec.row_dim))


@dataclass(frozen=True)
class Dataset:
    """Transitions, checked, as float32; the rows of an episode follow one another."""

    about: About
    rows: Float32[np.ndarray, "rows packed"]
    """State, action and next state side by side, mapped from a file."""
    episodes: Int[np.ndarray, " rows"]
    """The episode of each row, numbered from 0 in the order of the source's numbers."""
    action_low: np.ndarray
    action_high: np.ndarray
    reward: Float32[np.ndarray, " rows"] | None = None
    terminated: Bool[np.ndarray, " rows"] | None = None
    """Whether next_state is terminal; an episode that ends otherwise was truncated."""

    @property
    def state(self) -> Float32[np.ndarray, "rows state"]:
        """States."""
        return self.rows[:, : self.about.spec.state_dim]

    @property
    def action(self) -> Float32[np.ndarray, "rows action"]:
        """Actions, in the source's own bounds."""
        spec = self.about.spec
        return self.rows[:, spec.state_dim : spec.state_dim + spec.action_dim]

    @property
    def next_state(self) -> Float32[np.ndarray, "rows state"]:
        """The state one step later; at the end of an episode, its last observation."""
        return self.rows[:, -self.about.spec.state_dim :]

    @property
    def episode_starts(self) -> Int[np.ndarray, " episodes"]:
        """The first row of each episode."""
        return starts(self.episodes)

    @property
    def episode_count(self) -> int:
        """Number of episodes."""
        return int(self.episodes.max()) + 1


def describe(
    path: Path,
    name: str,
    columns: Mapping[str, Column],
    stored_bytes: int,
    bounds: tuple[Any, Any] | None = None,
    **facts: Any,
) -> About:
    """Describe a dataset from its headers; UserError unless they fit together and into the file."""
    for role, column in columns.items():
        refuse_type(path, role, column)
        refuse_shape(path, role, column)
    state, next_state = columns["state"], columns["next_state"]
    rows, state_dim = state.shape
    for column in columns.values():
        if column.shape[0] != rows:
            raise UserError(
                f"{path}: column {column.name} has {counted(column.shape[0], 'row')} and "
                f"{state.name} has {rows:,}; all columns must be equally long."
            )
    if next_state.shape[1] != state_dim:
        raise UserError(
            f"{path}: column {next_state.name} has {counted(next_state.shape[1], 'coordinate')} "
            f"and {state.name} has {state_dim}; they must be equal."
        )
    if rows < 1:
        raise UserError(f"{path} is empty: it holds no transition.")
    spec = EnvSpec(state_dim, columns["action"].shape[1])
    refuse_bomb(path, spec, rows, stored_bytes)
    ends = None if bounds is None else action_range(path, bounds, spec.action_dim)
    names = {role: column.name for role, column in columns.items()}
    return About(name, spec, rows, ends, columns=names, **facts)


def refuse_type(path: Path, role: str, column: Column) -> None:
    """Raise UserError unless a column holds plain numbers, and episodes whole ones."""
    if column.dtype.kind not in ("iu" if role == "episode" else NUMBERS):
        wanted = (
            "whole numbers, the same for all rows of an episode (0, 0, ..., 1, 1, ...), as integers"
            if role == "episode"
            else "plain numbers"
        )
        raise UserError(
            f"{path}: column {column.name} holds {column.dtype}; it must hold {wanted}."
        )


def refuse_shape(path: Path, role: str, column: Column) -> None:
    """Raise UserError unless a column has one row of numbers per transition, or one number."""
    shape = column.shape
    if role in SCALARS and not (len(shape) == 1 or shape[1:] == (1,)):
        raise UserError(
            f"{path}: column {column.name} has shape {shape}; it must be one number per transition."
        )
    if role in VECTORS and (len(shape) != 2 or shape[1] < 1):
        one = f"; one coordinate is ({shape[0]}, 1)" if len(shape) == 1 else ""
        raise UserError(
            f"{path}: column {column.name} has shape {shape}; it must be (transitions, "
            f"coordinates){one}, in .parquet a list per row or columns {role}_0, {role}_1, ..."
        )


def refuse_bomb(path: Path, spec: EnvSpec, rows: int, stored_bytes: int) -> None:
    """Raise UserError if a file declares far more numbers than its size can hold.

    Real numbers hardly compress; without this check, one megabyte could fill memory and disk.
    """
    if spec.row_dim > WIDEST:
        raise UserError(f"{path}: a transition of {spec.row_dim:,} numbers is too wide.")
    if rows * spec.row_dim * 4 > RATIO * stored_bytes + SPARE_BYTES:
        raise UserError(
            f"{path} declares {counted(rows, 'transition')} in {stored_bytes:,} bytes, "
            f"more than {RATIO} times its own size: store it without compression if that is true."
        )


def action_range(
    path: Path, bounds: tuple[Any, Any], action_dim: int
) -> tuple[list[float], list[float]]:
    """The declared action bounds as lists; UserError unless they have one number per coordinate."""
    try:
        low, high = (np.asarray(end, np.float64).ravel().tolist() for end in bounds)
    except (TypeError, ValueError):
        low = high = []
    if len(low) != action_dim or len(high) != action_dim:
        raise UserError(
            f"{path}: the lower and upper action bounds must be "
            f"{counted(action_dim, 'number')} each, one per action coordinate."
        )
    return low, high


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


def spool(
    source: Source, path: Path, *, observed_bounds: bool, advance: Callable[[int], None]
) -> Dataset:
    """Check every number of a source and write it as packed rows to this file."""
    about = source.about
    shape = (about.rows, about.spec.packed_dim)
    refuse_full_disk(source, path.parent, shape)
    rows = np.memmap(path, np.float32, "w+", shape=shape)
    episodes = np.empty(about.rows, np.int64)
    known = {"reward": np.float32, "terminated": np.bool_}
    extra = {role: np.empty(len(rows), t) for role, t in known.items() if role in about.columns}
    low, high = action_bounds(source)
    if observed_bounds:
        low, high = np.full_like(low, np.inf), np.full_like(high, -np.inf)
    end = 0
    for chunk in checked(source, within_bounds=not observed_bounds):
        start, end = end, end + len(chunk.state)
        if end > about.rows:
            break
        rows[start:end] = np.concatenate([chunk.state, chunk.action, chunk.next_state], axis=1)
        episodes[start:end] = chunk.episode
        for role, values in extra.items():
            values[start:end] = getattr(chunk, role)
        if observed_bounds:
            low = np.minimum(low, chunk.action.min(axis=0))
            high = np.maximum(high, chunk.action.max(axis=0))
        advance(len(chunk.state))
    if end != about.rows:
        raise UserError(f"{source.path} declares {about.rows:,} transitions and holds others.")
    refuse_scattered(source, episodes)
    numbers = np.unique(episodes, return_inverse=True)[1].astype(np.int32)
    return Dataset(about, rows, numbers, low, high, **extra)


def checked(source: Source, *, within_bounds: bool) -> Iterator[Chunk]:
    """The source's chunks in float32; UserError with column and row at the first bad number."""
    low, high = action_bounds(source)
    roles = [role for role in (*VECTORS, *SCALARS) if role in source.about.columns]
    for given in source.chunks():
        chunk = given._replace(**{role: converted(role, getattr(given, role)) for role in roles})
        for role in roles:
            refuse_not_finite(source, role, chunk)
        if within_bounds:
            refuse_outside(source, chunk, low, high)
        yield chunk


def converted(role: str, values: np.ndarray) -> np.ndarray:
    """A column's numbers in float32; the episodes and marks keep their type."""
    if role in SCALARS:
        values = values.ravel()
    return float32(values) if role in (*VECTORS, "reward") else values


def refuse_not_finite(source: Source, role: str, chunk: Chunk) -> None:
    """Raise UserError at the first number that is NaN, infinite or beyond float32."""
    values = getattr(chunk, role)
    if np.isfinite(values).all():
        return
    row, *place = np.argwhere(~np.isfinite(values))[0]
    coordinate = f", coordinate {place[0]}" if place else ""
    raise UserError(
        f"{source.path}: column {source.about.columns[role]}, {chunk.label} {chunk.first + row}"
        f"{coordinate} is {values[row, *place]} in float32; every number must be "
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
        f"{source.path}: column {source.about.columns['action']}, {chunk.label} "
        f"{chunk.first + row}, coordinate {coordinate} is {chunk.action[row, coordinate]:g}, outside "
        f"[{low[coordinate]:g}, {high[coordinate]:g}]: correct the bounds, or use "
        "--action-scale observed."
    )


def refuse_scattered(source: Source, episodes: Int[np.ndarray, " rows"]) -> None:
    """Raise UserError unless the rows of every episode follow one another."""
    begins = starts(episodes)
    _, first = np.unique(episodes[begins], return_index=True)
    if again := sorted(set(range(len(begins))) - set(first.tolist())):
        row = begins[again[0]]
        raise UserError(
            f"{source.path}: column {source.about.columns['episode']}, row {row} returns to "
            f"episode {episodes[row]}, which ended before: sort the rows by episode and time."
        )


def refuse_full_disk(source: Source, folder: Path, shape: tuple[int, int]) -> None:
    """Raise UserError if the rows would not fit on the disk."""
    needed = shape[0] * shape[1] * 4
    free = shutil.disk_usage(folder).free - SPARE_DISK_BYTES
    if needed > free:
        raise UserError(
            f"{source.path} needs {needed / 2**30:,.1f} GiB on the disk of {folder} while it is "
            f"read, and {max(0, free) / 2**30:,.1f} GiB are free: choose another --out."
        )


def starts(episodes: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " episodes"]:
    """Rows whose episode is not the one of the row before."""
    return np.flatnonzero(np.diff(episodes, prepend=episodes[:1] - 1))


def float32(values: np.ndarray) -> Float32[np.ndarray, "*any"]:
    """The numbers in float32; those beyond its range become infinite and are refused later."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)
