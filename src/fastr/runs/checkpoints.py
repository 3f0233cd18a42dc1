"""Checkpoints of a run: save one, find the newest sound one, delete the old ones.

A checkpoint directory appears whole, by the rename of a finished temporary one: a kill at any
moment leaves a sound run.
"""

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from fastr.runs.index import (
    CONFIG,
    INDEX,
    ROWS,
    STATE,
    Checkpoint,
    DamageError,
    Segment,
    checkpoint_name,
    covers,
    index_bytes,
    read_index,
)

CHECKPOINT_NAME = re.compile(r"[0-9]{9,18}")


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
    check_snapshot(snapshot, last)
    try:
        return write_checkpoint(run, snapshot, rows_bytes, last)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            discard(run / "checkpoints" / checkpoint_name(snapshot.frames))
            discard(run / "replay" / snapshot.added.name)
            discard_leftovers(run)
        good = "there is no earlier one"
        if last:
            again = f"`fastr resume {quote(str(run))}`"
            good = f"the last good one is {last.name}, to continue with {again}"
        name = checkpoint_name(snapshot.frames)
        raise UserError(f"Checkpoint {name} could not be written ({error}); {good}.") from error


def check_snapshot(snapshot: Snapshot, last: Checkpoint | None) -> None:
    """Raise ValueError unless the snapshot follows the last checkpoint without gap or overlap."""
    if snapshot.replay_rows.dtype != np.float32:
        raise ValueError(f"replay rows are {snapshot.replay_rows.dtype}")
    if last and snapshot.frames <= last.frames:
        raise ValueError(f"checkpoint at {snapshot.frames} frames after one at {last.frames}")
    if not covers(needed_segments(snapshot, last), snapshot.replay):
        raise ValueError(f"replay rows {snapshot.added} do not continue the last checkpoint's")


def needed_segments(snapshot: Snapshot, last: Checkpoint | None) -> list[Segment]:
    """Segments that hold the ring buffer's rows, the new one included."""
    known = [*(last.segments if last else []), snapshot.added]
    return [part for part in known if part.start < part.end and part.end > snapshot.replay.start]


def write_checkpoint(
    run: Path, snapshot: Snapshot, rows_bytes: int, last: Checkpoint | None
) -> Checkpoint:
    """Write all files of a checkpoint to the disk, then rename its directory."""
    sync(run / ROWS)
    shared = last.files if last else {}
    names = [segment.name for segment in needed_segments(snapshot, last)]
    files = {name: shared[name] for name in names if name in shared}
    if len(snapshot.replay_rows):
        files[snapshot.added.name] = write_segment(run, snapshot)
    final = run / "checkpoints" / checkpoint_name(snapshot.frames)
    unfinished = temporary(final)
    discard(unfinished)
    unfinished.mkdir(parents=True)
    files[STATE] = write_arrays(unfinished / STATE, snapshot.arrays)
    _, seeds, row_dim = snapshot.replay_rows.shape
    checkpoint = Checkpoint(
        run=run,
        frames=snapshot.frames,
        host=snapshot.host,
        rows_bytes=rows_bytes,
        rows_sha256=sha256(run / ROWS, rows_bytes),
        config_sha256=file_record(run / CONFIG).sha256,
        replay=snapshot.replay,
        row_shape=(seeds, row_dim),
        files=files,
    )
    write_bytes(unfinished / INDEX, index_bytes(checkpoint))
    os.rename(unfinished, final)
    sync(final.parent)
    sync(run)
    return checkpoint


def write_segment(run: Path, snapshot: Snapshot) -> FileRecord:
    """Write the new replay rows, over a segment of that name that no checkpoint needs any more."""
    final = run / "replay" / snapshot.added.name
    final.parent.mkdir(exist_ok=True)
    record = write_arrays(temporary(final), {"rows": snapshot.replay_rows})
    os.replace(temporary(final), final)
    sync(final.parent)
    return record


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
    folder = run / "checkpoints"
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        # Not an empty list: a run without checkpoints starts again, and its rows are cut off.
        raise UserError(f"{folder} cannot be read ({error.strerror}).") from error
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
