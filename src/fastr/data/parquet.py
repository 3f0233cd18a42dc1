"""Parquet files within bounds: opened by their footers, read in batches of plain numbers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastr.core import UserError, counted
from fastr.data.dataset import refuse_bomb
from fastr.runs.untrusted import limited_memory, reading

ARROW_BYTES = 2**31
"""Additional address space for Arrow, which allocates whatever size a page declares."""
THRIFT_LIMITS = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}
"""Bounds on a Parquet footer; Arrow's own are 100 MB and a million entries."""


def pyarrow() -> Any:
    """The package pyarrow with its Parquet reader; UserError if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        needed = "Parquet files need pyarrow; install it with `pip install 'fastr-rl[parquet]'`."
        raise UserError(needed) from None
    return pyarrow


def opened(path: Path) -> Any:
    """The ParquetFile at this path; UserError if its footer declares more than it can hold."""
    arrow = pyarrow()
    with reading(path), limited_memory(ARROW_BYTES):
        file = arrow.parquet.ParquetFile(path, **THRIFT_LIMITS)
        footer = file.metadata
        # Single columns are not read here: Arrow aborts the process over a malformed one.
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        refuse_bomb(path, sum(max(0, g.total_byte_size) for g in groups), path.stat().st_size)
        return file


def is_list(kind: Any) -> bool:
    """Whether a column of this Arrow type holds a list per row."""
    arrow = pyarrow()
    return isinstance(kind, arrow.ListType | arrow.LargeListType | arrow.FixedSizeListType)


def element(kind: Any) -> np.dtype:
    """The NumPy type of one number in a column of this Arrow type."""
    return np.dtype((kind.value_type if is_list(kind) else kind).to_pandas_dtype())


def batches(
    path: Path, file: Any, widths: Mapping[str, int], rows: int
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """The first row's number and the numbers of these columns, at most so many rows at a time."""
    found = file.iter_batches(batch_size=rows, columns=list(widths))
    first = 0
    while True:
        with reading(path), limited_memory(ARROW_BYTES):
            if (batch := next(found, None)) is None:
                return
            parts = {n: numbers(path, batch.column(n), n, first, widths[n]) for n in widths}
        if batch.num_rows:
            yield first, parts
        first += batch.num_rows


def numbers(path: Path, array: Any, name: str, first: int, width: int) -> np.ndarray:
    """A column's numbers, (rows, width); UserError if one is missing or a list is not so long."""
    rows = len(array)
    if is_list(array.type):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            found = counted(int(lengths[row]), "coordinate")
            raise UserError(
                f"{path}: column {name}, row {first + row} has {found}, not {width}; all rows "
                "must have equally many."
            )
        array = array.flatten()
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))) // width
        raise UserError(f"{path}: column {name}, row {first + row} is missing (null).")
    return array.to_numpy(zero_copy_only=False).reshape(rows, width)
