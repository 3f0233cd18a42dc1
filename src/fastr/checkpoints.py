"""Checkpoints of a run: arrays, host state and replay rows that survive a kill at any moment.

A checkpoint directory appears whole, by the rename of a finished temporary one. Replay rows lie in
segments that are written once and shared by the checkpoints that need them.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fastr.errors import UserError
from fastr.untrusted import bounded_bytes

FORMAT = 2
"""1 had all parameters of a network in one vector, and no evaluation under way."""
INDEX = "index.json"
ROWS = "rows.jsonl"
CONFIG = "config.json"
STATE = "state.safetensors"
# safetensors writes through its own ".tmpXXXXXX" files, so this prefix finds those leftovers too.
TEMPORARY = ".tmp"
SEGMENT_NAME = re.compile(r"([0-9]{9,18})-([0-9]{9,18})\.safetensors")
CHECKPOINT_NAME = re.compile(r"[0-9]{9,18}")
SHA256 = re.compile(r"[0-9a-f]{64}")
LARGEST_COUNT = 2**60
"""Bytes, rows or frames: more than any disk holds."""
HEADER_BYTES = 2**23
"""Of a safetensors file: fifty thousand arrays have their names and shapes in less."""


class DamageError(Exception):
    """Why one checkpoint cannot be used; an older one still may."""


@dataclass(frozen=True)
class FileRecord:
    """The size in bytes and the checksum of one file."""

    size: int
    sha256: str


@dataclass(frozen=True, order=True)
class Segment:
    """Replay rows [start, end), numbered by agent step since the run began."""

    start: int
    end: int

    @property
    def name(self) -> str:
        """The segment's file name."""
        return f"{self.start:09d}-{self.end:09d}.safetensors"

    @classmethod
    def parse(cls, name: str) -> "Segment | None":
        """Segment a file name stands for, or None if it is no segment's name."""
        if not (match := SEGMENT_NAME.fullmatch(name)):
            return None
        segment = cls(int(match[1]), int(match[2]))
        return segment if segment.name == name and segment.start < segment.end else None


@dataclass(frozen=True)
class Snapshot:
    """What a run hands over to be saved."""

    frames: int
    arrays: dict[str, np.ndarray]
    host: dict[str, Any]
    """Whatever else the run needs to continue, as a JSON object."""
    replay_rows: np.ndarray
    """The rows since the last checkpoint, float32 of shape (rows, seeds, row_dim); may be empty."""
    replay_start: int
    """The agent step of the first of these rows."""
    capacity: int
    """How many of the newest rows the ring buffer holds."""

    @property
    def added(self) -> Segment:
        """The range of the rows handed over."""
        return Segment(self.replay_start, self.replay_start + len(self.replay_rows))

    @property
    def row_shape(self) -> tuple[int, int]:
        """Seeds and numbers in one replay row."""
        _, seeds, row_dim = self.replay_rows.shape
        return seeds, row_dim

    @property
    def replay(self) -> Segment:
        """The range of the rows that the ring buffer holds."""
        return Segment(max(0, self.added.end - self.capacity), self.added.end)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk, as its index describes it; the arrays are read when asked for."""

    run: Path
    frames: int
    host: dict[str, Any]
    rows_bytes: int
    """The size of rows.jsonl when the checkpoint was made."""
    rows_sha256: str | None
    """The checksum of rows.jsonl then; runs of earlier versions have none."""
    config_sha256: str | None
    """The checksum of config.json then, likewise."""
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
            if file_record(self.location(name)) != record:
                raise DamageError(f"{name}: checksum")

    def verify_sizes(self) -> None:
        """Raise DamageError unless every file is there in its recorded size: quick, not sure."""
        rows = self.run / ROWS
        if (rows.stat().st_size if rows.is_file() else 0) < self.rows_bytes:
            raise DamageError(f"{ROWS}: shorter than recorded")
        if self.rows_sha256 not in (None, rows_checksum(self.run, self.rows_bytes)):
            raise DamageError(f"{ROWS}: checksum")
        for name, record in self.files.items():
            path = self.location(name)
            if not path.is_file():
                raise DamageError(f"{name}: missing")
            if path.stat().st_size != record.size:
                raise DamageError(f"{name}: size")

    def arrays(self) -> dict[str, np.ndarray]:
        """All device arrays, by name."""
        with reading(self.location(STATE)), tensors(self.location(STATE)) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def replay_rows(self) -> tuple[int, np.ndarray]:
        """First row's agent step and the rows the ring buffer held, oldest first."""
        # The allocation below is as large as the index says: it must first agree with the files.
        for segment in self.segments:
            self.check_segment(segment)
        start, end = self.replay.start, self.replay.end
        with reading(self.run / "replay"):
            rows = np.empty((end - start, *self.row_shape), np.float32)
        for segment in self.segments:
            first = max(segment.start, start)
            path = self.location(segment.name)
            with reading(path), tensors(path) as file:
                held = file.get_slice("rows")[first - segment.start :]
                rows[first - start : segment.end - start] = held
        return start, rows

    def check_segment(self, segment: Segment) -> None:
        """Raise UserError unless a segment's file holds the rows that its name promises."""
        path = self.location(segment.name)
        with reading(path), tensors(path) as file:
            header = file.get_slice("rows")
            found = header.get_dtype(), tuple(header.get_shape())
        if found != ("F32", (segment.end - segment.start, *self.row_shape)):
            raise UserError(f"{path} is not a replay segment of this run: it holds {found}.")


