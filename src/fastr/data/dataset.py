"""A dataset of transitions, and the one check that every format passes.

A reader describes a file from its headers alone (`describe`): sizes, shapes and types are refused
before any row is read. `spool` reads the rows in chunks, checks every number and writes them to a
file that is mapped into memory, so that a dataset may be larger than memory.
"""

import abc
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int

from fastr.core import EnvSpec, UserError, counted

CHUNK_ROWS, CHUNK_NUMBERS = 16_384, 2**21
"""Most transitions, and most numbers, in memory while a dataset is read."""
WIDEST = 2**20
"""Most numbers in one transition."""
RATIO, SPARE_BYTES = 200, 2**20
"""A file may expand to 200 times its own size and 1 MiB."""
SPARE_DISK_BYTES = 2**28
"""Disk space left free."""
ROUNDING = 1e-5
"""How far an action may lie outside its bounds, as a share of their distance."""
VECTORS, SCALARS = ("state", "action", "next_state"), ("episode", "reward", "terminated")
NUMBERS = "fiub"
"""Kinds of NumPy types that are plain numbers."""


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
    """A dataset as its headers describe it."""

    name: str
    """For titles and reports."""
    spec: EnvSpec
    rows: int
    bounds: tuple[np.ndarray, np.ndarray]
    """Smallest and largest value of each action coordinate: -1 and 1 if the source gives none."""
    bounded: bool = True
    """Whether the source gives them."""
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
    """Checked transitions; the rows of an episode follow one another."""

    about: About
    rows: Float32[np.ndarray, "rows packed"]
    """State, action and next state next to each other, mapped from a file."""
    episodes: Int[np.ndarray, " rows"]
    """The episode of each row, numbered from 0 in the order of the source's numbers."""
    action_low: np.ndarray
    action_high: np.ndarray
    reward: Float32[np.ndarray, " rows"] | None = None
    terminated: Bool[np.ndarray, " rows"] | None = None
    """Whether the next state is terminal; an episode that ends otherwise was truncated."""

    @property
    def state(self) -> Float32[np.ndarray, "rows state"]:
        """States."""
        return self.rows[:, : self.about.spec.state_dim]

    @property
    def action(self) -> Float32[np.ndarray, "rows action"]:
        """Actions, within the source's own bounds."""
        return self.rows[:, self.about.spec.state_dim : -self.about.spec.state_dim]

    @property
    def next_state(self) -> Float32[np.ndarray, "rows state"]:
        """States one step later."""
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
    *,
    bounds: tuple[Any, Any] | None,
    size: int | None = None,
    **facts: Any,
) -> About:
    """A dataset from its headers; UserError unless they fit together and into the file.

    `size` is that of all its files together, where there are several.
    """
    state = columns["state"]
    for role, column in columns.items():
        refuse_column(path, role, column)
        if column.shape[0] != state.shape[0]:
            raise UserError(
                f"{path}: column {column.name} has {counted(column.shape[0], 'row')} and "
                f"{state.name} has {state.shape[0]:,}; all columns must be equally long."
            )
    (rows, width), following = state.shape, columns["next_state"]
    if following.shape[1] != width:
        raise UserError(
            f"{path}: column {following.name} has {counted(following.shape[1], 'coordinate')} and "
            f"{state.name} has {width}; they must be equal."
        )
    if rows < 1:
        raise UserError(f"{path} is empty: it holds no transition.")
    spec = EnvSpec(width, columns["action"].shape[1])
    size = path.stat().st_size if size is None else size
    if spec.row_dim > WIDEST:
        raise UserError(f"{path}: a transition of {spec.row_dim:,} numbers is too wide.")
    # Real numbers hardly compress; without a bound one megabyte could fill memory and disk.
    refuse_bomb(path, 4 * rows * spec.row_dim, size)
    low, high = bounds or ([-1.0] * spec.action_dim, [1.0] * spec.action_dim)
    ends = np.asarray(low, np.float64).ravel(), np.asarray(high, np.float64).ravel()
    if not len(ends[0]) == len(ends[1]) == spec.action_dim:
        each = counted(spec.action_dim, "number")
        raise UserError(f"{path}: the lower and the upper action bounds must be {each} each.")
    names = {role: column.name for role, column in columns.items()}
    return About(name, spec, rows, ends, bounds is not None, columns=names, **facts)


def refuse_column(path: Path, role: str, column: Column) -> None:
    """Raise UserError unless a column has the type and the number of axes of its role."""
    name, shape, dtype = column
    wanted = "plain numbers"
    if role == "episode":
        wanted = "one whole number per row, the same for all rows of an episode, as integers"
    if dtype.kind not in ("iu" if role == "episode" else NUMBERS):
        raise UserError(f"{path}: column {name} holds {dtype}; it must hold {wanted}.")
    if role in SCALARS and (not shape or shape[1:] not in ((), (1,))):
        raise UserError(f"{path}: column {name} has shape {shape}; it must be one number per row.")
    if role in VECTORS and (len(shape) != 2 or shape[1] < 1):
        one = f"one coordinate is ({shape[0]}, 1), " if len(shape) == 1 else ""
        raise UserError(
            f"{path}: column {name} has shape {shape}; it must be (transitions, coordinates): "
            f"{one}in .parquet a list per row, or columns {role}_0, {role}_1, ..."
        )


