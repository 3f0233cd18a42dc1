"""NumPy archives with one array per column, read piece by piece without unpickling anything."""

import contextlib
import math
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastr.core import EnvSpec, UserError, counted
from fastr.data.base import About, Chunk, Source, float32, refuse_bomb
from fastr.data.columns import ACTION_HIGH, ACTION_LOW, WHOLE, check_shapes, column_names
from fastr.runs.untrusted import reading

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What NumPy writes. Others decompress a byte to megabytes, or ask for gigabytes to begin with."""
HEADER_BYTES = 10_000
HEADER = re.compile(
    rb"\s*\{\s*'descr'\s*:\s*'([^'\\]{1,20})'\s*,\s*'fortran_order'\s*:\s*(True|False)\s*,"
    rb"\s*'shape'\s*:\s*\(([0-9, ]{0,200})\)\s*,?\s*\}\s*"
)
"""An array's header is a Python expression: this form is read, and none is evaluated."""
NUMBERS = re.compile(r"[<>|=]?(f2|f4|f8|f16|[iu][1248]|b1)")
BOUND_NUMBERS = 2**16
"""More action coordinates than this have no bounds worth reading."""


class Header(NamedTuple):
    """What an array's header promises, checked against the size of the archive's member."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype


class Npz(Source):
    """A .npz file with arrays state, action, next_state, episode."""

    def __init__(self, path: Path):
        self.path = path
        with reading(path), zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            self.columns = column_names(path, names)
            present = self.columns.values()
            self.headers = {name: checked_header(path, archive, name) for name in present}
            bounds = bounds_of(path, archive, names)
        shapes = {column: self.headers[name].shape for column, name in self.columns.items()}
        rows, state_dim, action_dim = check_shapes(path, self.columns, shapes)
        refuse_fractions(path, self.columns["episode"], self.headers[self.columns["episode"]])
        if bounds and {len(bounds[0]), len(bounds[1])} != {action_dim}:
            raise UserError(
                f"{path}: {ACTION_LOW} and {ACTION_HIGH} must have "
                f"{counted(action_dim, 'number')} each, one per action coordinate."
            )
        refuse_bomb(path, EnvSpec(state_dim, action_dim), rows, path.stat().st_size)
        self.about = About(path.stem, EnvSpec(state_dim, action_dim), rows, bounds)

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, decompressed as they are asked for."""
        with contextlib.ExitStack() as stack:
            with reading(self.path):
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                files = {
                    column: stack.enter_context(archive.open(f"{name}.npy"))
                    for column, name in self.columns.items()
                }
                for file in files.values():
                    read_header(file)
            for first in range(0, self.about.rows, self.rows_at_once):
                rows = min(self.rows_at_once, self.about.rows - first)
                with reading(self.path):
                    parts = {column: self._read(column, files[column], rows) for column in files}
                episode = parts.pop("episode").astype(np.int64)
                numbers = {column: float32(part) for column, part in parts.items()}
                yield Chunk(**numbers, episode=episode, label="row", first=first)

    def _read(self, column: str, file: Any, rows: int) -> np.ndarray:
        header = self.headers[self.columns[column]]
        size = rows * math.prod(header.shape[1:]) * header.dtype.itemsize
        content = file.read(size)
        return np.frombuffer(content, header.dtype).reshape(rows, *header.shape[1:])


def checked_header(path: Path, archive: zipfile.ZipFile, name: str) -> Header:
    """An array's shape and type; UserError unless it holds as many plain numbers as it says."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type not in METHODS:
        raise UserError(f"{path}: column {name} is not compressed as NumPy does; save it anew.")
    with archive.open(entry) as file:
        header = read_header(file)
        start = file.tell()
    if header is None:
        raise UserError(f"{path}: column {name} holds something other than plain numbers.")
    if header.fortran and len(header.shape) > 1:
        raise UserError(
            f"{path}: column {name} is stored column by column (Fortran order); save "
            "np.ascontiguousarray of it."
        )
    if entry.file_size - start != math.prod(header.shape) * header.dtype.itemsize:
        raise UserError(f"{path}: column {name} is not as long as its header says; damaged?")
    return header


def read_header(file: Any) -> Header | None:
    """What stands at the beginning of an array's file; None if it is no array of plain numbers."""
    if file.read(6) != b"\x93NUMPY":
        raise ValueError("not an array of NumPy's")
    major, _ = file.read(2)
    length = int.from_bytes(file.read(2 if major == 1 else 4), "little")
    if length > HEADER_BYTES:
        raise ValueError(f"a header of {length:,} bytes")
    match = HEADER.fullmatch(file.read(length))
    if match is None or not NUMBERS.fullmatch(match[1].decode(errors="replace")):
        return None
    shape = tuple(int(size) for size in match[3].split(b",") if size.strip())
    return Header(shape, match[2] == b"True", np.dtype(match[1].decode()))


def bounds_of(
    path: Path, archive: zipfile.ZipFile, names: list[str]
) -> tuple[list[float], list[float]] | None:
    """The action bounds, where the archive has them."""
    present = [name for name in (ACTION_LOW, ACTION_HIGH) if name in names]
    if not present:
        return None
    if len(present) == 1:
        raise UserError(f"{path} has {present[0]} alone; give {ACTION_LOW} and {ACTION_HIGH}.")
    low, high = (bound(path, archive, name) for name in (ACTION_LOW, ACTION_HIGH))
    return low, high


def bound(path: Path, archive: zipfile.ZipFile, name: str) -> list[float]:
    """One short vector of numbers."""
    header = checked_header(path, archive, name)
    if len(header.shape) != 1 or header.shape[0] > BOUND_NUMBERS:
        raise UserError(f"{path}: {name} must be one number per action coordinate.")
    with archive.open(f"{name}.npy") as file:
        read_header(file)
        return np.frombuffer(file.read(), header.dtype).astype(np.float64).tolist()


def refuse_fractions(path: Path, name: str, header: Header) -> None:
    """Raise UserError unless episodes are numbered by whole numbers."""
    if header.dtype.kind not in "iu":
        raise UserError(f"{path}: column {name} holds {header.dtype}; it must hold {WHOLE}.")