def checkpoint_name(frames: int) -> str:
    """Directory name of the checkpoint at this many frames."""
    return f"{frames:09d}"


def saved_frames(run: Path) -> list[int]:
    """Frames of every checkpoint directory, sound or not, in rising order."""
    found = [path.name for path in (run / "checkpoints").glob("*") if path.is_dir()]
    numbers = [int(name) for name in found if CHECKPOINT_NAME.fullmatch(name)]
    return sorted(frames for frames in numbers if checkpoint_name(frames) in found)


def latest(run: Path) -> Checkpoint:
    """Newest checkpoint that verifies; UserError if there is none."""
    damaged = []
    for frames in reversed(saved_frames(run)):
        try:
            checkpoint = read_index(run, frames)
            checkpoint.verify()
        except (DamageError, OSError) as problem:
            damaged.append(f"checkpoint {checkpoint_name(frames)} is damaged ({problem})")
        else:
            messages = tuple(f"{damage}; using {checkpoint.name}" for damage in damaged)
            return replace(checkpoint, skipped=messages)
    if damaged:
        raise UserError(f"{run} has no usable checkpoint: {'; '.join(damaged)}.")
    raise UserError(f"{run} has no checkpoint yet; `fastr resume {run}` goes on with the run.")


def save(run: Path, snapshot: Snapshot, *, rows_bytes: int, last: Checkpoint | None) -> Checkpoint:
    """Write one checkpoint; on a write error nothing of it stays and the older ones are intact."""
    check_snapshot(snapshot, last)
    try:
        return write_checkpoint(run, snapshot, rows_bytes, last)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            discard_partial(run, snapshot)
        good = "there is no earlier one"
        if last:
            good = f"the last good one is {last.name}, to continue with `fastr resume {run}`"
        name = checkpoint_name(snapshot.frames)
        raise UserError(f"Checkpoint {name} could not be written ({error}); {good}.") from error


def check_snapshot(snapshot: Snapshot, last: Checkpoint | None) -> None:
    """Raise ValueError unless the snapshot follows the last checkpoint without a gap."""
    rows, added = snapshot.replay_rows, snapshot.added
    if rows.dtype != np.float32 or rows.ndim != 3:
        raise ValueError(f"replay rows are {rows.dtype} of shape {rows.shape}")
    if snapshot.capacity < 1 or added.start < 0:
        raise ValueError(f"replay {added} with capacity {snapshot.capacity}")
    if last and snapshot.frames <= last.frames:
        raise ValueError(f"checkpoint at {snapshot.frames} frames after one at {last.frames}")
    if last and last.row_shape != snapshot.row_shape:
        raise ValueError(f"replay rows of shape {snapshot.row_shape} after {last.row_shape}")
    # Rows that a kept checkpoint relies on are never written a second time.
    if added.start < (last.replay.end if last else 0):
        raise ValueError(f"replay rows {added} were saved before")
    if not covers(needed_segments(snapshot, last), snapshot.replay):
        raise ValueError(f"rows are missing between the last checkpoint's replay and {added}")
    # safetensors writes this name without complaint and then cannot read the file.
    if "__metadata__" in snapshot.arrays:
        raise ValueError("an array cannot be named __metadata__")
    # Raises TypeError if it is not JSON, before anything is written.
    json.dumps(snapshot.host)


def needed_segments(snapshot: Snapshot, last: Checkpoint | None) -> list[Segment]:
    """Segments that hold the ring buffer's rows, the new one included."""
    known = [*(last.segments if last else []), snapshot.added]
    return [part for part in known if part.start < part.end and part.end > snapshot.replay.start]


