"""Checkpoints of a run: their files verified and read; save one, find the newest sound one.

checkpoints/FRAMES/ has state.safetensors, all arrays but the replay, and index.json, which records
the size and SHA-256 of every file. The replay's rows lie in replay/START-END.safetensors: segments
that are written once and shared by the checkpoints that need them. A checkpoint directory appears
whole, by the rename of a finished temporary one: a kill at any moment leaves a sound run.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fastr.core import UserError
from fastr.runs.files import (
    TEMPORARY,
    FileRecord,
    discard,
    file_record,
    sha256,
    sync,
    temporary,
    write_bytes,
)
from fastr.runs.untrusted import bounded_bytes, json_object, reading, tensors, whole_numbers

ROWS = "rows.jsonl"
CONFIG = "config.json"
STATE = "state.safetensors"
INDEX = "index.json"
FORMAT = 4
CHECKPOINT_NAME = re.compile(r"[0-9]{9,18}")
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
    rows_bytes: int
    """Size of rows.jsonl at this checkpoint."""
    rows_sha256: str
    """Checksum of rows.jsonl up to that size."""
    config_sha256: str
    replay: Segment
    """Rows that the ring buffer held."""
    seeds: int
    row_dim: int
    """Numbers in one replay row of one seed."""
    files: dict[str, FileRecord]
    host: dict[str, Any]
    skipped: tuple[str, ...] = ()
    """One message for each newer checkpoint that is damaged."""
    verified: bool = False
    """Whether all files have been verified, the replay included."""

    @property
    def name(self) -> str:
        """Name of the checkpoint's directory."""
        return checkpoint_name(self.frames)

    @property
    def row_shape(self) -> tuple[int, int]:
        """Shape of one replay row."""
        return self.seeds, self.row_dim

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
            if path.stat().st_size != self.files[name].bytes:
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


@contextlib.contextmanager
def _damage_if_missing(path: Path) -> Iterator[Path]:
    """Turn a missing file into a DamageError, and name the file in any other system error."""
    try:
        yield path
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamageError(f"{path.name}: missing") from error
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


# The index

COUNT, SHA256 = "count", re.compile(r"[0-9a-f]{64}")
FILE_FORM = {"bytes": COUNT, "sha256": SHA256}
INDEX_FORM = {
    "frames": COUNT,
    "rows_bytes": COUNT,
    "rows_sha256": SHA256,
    "config_sha256": SHA256,
    "replay": {"start": COUNT, "end": COUNT},
    "seeds": COUNT,
    "row_dim": COUNT,
    "files": {},
    "host": {},
}
"""Bounds on the values of index.json: it may come from elsewhere, with a checksum that is right."""


def fits(value: Any, form: Any) -> bool:
    """Whether a JSON value has this form."""
    if form is COUNT:
        return whole_numbers([value], 1)
    if form is SHA256:
        return isinstance(value, str) and SHA256.fullmatch(value) is not None
    return isinstance(value, dict) and all(fits(value.get(key), form[key]) for key in form)


def index_bytes(checkpoint: Checkpoint) -> bytes:
    """Content of index.json, with a checksum over itself."""
    content = {"format": FORMAT} | asdict(checkpoint)
    for name in ("run", "skipped", "verified"):
        del content[name]
    # Keys that are not strings change when read back, and with them the checksum.
    content = json.loads(json.dumps(content))
    return json.dumps(content | {"sha256": content_checksum(content)}, indent=1).encode()


