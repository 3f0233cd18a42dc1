"""Readers of tables (.npz and .parquet), and `open_source`, which chooses the reader of a path."""

import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from fastr.core import UserError, counted
from fastr.data.dataset import (
    NUMBERS,
    RATIO,
    SPARE_BYTES,
    VECTORS,
    WIDEST,
    Chunk,
    Column,
    Source,
    describe,
)
from fastr.data.minari import Minari, installed, is_minari
from fastr.data.replay import RunReplay
from fastr.runs.directory import CONFIG
from fastr.runs.untrusted import limited_memory, reading

NAMES: dict[str, tuple[str, ...]] = {
    "state": ("state", "states", "observation", "observations", "obs"),
    "action": ("action", "actions"),
    "next_state": (
        *("next_state", "next_states", "next_observation", "next_observations", "next_obs"),
    ),
    "episode": ("episode", "episodes", "episode_id", "episode_index"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminations", "terminals"),
}
"""The names under which each column is found; reward and terminated are optional."""
ADVICE = {
    "state": "one row of numbers per transition, in .parquet also state_0, state_1, ...",
    "action": "one row of numbers per transition, in .parquet also action_0, action_1, ...",
    "next_state": "the state one step later",
    "episode": "the number of each transition's episode; docs/misfit.md computes it from marks of "
    "the ends",
}
BOUNDS = ("action_low", "action_high")
"""Optional: the bounds of each action coordinate."""
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that NumPy writes; others expand a byte to megabytes."""
HEADER_BYTES = 1_000
"""Longest header of an array; NumPy's own have about 100 bytes."""
ARROW_BYTES = 2**31
"""Additional address space that Arrow gets: it allocates whatever size a page declares."""
THRIFT_LIMITS = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}
"""Bounds on a Parquet footer; Arrow's own are 100 MB and a million entries."""


def open_source(name: str) -> Source:
    """The dataset at this path, or an installed Minari dataset; UserError if there is none."""
    path = Path(name)
    if path.is_dir():
        return open_directory(path)
    if path.is_file():
        if path.suffix.lower() not in FILES:
            raise UserError(
                f"{path} ends in {path.suffix or 'nothing'}; a dataset is a .npz or .parquet "
                "file, a Minari directory or a run directory (docs/misfit.md shows how to convert)."
            )
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty: it has no content at all.")
        return FILES[path.suffix.lower()](path)
    # A name must not lead out of the directory of installed datasets.
    if name and not path.is_absolute() and ".." not in path.parts and is_minari(installed(name)):
        return Minari(installed(name))
    raise UserError(
        f"{name} does not exist: give a Minari dataset, a run directory, a .npz or a .parquet file."
    )


def open_directory(path: Path) -> Source:
    """A Minari dataset or a run."""
    if is_minari(path):
        return Minari(path)
    if (path / CONFIG).is_file():
        return RunReplay(path)
    raise UserError(
        f"{path} is neither a Minari dataset (no data/metadata.json) nor a run directory "
        f"(no {CONFIG})."
    )


def find_columns(
    path: Path, names: Iterable[str], *, numbered: bool = False
) -> dict[str, tuple[str, ...]]:
    """The file's columns for each role, one or several numbered ones; UserError if one is missing.

    Numbered columns (state_0, state_1, ...) count only where none has the plain name.
    """
    listed = set(names)
    found = {}
    for role, known in NAMES.items():
        matches = [(name,) for name in known if name in listed]
        if not matches and numbered and role in VECTORS:
            matches = [parts for name in known if (parts := coordinates(path, listed, name))]
        if len(matches) > 1:
            first, second = matches[0][0], matches[1][0]
            raise UserError(f"{path} has both {first} and {second}; keep one of them.")
        if not matches and role in ADVICE:
            raise UserError(
                f"{path} has no column {role}: add it ({ADVICE[role]}; also read as "
                f"{', '.join(known[1:])}); the file has {', '.join(sorted(listed)[:12])}."
            )
        if matches:
            found[role] = matches[0]
    return found