def needed_files(snapshot: Snapshot, last: Checkpoint | None) -> dict[str, FileRecord]:
    """Size and checksum of the older segments that the new checkpoint shares."""
    if last is None:
        return {}
    names = [segment.name for segment in needed_segments(snapshot, last)]
    return {name: last.files[name] for name in names if name in last.files}


def covers(segments: list[Segment], wanted: Segment) -> bool:
    """Whether sorted segments join without gap or overlap and hold the wanted rows to the end."""
    if wanted.start == wanted.end:
        return not segments
    joined = all(left.end == right.start for left, right in itertools.pairwise(segments))
    return (
        bool(segments)
        and joined
        and segments[0].start <= wanted.start
        and (segments[-1].end == wanted.end)
    )


def write_checkpoint(
    run: Path, snapshot: Snapshot, rows_bytes: int, last: Checkpoint | None
) -> Checkpoint:
    """Write everything a checkpoint needs to the disk, and only then give it its name."""
    sync(run / ROWS)
    files, added = needed_files(snapshot, last), snapshot.added
    if added.start < added.end:
        files[added.name] = write_segment(run / "replay", added, snapshot.replay_rows)
    final = run / "checkpoints" / checkpoint_name(snapshot.frames)
    unfinished = temporary(final)
    discard(unfinished)
    unfinished.mkdir(parents=True)
    files[STATE] = write_arrays(unfinished / STATE, snapshot.arrays)
    checkpoint = Checkpoint(
        run=run,
        frames=snapshot.frames,
        host=snapshot.host,
        rows_bytes=rows_bytes,
        rows_sha256=rows_checksum(run, rows_bytes),
        config_sha256=file_record(run / CONFIG).sha256,
        replay=snapshot.replay,
        row_shape=snapshot.row_shape,
        files=files,
    )
    write_bytes(unfinished / INDEX, index_bytes(checkpoint))
    os.rename(unfinished, final)
    sync(final.parent)
    sync(run)
    return checkpoint


def write_segment(folder: Path, segment: Segment, rows: np.ndarray) -> FileRecord:
    """Write replay rows under their final name, replacing a dead branch's file of that name."""
    folder.mkdir(exist_ok=True)
    final = folder / segment.name
    record = write_arrays(temporary(final), {"rows": rows})
    os.replace(temporary(final), final)
    sync(folder)
    return record


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> FileRecord:
    """Write arrays to a file and to the disk; contiguous arrays are not copied."""
    # safetensors writes a strided array's raw memory, which is not its content.
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)
    # safetensors makes files that only their owner can read; follow the directory instead.
    path.chmod(path.parent.stat().st_mode & 0o666)
    sync(path)
    return file_record(path)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file so that a kill leaves the old content or the new one."""
    unfinished = temporary(path)
    unfinished.write_bytes(content)
    sync(unfinished)
    os.replace(unfinished, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Bring a file's content, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_record(path: Path) -> FileRecord:
    """Size and checksum of a file as it is now."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(file.tell(), sha256)


def rows_checksum(run: Path, size: int) -> str:
    """Checksum of the first bytes of rows.jsonl, all of them measured before a checkpoint."""
    digest = hashlib.sha256()
    if size:
        with (run / ROWS).open("rb") as file:
            while piece := file.read(min(size, 2**20)):
                digest.update(piece)
                size -= len(piece)
    return digest.hexdigest()


def optional_checksum(content: dict[str, Any], key: str) -> str | None:
    """Checksum from an index, which earlier versions did not write."""
    return None if content.get(key) is None else checksum(content[key])


def temporary(path: Path) -> Path:
    """Name a file or directory has while it is unfinished."""
    return path.with_name(f"{TEMPORARY}-{path.name}")


