"""One checkpoint on disk: where its files lie, whether they are sound, what they hold."""

import hashlib
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastr.runs.checkpoints.array_files import tensors
from fastr.runs.checkpoints.files import FileRecord, file_record
from fastr.runs.checkpoints.segments import Segment
from fastr.core import UserError
from fastr.runs.untrusted import reading

ROWS = "rows.jsonl"
CONFIG = "config.json"
STATE = "state.safetensors"


class DamageError(Exception):
    """Why one checkpoint cannot be used; an older one still may."""


@contextmanager
def looking_at(path: Path) -> Iterator[Path]:
    """A file that is not there is damage; one that the system keeps back is not, and is named."""
    try:
        yield path
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamageError(f"{path.name}: missing") from error
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def file_size(path: Path) -> int:
    """Bytes of a file; DamageError if there is none."""
    with looking_at(path):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DamageError(f"{path.name}: missing")
    return found.st_size


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk, as its index describes it; the arrays are read when asked for."""

    run: Path
    frames: int
    host: dict[str, Any]
    rows_bytes: int
    """The size of rows.jsonl when the checkpoint was made."""
    rows_sha256: str
    """The checksum of rows.jsonl then."""
    config_sha256: str
    """The checksum of config.json then."""
    replay: Segment
    row_shape: tuple[int, int]
    """Seeds and numbers in one replay row."""
    files: dict[str, FileRecord]
    skipped: tuple[str, ...] = ()
    """One message for each newer checkpoint that is damaged."""

    @property
    def name(self) -> str:
        """The checkpoint's directory name."""
        return checkpoint_name(self.frames)

    @property
    def segments(self) -> list[Segment]:
        """The replay segments this checkpoint needs, oldest first."""
        return sorted(segment for name in self.files if (segment := Segment.parse(name)))

    def location(self, name: str) -> Path:
        """Where a file of this checkpoint lies."""
        if name == STATE:
            return self.run / "checkpoints" / self.name / STATE
        return self.run / "replay" / name

    def verify(self) -> None:
        """Raise DamageError unless every file has its recorded size and checksum."""
        self.verify_sizes()
        for name, record in self.files.items():
            with looking_at(self.location(name)) as path:
                found = file_record(path)
            if found != record:
                raise DamageError(f"{name}: checksum")

    def verify_sizes(self) -> None:
        """Raise DamageError unless every file is there in its recorded size: quick, not sure."""
        if self.rows_bytes and file_size(self.run / ROWS) < self.rows_bytes:
            raise DamageError(f"{ROWS}: shorter than recorded")
        with looking_at(self.run / ROWS):
            found = rows_checksum(self.run, self.rows_bytes)
        if found != self.rows_sha256:
            raise DamageError(f"{ROWS}: checksum")
        for name, record in self.files.items():
            if file_size(self.location(name)) != record.size:
                raise DamageError(f"{name}: size")

    def arrays(self) -> dict[str, np.ndarray]:
        """All device arrays, by name."""
        with reading(self.location(STATE)), tensors(self.location(STATE)) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def replay_slices(self, most: int) -> Iterator[tuple[int, np.ndarray]]:
        """The rows the ring buffer held, oldest first, so many at once; and the first's step."""
        numbers = math.prod(self.row_shape)
        for segment in self.segments:
            # What is read is as large as the index says: that must first agree with the file.
            self.check_segment(segment)
            path, first = self.location(segment.name), max(segment.start, self.replay.start)
            # By hand: safetensors reads a whole segment for each part of it.
            with reading(path), path.open("rb") as file:
                file.seek(4 * numbers * (first - segment.end), os.SEEK_END)
                for low in range(first, segment.end, most):
                    count = min(most, segment.end - low)
                    rows = np.fromfile(file, "<f4", count * numbers)
                    yield low, rows.reshape(count, *self.row_shape)

    def check_segment(self, segment: Segment) -> None:
        """Raise UserError unless a segment's file holds the rows that its name promises alone."""
        path = self.location(segment.name)
        with reading(path), tensors(path) as file:
            header = file.get_slice("rows")
            found = header.get_dtype(), tuple(header.get_shape()), len(file.keys())
        if found != ("F32", (segment.end - segment.start, *self.row_shape), 1):
            raise UserError(f"{path} is not a replay segment of this run: it holds {found[:2]}.")


def checkpoint_name(frames: int) -> str:
    """Directory name of the checkpoint at this many frames."""
    return f"{frames:09d}"


def rows_checksum(run: Path, size: int) -> str:
    """Checksum of the first bytes of rows.jsonl, all of them measured before a checkpoint."""
    digest = hashlib.sha256()
    if size:
        with (run / ROWS).open("rb") as file:
            while piece := file.read(min(size, 2**20)):
                digest.update(piece)
                size -= len(piece)
    return digest.hexdigest()
