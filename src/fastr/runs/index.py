"""One checkpoint on disk: its index, whether its files are sound, what they hold.

checkpoints/FRAMES/ has state.safetensors, all arrays but the replay, and index.json, which records
the size and SHA-256 of every file. The replay's rows lie in replay/START-END.safetensors: segments
that are written once and shared by the checkpoints that need them.
"""

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastr.core import UserError
from fastr.runs.files import FileRecord, file_record, sha256
from fastr.runs.untrusted import bounded_bytes, reading, tensors, whole_numbers

ROWS = "rows.jsonl"
CONFIG = "config.json"
STATE = "state.safetensors"
INDEX = "index.json"
FORMAT = 3
SHA256 = re.compile(r"[0-9a-f]{64}")
SEGMENT_NAME = re.compile(r"([0-9]{9,18})-([0-9]{9,18})\.safetensors")


class DamageError(Exception):
    """Why a checkpoint cannot be used; an older one may still be."""


@dataclass(frozen=True, order=True)
class Segment:
    """Replay rows [start, end), numbered by agent step since the run began."""

    start: int
    end: int

    @property
    def name(self) -> str:
        """File name of the segment."""
        return f"{self.start:09d}-{self.end:09d}.safetensors"

    @classmethod
    def parse(cls, name: str) -> "Segment | None":
        """Segment of this file name, or None if it is no segment's name."""
        if not (match := SEGMENT_NAME.fullmatch(name)):
            return None
        segment = cls(int(match[1]), int(match[2]))
        return segment if segment.name == name and segment.start < segment.end else None


def covers(segments: list[Segment], wanted: Segment) -> bool:
    """Whether sorted segments join without gap or overlap and hold the wanted rows to the end."""
    if wanted.start == wanted.end or not segments:
        return wanted.start == wanted.end and not segments
    joined = all(left.end == right.start for left, right in itertools.pairwise(segments))
    return joined and segments[0].start <= wanted.start and segments[-1].end == wanted.end


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as its index describes it; arrays and replay are read on demand."""

    run: Path
    frames: int
    host: dict[str, Any]
    rows_bytes: int
    """Size of rows.jsonl at this checkpoint."""
    rows_sha256: str
    """Checksum of rows.jsonl up to that size."""
    config_sha256: str
    replay: Segment
    """Rows that the ring buffer held."""
    row_shape: tuple[int, int]
    """Seeds and numbers in one replay row."""
    files: dict[str, FileRecord]
    skipped: tuple[str, ...] = ()
    """One message for each newer checkpoint that is damaged."""
    verified: bool = False
    """Whether all files have been verified, the replay included."""

    @property
    def name(self) -> str:
        """Name of the checkpoint's directory."""
        return checkpoint_name(self.frames)

    @property
    def segments(self) -> list[Segment]:
        """Replay segments of this checkpoint, oldest first."""
        return sorted(segment for name in self.files if (segment := Segment.parse(name)))

    def location(self, name: str) -> Path:
        """Path of a file of this checkpoint."""
        if name == STATE:
            return self.run / "checkpoints" / self.name / STATE
        return self.run / "replay" / name

    def verify(self) -> None:
        """Raise DamageError unless all files and the rows are as recorded."""
        with _damage_if_missing(self.run / ROWS) as path:
            if sha256(path, self.rows_bytes) != self.rows_sha256:
                raise DamageError(f"{ROWS}: checksum")
        for name in self.files:
            self.verify_file(name)

    def verify_file(self, name: str) -> None:
        """Raise DamageError unless a file has its recorded size and checksum."""
        with _damage_if_missing(self.location(name)) as path:
            # The size first: an altered file may be too large to be hashed in reasonable time.
            if path.stat().st_size != self.files[name].size:
                raise DamageError(f"{name}: size")
            if file_record(path) != self.files[name]:
                raise DamageError(f"{name}: checksum")

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays but the replay, by name."""
        with reading(self.location(STATE)), tensors(self.location(STATE)) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def replay_slices(self, most: int) -> Iterator[tuple[int, np.ndarray]]:
        """Replay rows, oldest first, at most `most` at a time, each with its first agent step."""
        numbers = math.prod(self.row_shape)
        for segment in self.segments:
            path, first = self.location(segment.name), max(segment.start, self.replay.start)
            with reading(path):
                if not self.verified:
                    self.verify_file(segment.name)
                # Rows are counted by the index, which must first agree with the file.
                self.check_segment(segment)
                # By hand: safetensors reads a whole segment for each slice of it.
                with path.open("rb") as file:
                    file.seek(4 * numbers * (first - segment.end), os.SEEK_END)
                    for low in range(first, segment.end, most):
                        count = min(most, segment.end - low)
                        rows = np.fromfile(file, "<f4", count * numbers)
                        yield low, rows.reshape(count, *self.row_shape)

    def check_segment(self, segment: Segment) -> None:
        """Raise UserError unless a segment's file holds exactly the rows of its name."""
        path = self.location(segment.name)
        with reading(path), tensors(path) as file:
            header = file.get_slice("rows")
            found = header.get_dtype(), tuple(header.get_shape()), len(file.keys())
        if found != ("F32", (segment.end - segment.start, *self.row_shape), 1):
            raise UserError(f"{path} is not a replay segment of this run: it holds {found[:2]}.")