def coordinates(path: Path, names: Iterable[str], prefix: str) -> tuple[str, ...]:
    """The columns prefix_0, prefix_1, ... in order; UserError if one between them is missing."""
    pattern = re.compile(rf"{re.escape(prefix)}_(0|[1-9][0-9]{{0,5}})")
    indices = sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
    for place, index in enumerate(indices):
        if place != index:
            raise UserError(
                f"{path} has a column {prefix}_{index} but none {prefix}_{place}: number the "
                "coordinates from 0 without a gap."
            )
    return tuple(f"{prefix}_{index}" for index in indices)


def bounds_in(path: Path, names: Iterable[str], read: Callable[[str], Any]) -> Any:
    """Both action bounds as the file gives them, or None."""
    present = [name for name in BOUNDS if name in names]
    if len(present) == 1:
        raise UserError(f"{path} has {present[0]} alone; give {BOUNDS[0]} and {BOUNDS[1]}.")
    return tuple(map(read, BOUNDS)) if present else None


class Npz(Source):
    """A .npz file with one array per column.

    Headers are parsed by NumPy, rows are read in chunks: numpy.load would read a column whole.
    """

    def __init__(self, path: Path):
        self.path = path
        with reading(path), zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            found = find_columns(path, names)
            self._headers = {
                role: checked_header(path, archive, name) for role, (name,) in found.items()
            }
            bounds = bounds_in(path, names, lambda name: short_array(path, archive, name))
            self.about = describe(
                path, path.stem, self._headers, path.stat().st_size, bounds=bounds
            )

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, decompressed in pieces."""
        with ExitStack() as stack:
            with reading(self.path):
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                files = {
                    role: stack.enter_context(archive.open(f"{column.name}.npy"))
                    for role, column in self._headers.items()
                }
                for file in files.values():
                    read_header(file)
            for first in range(0, self.about.rows, self.rows_at_once):
                rows = min(self.rows_at_once, self.about.rows - first)
                with reading(self.path):
                    parts = {
                        role: read_rows(file, self._headers[role], rows)
                        for role, file in files.items()
                    }
                yield Chunk(**parts, label="row", first=first)


def checked_header(path: Path, archive: zipfile.ZipFile, name: str) -> Column:
    """An array's name, shape and type; UserError unless its data are exactly as long as that."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type not in COMPRESSIONS:
        raise UserError(
            f"{path}: column {name} is not compressed as NumPy does; save it with numpy.savez."
        )
    try:
        with archive.open(entry) as file:
            shape, by_column, dtype = read_header(file)
            start = file.tell()
    except Exception as error:
        raise UserError(
            f"{path}: column {name} is not a NumPy array of plain numbers; save it with numpy.savez."
        ) from error
    column = Column(name, shape, dtype)
    if by_column and len(shape) > 1:
        raise UserError(
            f"{path}: column {name} is stored column by column (Fortran order); save "
            "np.ascontiguousarray of it."
        )
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or (dtype.kind in NUMBERS and entry.file_size - start != size):
        raise UserError(f"{path}: column {name} is not as long as its header says; damaged?")
    return column


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, Fortran order and type of an array, parsed by NumPy, which evaluates nothing."""
    # Other versions may have headers of gigabytes, which NumPy reads before it measures them.
    if np.lib.format.read_magic(file) != (1, 0):  # pyright: ignore[reportArgumentType]
        raise ValueError("an array of an unusual version")
    return np.lib.format.read_array_header_1_0(file, max_header_size=HEADER_BYTES)


def read_rows(file: IO[bytes], column: Column, rows: int) -> np.ndarray:
    """The next rows of an array."""
    shape = (rows, *column.shape[1:])
    content = file.read(math.prod(shape) * column.dtype.itemsize)
    return np.frombuffer(content, column.dtype).reshape(shape)


def short_array(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """A whole array of at most one transition's numbers."""
    column = checked_header(path, archive, name)
    if column.dtype.kind not in "fiu" or math.prod(column.shape) > WIDEST:
        raise UserError(f"{path}: {name} must be one number per action coordinate.")
    with archive.open(f"{name}.npy") as file:
        read_header(file)
        return np.frombuffer(file.read(), column.dtype)


