"""Saving a checkpoint: what a run hands over, checked and then written in a kill-proof order."""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from safetensors import SafetensorError

from fastr.runs.checkpoints.array_files import write_arrays
from fastr.runs.checkpoints.checkpoint import (
    CONFIG,
    ROWS,
    STATE,
    Checkpoint,
    checkpoint_name,
    rows_checksum,
)
from fastr.runs.checkpoints.files import FileRecord, discard, file_record, sync, temporary, write_bytes
from fastr.runs.checkpoints.index import INDEX, index_bytes
from fastr.runs.checkpoints.kept import discard_leftovers
from fastr.runs.checkpoints.segments import Segment, covers, write_segment
from fastr.core import UserError


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
            again = f"`fastr resume {quote(str(run))}`"
            good = f"the last good one is {last.name}, to continue with {again}"
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


def discard_partial(run: Path, snapshot: Snapshot) -> None:
    """Delete what a failed save left behind."""
    discard(run / "checkpoints" / checkpoint_name(snapshot.frames))
    discard(run / "replay" / snapshot.added.name)
    discard_leftovers(run)
