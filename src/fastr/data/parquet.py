"""Parquet tables: columns of lists, or one column per coordinate (state_0, state_1, ...)."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fastr.core import EnvSpec, UserError, counted
from fastr.data.base import (
    RATIO,
    SPARE_BYTES,
    About,
    Chunk,
    Source,
    float32,
    refuse_bomb,
)
from fastr.data.columns import (
    ACTION_HIGH,
    ACTION_LOW,
    NAMES,
    WHOLE,
    check_shapes,
    column_names,
    numbered,
)
from fastr.runs.untrusted import limited_memory, reading

VECTORS = ("state", "action", "next_state")
ARROW_BYTES = 2**31
"""More than this Arrow is not given while it reads: it believes what a page says of its size."""
THRIFT_LIMITS = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}
"""Of the table of contents, which Arrow otherwise takes at its word up to 100 MB."""


class Parquet(Source):
    """A .parquet file with columns state, action, next_state, episode."""

    def __init__(self, path: Path):
        self.path = path
        with reading(path), limited_memory(ARROW_BYTES):
            self._file = pyarrow("parquet").ParquetFile(path, **THRIFT_LIMITS)
            refuse_large(path, self._file.metadata)
            self._describe(self._file.schema_arrow)

    def _describe(self, schema: Any) -> None:
        path = self.path
        self._wide = {column: wide_columns(path, schema.names, column) for column in VECTORS}
        lists = [name for name in schema.names if name]
        wide = [column for column, parts in self._wide.items() if parts]
        self.columns = column_names(path, lists, wide)
        for column, name in self.columns.items():
            refuse_other_types(path, schema, self._wide.get(column) or [name])
        rows = self._file.metadata.num_rows
        if rows == 0:
            raise UserError(f"{path} is empty: it holds no transition.")
        widths = {column: self._width(column) for column in VECTORS}
        shapes = {column: (rows, width) for column, width in widths.items()} | {"episode": (rows,)}
        _, state_dim, action_dim = check_shapes(path, self.columns, shapes)
        refuse_bomb(path, EnvSpec(state_dim, action_dim), rows, path.stat().st_size)
        bounds = declared_bounds(path, schema.metadata or {}, action_dim)
        self.about = About(path.stem, EnvSpec(state_dim, action_dim), rows, bounds)

    def _names(self) -> list[str]:
        """The columns of the file that hold transitions."""
        vectors = [self._wide[column] or [self.columns[column]] for column in VECTORS]
        return [name for names in vectors for name in names] + [self.columns["episode"]]

    def _width(self, column: str) -> int:
        """Coordinates of a vector: the numbered columns, or the first row's length."""
        if self._wide[column]:
            return len(self._wide[column])
        name = self.columns[column]
        batch = next(self._file.iter_batches(batch_size=1, columns=[name]))
        first = batch.column(0).value_lengths()[0].as_py()
        if not first:
            raise UserError(f"{self.path}: column {name}, row 0 is empty.")
        return first

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, row group by row group."""
        first = 0
        batches = self._file.iter_batches(batch_size=self.rows_at_once, columns=self._names())
        while True:
            with reading(self.path), limited_memory(ARROW_BYTES):
                batch = next(batches, None)
                chunk = self._chunk(batch, first) if batch and batch.num_rows else None
            if batch is None:
                return
            if chunk:
                yield chunk
            first += batch.num_rows

    def _chunk(self, batch: Any, first: int) -> Chunk:
        spec = self.about.spec
        widths = {
            "state": spec.state_dim,
            "action": spec.action_dim,
            "next_state": spec.state_dim,
        }
        vectors = {c: self._vectors(batch, c, width, first) for c, width in widths.items()}
        episode = self._scalars(batch, self.columns["episode"], first).astype(np.int64)
        return Chunk(**vectors, episode=episode, label="row", first=first)

    def _vectors(self, batch: Any, column: str, width: int, first: int) -> np.ndarray:
        if self._wide[column]:
            parts = [self._scalars(batch, name, first) for name in self._wide[column]]
            return float32(np.stack(parts, axis=1))
        name = self.columns[column]
        array = batch.column(batch.schema.get_field_index(name))
        refuse_null(self.path, name, array, first)
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            raise UserError(
                f"{self.path}: column {name}, row {first + row} has "
                f"{counted(int(lengths[row]), 'coordinate')} and the first row has {width}; "
                "they must be equal."
            )
        flat = array.flatten()
        if flat.null_count:
            row = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False))) // width
            raise UserError(f"{self.path}: column {name}, row {first + row} has a missing number.")
        return float32(flat.to_numpy(zero_copy_only=False)).reshape(-1, width)

    def _scalars(self, batch: Any, name: str, first: int) -> np.ndarray:
        array = batch.column(batch.schema.get_field_index(name))
        refuse_null(self.path, name, array, first)
        return array.to_numpy(zero_copy_only=False)


def pyarrow(module: str) -> Any:
    """A module of pyarrow, which is not installed by default."""
    try:
        return import_module(f"pyarrow.{module}")
    except ImportError:
        raise UserError(
            "Parquet files need pyarrow; install it with `pip install pyarrow`."
        ) from None


def refuse_large(path: Path, metadata: Any) -> None:
    """Raise UserError if the row groups promise far more than the file can hold.

    Their columns are not asked one by one: with a malformed one, Arrow ends the whole process.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    promised = sum(max(0, group.total_byte_size) for group in groups)
    if promised > RATIO * path.stat().st_size + SPARE_BYTES:
        raise UserError(
            f"{path} promises {promised:,} bytes of numbers, more than {RATIO} times its own size."
        )