def checkpoint_name(frames: int) -> str:
    """Directory name of the checkpoint at this many frames."""
    return f"{frames:09d}"


@contextmanager
def _damage_if_missing(path: Path) -> Iterator[Path]:
    """Turn a missing file into a DamageError, and name the file in any other system error."""
    try:
        yield path
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamageError(f"{path.name}: missing") from error
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def index_bytes(checkpoint: Checkpoint) -> bytes:
    """Content of index.json, with a checksum over itself."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "frames": checkpoint.frames,
        "rows_bytes": checkpoint.rows_bytes,
        "rows_sha256": checkpoint.rows_sha256,
        "config_sha256": checkpoint.config_sha256,
        "replay": {"start": checkpoint.replay.start, "end": checkpoint.replay.end},
        "seeds": checkpoint.row_shape[0],
        "row_dim": checkpoint.row_shape[1],
        "files": {
            name: {"bytes": record.size, "sha256": record.sha256}
            for name, record in checkpoint.files.items()
        },
        "host": checkpoint.host,
    }
    # Keys that are not strings change when read back, and with them the checksum.
    content = json.loads(json.dumps(content))
    return json.dumps(content | {"sha256": content_checksum(content)}, indent=1).encode()


def content_checksum(content: dict[str, Any]) -> str:
    """Checksum of a JSON object, independent of its layout."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_index(run: Path, frames: int) -> Checkpoint:
    """Checkpoint as index.json describes it, or DamageError; its files are not verified."""
    path = run / "checkpoints" / checkpoint_name(frames) / INDEX
    content = _checked_content(path)
    try:
        files = {
            _file_name(name, path): FileRecord(_count(entry["bytes"]), _checksum(entry["sha256"]))
            for name, entry in content["files"].items()
        }
        checkpoint = Checkpoint(
            run=run,
            frames=_count(content["frames"]),
            host=content["host"],
            rows_bytes=_count(content["rows_bytes"]),
            rows_sha256=_checksum(content["rows_sha256"]),
            config_sha256=_checksum(content["config_sha256"]),
            replay=Segment(_count(content["replay"]["start"]), _count(content["replay"]["end"])),
            row_shape=(_count(content["seeds"]), _count(content["row_dim"])),
            files=files,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamageError(f"{INDEX}: content") from error
    sound = checkpoint.frames == frames and STATE in files and isinstance(checkpoint.host, dict)
    if not sound or not covers(checkpoint.segments, checkpoint.replay):
        raise DamageError(f"{INDEX}: content")
    return checkpoint


def _checked_content(path: Path) -> dict[str, Any]:
    """JSON object in an index of this format whose checksum is right."""
    try:
        with _damage_if_missing(path):
            content = json.loads(bounded_bytes(path))
    except UserError as error:
        raise DamageError(f"{INDEX}: size") from error
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{INDEX}: not JSON") from error
    if not isinstance(content, dict):
        raise DamageError(f"{INDEX}: content")
    claimed = content.pop("sha256", None)
    # Before the format is believed: a number with a flipped bit is damage, not another version.
    if claimed != content_checksum(content):
        raise DamageError(f"{INDEX}: checksum")
    if content.get("format") != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {content.get('format')!r:.20}; "
            f"this version of fastr reads format {FORMAT}."
        )
    return content


def _file_name(name: str, index: Path) -> str:
    """The name, or UserError if no file of a checkpoint is called that."""
    if name != STATE and Segment.parse(name) is None:
        raise UserError(f"{index} names {name!r:.80}, which is no file of a checkpoint.")
    return name


def _count(value: Any) -> int:
    if not whole_numbers([value], 1):
        raise ValueError(value)
    return value


def _checksum(value: Any) -> str:
    if not SHA256.fullmatch(value):
        raise ValueError(value)
    return value