def refuse_bomb(path: Path, declared_bytes: int, stored_bytes: int) -> None:
    """Raise UserError if a file declares far more than its size can hold."""
    if declared_bytes > RATIO * stored_bytes + SPARE_BYTES:
        raise UserError(
            f"{path} declares {declared_bytes:,} bytes in {stored_bytes:,}, more than {RATIO} "
            "times its own size: store it without compression if that is true."
        )


def require_bounds(source: Source) -> None:
    """Raise UserError unless the bounds can be mapped onto [-1, 1]."""
    low, high = source.about.bounds
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
    refuse_full_disk(source, path.parent, 4 * shape[0] * shape[1])
    rows = np.memmap(path, np.float32, "w+", shape=shape)
    kinds = {"episode": np.int64, "reward": np.float32, "terminated": np.bool_}
    scalars = {role: np.empty(about.rows, kinds[role]) for role in kinds if role in about.columns}
    low, high = source.about.bounds
    if observed_bounds:
        low, high = np.full_like(low, np.inf), np.full_like(high, -np.inf)
    end = 0
    for chunk in checked(source, within_bounds=not observed_bounds):
        start, end = end, end + len(chunk.state)
        if end > about.rows:
            break
        rows[start:end] = np.concatenate([chunk.state, chunk.action, chunk.next_state], axis=1)
        for role, values in scalars.items():
            values[start:end] = getattr(chunk, role)
        if observed_bounds:
            low = np.minimum(low, chunk.action.min(axis=0))
            high = np.maximum(high, chunk.action.max(axis=0))
        advance(len(chunk.state))
    if end != about.rows:
        raise UserError(f"{source.path} does not hold the {about.rows:,} transitions it declares.")
    numbers = scalars.pop("episode")
    refuse_scattered(source, numbers)
    episodes = np.unique(numbers, return_inverse=True)[1].astype(np.int32)
    return Dataset(about, rows, episodes, low, high, **scalars)


def checked(source: Source, *, within_bounds: bool) -> Iterator[Chunk]:
    """The source's chunks in float32; UserError with column and row at the first bad number."""
    low, high = source.about.bounds
    slack = ROUNDING * (high - low)
    roles = [role for role in (*VECTORS, *SCALARS) if role in source.about.columns]
    for given in source.chunks():
        chunk = given._replace(**{role: converted(role, getattr(given, role)) for role in roles})
        for role in roles:
            wrong = ~np.isfinite(getattr(chunk, role))
            rule = "must be finite, and smaller than 3.4e38: remove or repair these rows"
            refuse_marked(source, chunk, role, wrong, rule)
        wrong = (chunk.action < low - slack) | (chunk.action > high + slack)
        if within_bounds and wrong.any():
            i = np.argwhere(wrong)[0, 1]
            rule = (
                f"must lie in [{low[i]:g}, {high[i]:g}]: correct action_low and action_high (-1 "
                "and 1 if the file has none), or use --action-scale observed"
            )
            refuse_marked(source, chunk, "action", wrong, rule)
        yield chunk


def converted(role: str, values: np.ndarray) -> np.ndarray:
    """A column's numbers in float32; episodes and marks keep their type."""
    if role in SCALARS:
        values = values.ravel()
    return float32(values) if role in (*VECTORS, "reward") else values


def float32(values: np.ndarray) -> Float32[np.ndarray, "*any"]:
    """The numbers in float32; those beyond its range become infinite and are refused later."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def refuse_marked(source: Source, chunk: Chunk, role: str, wrong: np.ndarray, rule: str) -> None:
    """Raise UserError at the first number of a column that is marked as wrong."""
    if not wrong.any():
        return
    row, *place = np.argwhere(wrong)[0]
    coordinate = f", coordinate {place[0]}" if place else ""
    raise UserError(
        f"{source.path}: column {source.about.columns[role]}, {chunk.label} {chunk.first + row}"
        f"{coordinate} is {getattr(chunk, role)[row, *place]:g} in float32; it {rule}."
    )


def refuse_scattered(source: Source, numbers: Int[np.ndarray, " rows"]) -> None:
    """Raise UserError unless the rows of every episode follow one another."""
    begins = starts(numbers)
    first = np.unique(numbers[begins], return_index=True)[1]
    again = np.delete(begins, first)
    if len(again):
        raise UserError(
            f"{source.path}: column {source.about.columns['episode']}, row {again[0]} returns to "
            f"episode {numbers[again[0]]}, which had ended: sort the rows by episode and time."
        )


def refuse_full_disk(source: Source, folder: Path, needed: int) -> None:
    """Raise UserError if so many bytes do not fit on the disk."""
    free = max(0, shutil.disk_usage(folder).free - SPARE_DISK_BYTES)
    if needed > free:
        raise UserError(
            f"{source.path} needs {needed / 2**30:,.1f} GiB on the disk of {folder} while it is "
            f"read, and {free / 2**30:,.1f} GiB are free: choose another --out."
        )


def starts(episodes: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " episodes"]:
    """Rows with another episode than the row before."""
    return np.flatnonzero(np.diff(episodes, prepend=episodes[:1] - 1))