def wide_columns(path: Path, names: list[str], column: str) -> list[str]:
    """The numbered columns of a vector under any of its names, unless it is one of lists."""
    if any(name in names for name in NAMES[column]):
        return []
    found = [parts for prefix in NAMES[column] if (parts := numbered(path, names, prefix))]
    if len(found) > 1:
        raise UserError(f"{path} has both {found[0][0]} and {found[1][0]}; keep one of them.")
    return found[0] if found else []


def refuse_other_types(path: Path, schema: Any, names: list[str]) -> None:
    """Raise UserError unless these columns hold numbers, or lists of them."""
    types = pyarrow("types")
    for name in names:
        kind = schema.field(name).type
        inner = kind.value_type if types.is_list(kind) or types.is_fixed_size_list(kind) else kind
        whole = name in NAMES["episode"]
        allowed = (
            types.is_integer(kind)
            if whole
            else types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)
        )
        if not allowed:
            wanted = WHOLE if whole else "numbers, or lists of numbers"
            raise UserError(f"{path}: column {name} holds {kind}; it must hold {wanted}.")
        if not whole and name in sum(NAMES.values(), ()) and inner is kind:
            raise UserError(
                f"{path}: column {name} holds one number per row; it must hold a list of numbers, "
                f"or be spread over {name}_0, {name}_1 and so on."
            )


def refuse_null(path: Path, name: str, array: Any, first: int) -> None:
    """Raise UserError at a missing value."""
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise UserError(f"{path}: column {name}, row {first + row} is missing (null).")


def declared_bounds(
    path: Path, metadata: dict[bytes, bytes], action_dim: int
) -> tuple[list[float], list[float]] | None:
    """Action bounds from the file's key-value metadata, where it has them, as JSON lists."""
    keys = [key for key in (ACTION_LOW, ACTION_HIGH) if key.encode() in metadata]
    if not keys:
        return None
    if len(keys) == 1:
        raise UserError(f"{path} has {keys[0]} alone; give {ACTION_LOW} and {ACTION_HIGH}.")
    low, high = (bound(path, key, metadata[key.encode()], action_dim) for key in keys)
    return low, high


def bound(path: Path, key: str, text: bytes, action_dim: int) -> list[float]:
    """A JSON list with one number per action coordinate."""
    try:
        values = json.loads(text, parse_int=float)
    except (ValueError, RecursionError):
        values = None
    if (
        isinstance(values, list)
        and len(values) == action_dim
        and all(isinstance(value, float) for value in values)
    ):
        return values
    raise UserError(f"{path}: {key} must be a JSON list of {counted(action_dim, 'number')}.")