def content_checksum(content: dict[str, Any]) -> str:
    """Checksum of a JSON object, independent of its layout."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_index(run: Path, frames: int) -> Checkpoint:
    """Checkpoint as index.json describes it, or DamageError; its files are not verified."""
    content = _checked_content(run / "checkpoints" / checkpoint_name(frames) / INDEX)
    if not fits(content, INDEX_FORM) or not all(
        (name == STATE or Segment.parse(name)) and fits(record, FILE_FORM)
        for name, record in content["files"].items()
    ):
        raise DamageError(f"{INDEX}: content")
    found: dict[str, Any] = {name: content[name] for name in INDEX_FORM}
    found["files"] = {
        name: FileRecord(record["bytes"], record["sha256"])
        for name, record in content["files"].items()
    }
    found["replay"] = Segment(content["replay"]["start"], content["replay"]["end"])
    checkpoint = Checkpoint(run, **found)
    sound = checkpoint.frames == frames and STATE in checkpoint.files
    if not sound or not covers(checkpoint.segments, checkpoint.replay):
        raise DamageError(f"{INDEX}: content")
    return checkpoint


def _checked_content(path: Path) -> dict[str, Any]:
    """JSON object in an index of this format whose checksum is right."""
    try:
        with _damage_if_missing(path):
            content = json.loads(bounded_bytes(path))
    except (UserError, ValueError, RecursionError) as error:
        raise DamageError(f"{INDEX}: not JSON") from error
    claimed = content.pop("sha256", None) if isinstance(content, dict) else None
    # Before the format is believed: a number with a flipped bit is damage, not another version.
    if claimed is None or claimed != content_checksum(content):
        raise DamageError(f"{INDEX}: checksum")
    if content.get("format") != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {content.get('format')!r:.20}; "
            f"this version of fastr reads format {FORMAT}."
        )
    return content


# Saving


@dataclass(frozen=True)
class Snapshot:
    """State of a run, to be saved as one checkpoint."""

    frames: int
    arrays: dict[str, np.ndarray]
    host: dict[str, Any]
    """State outside the arrays, as a JSON object."""
    replay_rows: np.ndarray
    """Rows since the last checkpoint, float32 of shape (rows, seeds, row_dim); may be empty."""
    replay_start: int
    """Agent step of the first of these rows."""
    capacity: int
    """Number of newest rows that the ring buffer holds."""

    @property
    def added(self) -> Segment:
        """Range of the new rows."""
        return Segment(self.replay_start, self.replay_start + len(self.replay_rows))

    @property
    def replay(self) -> Segment:
        """Range of the rows that the ring buffer holds."""
        return Segment(max(0, self.added.end - self.capacity), self.added.end)


def save(run: Path, snapshot: Snapshot, *, rows_bytes: int, last: Checkpoint | None) -> Checkpoint:
    """Write one checkpoint; after a write error nothing of it stays and older ones are intact."""
    try:
        return write_checkpoint(run, snapshot, rows_bytes, last)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            discard(run / "checkpoints" / checkpoint_name(snapshot.frames))
            discard(run / "replay" / snapshot.added.name)
            discard_leftovers(run)
        again = f", to continue with `fastr resume {quote(str(run))}`"
        good = f"the last good one is {last.name}{again}" if last else "there is no earlier one"
        name = checkpoint_name(snapshot.frames)
        raise UserError(f"Checkpoint {name} could not be written ({error}); {good}.") from error


def write_checkpoint(
    run: Path, snapshot: Snapshot, rows_bytes: int, last: Checkpoint | None
) -> Checkpoint:
    """Write all files of a checkpoint to the disk, then rename its directory."""
    sync(run / ROWS)
    needed = [part for part in last.segments if part.end > snapshot.replay.start] if last else []
    files = {part.name: last.files[part.name] for part in needed} if last else {}
    if len(snapshot.replay_rows):
        # Over a segment of that name that no checkpoint needs any more.
        segment = run / "replay" / snapshot.added.name
        segment.parent.mkdir(exist_ok=True)
        files[segment.name] = write_arrays(temporary(segment), {"rows": snapshot.replay_rows})
        os.replace(temporary(segment), segment)
        sync(segment.parent)
    final = run / "checkpoints" / checkpoint_name(snapshot.frames)
    unfinished = temporary(final)
    discard(unfinished)
    unfinished.mkdir(parents=True)
    files[STATE] = write_arrays(unfinished / STATE, snapshot.arrays)
    _, seeds, row_dim = snapshot.replay_rows.shape
    checkpoint = Checkpoint(
        run=run,
        frames=snapshot.frames,
        rows_bytes=rows_bytes,
        rows_sha256=sha256(run / ROWS, rows_bytes),
        config_sha256=config_sha256(run),
        replay=snapshot.replay,
        seeds=seeds,
        row_dim=row_dim,
        files=files,
        host=snapshot.host,
    )
    write_bytes(unfinished / INDEX, index_bytes(checkpoint))
    os.rename(unfinished, final)
    sync(final.parent)
    sync(run)
    return checkpoint


def config_sha256(run: Path) -> str:
    """Checksum of a run's configuration but for its budget, which may be extended."""
    config = json_object(run / CONFIG)
    config["train"].pop("frames", None)
    return hashlib.sha256(json.dumps(config).encode()).hexdigest()


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> FileRecord:
    """Write arrays to the disk as safetensors; contiguous arrays are not copied."""
    # safetensors writes a strided array's raw memory, which is not its content.
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)
    # safetensors makes files that only their owner can read; follow the directory instead.
    path.chmod(path.parent.stat().st_mode & 0o666)
    sync(path)
    return file_record(path)


# Finding and deleting


def saved_frames(run: Path) -> list[int]:
    """Frames of every checkpoint directory, sound or not, in rising order."""
    try:
        with os.scandir(run / "checkpoints") as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        # No other error: a run without checkpoints starts again, and its rows are cut off.
        return []
    numbers = [int(name) for name in names if CHECKPOINT_NAME.fullmatch(name)]
    return sorted(frames for frames in numbers if checkpoint_name(frames) in names)


def newest(run: Path, verify: Callable[[Checkpoint], None]) -> Checkpoint:
    """Newest checkpoint that `verify` finds no damage in; UserError if there is none."""
    damaged = []
    for frames in reversed(saved_frames(run)):
        try:
            checkpoint = read_index(run, frames)
            verify(checkpoint)
        except OSError as error:
            # It may be sound, and readable tomorrow: an older one must not take its place.
            raise UserError(f"{error.filename} cannot be read ({error.strerror}).") from error
        except DamageError as problem:
            damaged.append(f"checkpoint {checkpoint_name(frames)} is damaged ({problem})")
        else:
            messages = tuple(f"{damage}; using {checkpoint.name}" for damage in damaged)
            return replace(checkpoint, skipped=messages)
    if damaged:
        raise UserError(f"{run} has no usable checkpoint: {'; '.join(damaged)}.")
    raise UserError(
        f"{run} has no checkpoint yet; continue it with `fastr resume {quote(str(run))}`."
    )


def keep_only(run: Path, kept: list[int]) -> None:
    """Delete all other checkpoints, and the replay segments that none of the kept ones needs."""
    for frames in saved_frames(run):
        if frames not in kept:
            discard(run / "checkpoints" / checkpoint_name(frames))
    used = set()
    for frames in kept:
        try:
            used.update(read_index(run, frames).files)
        except (DamageError, UserError, OSError):
            # What it needs is unknown, so no segment is deleted until it is deleted itself.
            return
    for path in (run / "replay").glob("*"):
        if Segment.parse(path.name) and path.name not in used:
            discard(path)


def discard_leftovers(run: Path) -> None:
    """Delete the temporary files of a writer that was killed."""
    for folder in (run, run / "checkpoints", run / "replay"):
        for path in folder.glob(f"{TEMPORARY}*"):
            discard(path)