class Parquet(Source):
    """A .parquet file with a column of lists per role, or one column per coordinate."""

    def __init__(self, path: Path):
        self.path = path
        arrow = pyarrow()
        with reading(path), limited_memory(ARROW_BYTES):
            self._file = arrow.parquet.ParquetFile(path, **THRIFT_LIMITS)
            refuse_large(path, self._file.metadata)
            self._lists = (arrow.ListType, arrow.LargeListType, arrow.FixedSizeListType)
            schema = self._file.schema_arrow
            self._found = find_columns(path, schema.names, numbered=True)
            self._headers = {role: self._header(schema, role) for role in self._found}
            notes = {key.decode(errors="replace"): v for key, v in (schema.metadata or {}).items()}
            bounds = bounds_in(path, notes, lambda key: json.loads(notes[key], parse_int=float))
            size = path.stat().st_size
            self.about = describe(path, path.stem, self._headers, size, bounds=bounds)

    def _header(self, schema: Any, role: str) -> Column:
        """The shape and type of a role; lists are as long as in the first row."""
        names, rows = self._found[role], self._file.metadata.num_rows
        name, kind = names[0], schema.field(names[0]).type
        if isinstance(kind, self._lists):
            first = next(self._file.iter_batches(batch_size=1, columns=[name]), None)
            length = first.column(0).value_lengths()[0].as_py() or 0 if first else 1
            return Column(name, (rows, length), np.dtype(kind.value_type.to_pandas_dtype()))
        types = {part: np.dtype(schema.field(part).type.to_pandas_dtype()) for part in names}
        if name in NAMES[role]:
            return Column(name, (rows,), types[name])
        worst = max(names, key=lambda part: types[part].kind not in NUMBERS)
        name = worst if types[worst].kind not in NUMBERS else name.removesuffix("_0")
        return Column(name, (rows, len(names)), types[worst])

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, row group by row group."""
        wanted = [name for names in self._found.values() for name in names]
        batches = self._file.iter_batches(batch_size=self.rows_at_once, columns=wanted)
        first = 0
        while True:
            with reading(self.path), limited_memory(ARROW_BYTES):
                batch = next(batches, None)
                roles = self._found if batch and batch.num_rows else {}
                parts = {role: self._values(batch, role, first) for role in roles}
            if batch is None:
                return
            if parts:
                yield Chunk(**parts, label="row", first=first)
            first += batch.num_rows

    def _values(self, batch: Any, role: str, first: int) -> np.ndarray:
        """One role's numbers in a batch of rows."""
        parts = []
        for name in self._found[role]:
            array = batch.column(name)
            refuse_missing(self.path, name, array, first)
            if isinstance(array.type, self._lists):
                return self._list_values(array, name, self._headers[role].shape[1], first)
            parts.append(array.to_numpy(zero_copy_only=False))
        return np.stack(parts, axis=1)

    def _list_values(self, array: Any, name: str, width: int, first: int) -> np.ndarray:
        """The numbers of a list column; UserError unless all lists are equally long."""
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            raise UserError(
                f"{self.path}: column {name}, row {first + row} has "
                f"{counted(int(lengths[row]), 'coordinate')} and the first row has {width}; "
                "they must be equal."
            )
        flat = array.flatten()
        refuse_missing(self.path, name, flat, first, width)
        return flat.to_numpy(zero_copy_only=False).reshape(-1, width)


def pyarrow() -> Any:
    """The package pyarrow with its Parquet reader; UserError if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            "Parquet files need pyarrow; install it with `pip install 'fastr[parquet]'`."
        ) from None
    return pyarrow


def refuse_large(path: Path, metadata: Any) -> None:
    """Raise UserError if the row groups declare far more bytes than the file can hold.

    The metadata of single columns are not read: Arrow aborts the process over a malformed one.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    declared = sum(max(0, group.total_byte_size) for group in groups)
    if declared > RATIO * path.stat().st_size + SPARE_BYTES:
        raise UserError(
            f"{path} declares {declared:,} bytes, more than {RATIO} times its own size: store it "
            "without compression if that is true."
        )


def refuse_missing(path: Path, name: str, array: Any, first: int, width: int = 1) -> None:
    """Raise UserError at a null value."""
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))) // width
        raise UserError(f"{path}: column {name}, row {first + row} is missing (null).")


FILES = {".npz": Npz, ".parquet": Parquet, ".pq": Parquet}
"""The reader of each file name's ending."""