def discard(path: Path) -> None:
    """Delete a file or a directory that may be absent; a directory vanishes at one stroke."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    elif path.name.startswith(TEMPORARY):
        shutil.rmtree(path)
    else:
        os.rename(path, temporary(path))
        shutil.rmtree(temporary(path))


def discard_partial(run: Path, snapshot: Snapshot) -> None:
    """Delete what a failed save left behind."""
    discard(run / "checkpoints" / checkpoint_name(snapshot.frames))
    discard(run / "replay" / snapshot.added.name)
    discard_leftovers(run)


def discard_leftovers(run: Path) -> None:
    """Delete the temporary files of a writer that was killed."""
    for folder in (run, run / "checkpoints", run / "replay"):
        for path in folder.glob(f"{TEMPORARY}*"):
            discard(path)


def discard_after(checkpoint: Checkpoint) -> None:
    """Delete what was saved after this checkpoint, a future that will not happen."""
    for frames in saved_frames(checkpoint.run):
        if frames > checkpoint.frames:
            discard(checkpoint.run / "checkpoints" / checkpoint_name(frames))
    discard_unused_segments(checkpoint.run)


def prune(run: Path, *, keep: int) -> None:
    """Delete all but the newest checkpoints, and the replay segments that none of them needs."""
    for frames in saved_frames(run)[:-keep]:
        discard(run / "checkpoints" / checkpoint_name(frames))
    discard_unused_segments(run)


def discard_unused_segments(run: Path) -> None:
    """Delete the replay segments that no checkpoint needs."""
    used = set()
    for frames in saved_frames(run):
        try:
            used.update(read_index(run, frames).files)
        except (DamageError, UserError, OSError):
            # It cannot say what it needs, so nothing is deleted until it is pruned itself.
            return
    for path in (run / "replay").glob("*"):
        if Segment.parse(path.name) and path.name not in used:
            discard(path)


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
    """Checksum of a JSON object, whatever its layout."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_index(run: Path, frames: int) -> Checkpoint:
    """Checkpoint as index.json describes it, or DamageError; its files are not looked at."""
    path = run / "checkpoints" / checkpoint_name(frames) / INDEX
    content = checked_content(path)
    replay, files = content.get("replay"), content.get("files")
    host = content.get("host")
    if not (isinstance(replay, dict) and isinstance(files, dict) and isinstance(host, dict)):
        raise DamageError(f"{INDEX}: content")
    checkpoint = Checkpoint(
        run=run,
        frames=count(content, "frames"),
        host=host,
        rows_bytes=count(content, "rows_bytes"),
        rows_sha256=optional_checksum(content, "rows_sha256"),
        config_sha256=optional_checksum(content, "config_sha256"),
        replay=Segment(count(replay, "start"), count(replay, "end")),
        row_shape=(count(content, "seeds"), count(content, "row_dim")),
        files={plain_name(name, path): parsed_record(entry) for name, entry in files.items()},
    )
    sound = checkpoint.frames == frames and STATE in files
    if not sound or not covers(checkpoint.segments, checkpoint.replay):
        raise DamageError(f"{INDEX}: content")
    return checkpoint


def checked_content(path: Path) -> dict[str, Any]:
    """JSON object in an index of this format whose checksum is right."""
    if not path.is_file():
        raise DamageError(f"{INDEX}: missing")
    try:
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


def count(content: dict[str, Any], key: str) -> int:
    """Whole number that is not negative, from an index."""
    value = content.get(key)
    if type(value) is not int or not 0 <= value <= LARGEST_COUNT:
        raise DamageError(f"{INDEX}: {key}")
    return value


def whole_numbers(value: object, length: int) -> bool:
    """Whether this is a list of so many whole numbers that are not negative and not absurd."""
    return (
        isinstance(value, list)
        and len(value) == length
        and all(type(entry) is int and 0 <= entry <= LARGEST_COUNT for entry in value)
    )


def parsed_record(entry: object) -> FileRecord:
    """File's size and checksum, from an index."""
    if not isinstance(entry, dict):
        raise DamageError(f"{INDEX}: files")
    return FileRecord(count(entry, "bytes"), checksum(entry.get("sha256")))


def checksum(value: object) -> str:
    """Checksum from an index."""
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise DamageError(f"{INDEX}: sha256")
    return value


def plain_name(name: str, index: Path) -> str:
    """Name itself, or UserError if it is not that of a file in this run."""
    if name != STATE and Segment.parse(name) is None:
        raise UserError(f"{index} names {name!r:.80}, which is no file of a checkpoint.")
    return name


def tensors(path: Path) -> Any:
    """Open safetensors file, which checks its header against the file's size."""
    with path.open("rb") as file:
        promised = int.from_bytes(file.read(8), "little")
    if promised > HEADER_BYTES:
        raise UserError(f"{path} has a header of {promised:,} bytes; {HEADER_BYTES:,} are enough.")
    # Not mapped into memory: a file cut while it is mapped kills the process that reads it.
    return safe_open(path, framework="np", backend="pread")


@contextlib.contextmanager
def reading(path: Path):
    """Turn whatever a malformed file makes safetensors or numpy raise into a UserError."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{path} cannot be read ({error}).") from error
