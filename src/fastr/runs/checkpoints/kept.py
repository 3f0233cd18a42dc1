"""The checkpoints that a run keeps: which there are, the newest sound one, what is deleted when."""

import os
import re
from dataclasses import replace
from pathlib import Path
from shlex import quote

from fastr.runs.checkpoints.checkpoint import Checkpoint, DamageError, checkpoint_name
from fastr.runs.checkpoints.files import TEMPORARY, discard
from fastr.runs.checkpoints.index import read_index
from fastr.runs.checkpoints.segments import Segment
from fastr.core import UserError

CHECKPOINT_NAME = re.compile(r"[0-9]{9,18}")


def saved_frames(run: Path) -> list[int]:
    """Frames of every checkpoint directory, sound or not, in rising order."""
    found = folders(run / "checkpoints")
    numbers = [int(name) for name in found if CHECKPOINT_NAME.fullmatch(name)]
    return sorted(frames for frames in numbers if checkpoint_name(frames) in found)


def folders(path: Path) -> list[str]:
    """Names of the directories in a directory that may be absent; UserError if it is closed."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error


def latest(run: Path) -> Checkpoint:
    """Newest checkpoint that verifies; UserError if there is none.

    One that cannot be read may be sound: UserError too, so that nothing takes its place.
    """
    damaged = []
    for frames in reversed(saved_frames(run)):
        try:
            checkpoint = read_index(run, frames)
            checkpoint.verify()
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror}).") from error
        except DamageError as problem:
            damaged.append(f"checkpoint {checkpoint_name(frames)} is damaged ({problem})")
        else:
            messages = tuple(f"{damage}; using {checkpoint.name}" for damage in damaged)
            return replace(checkpoint, skipped=messages)
    if damaged:
        raise UserError(f"{run} has no usable checkpoint: {'; '.join(damaged)}.")
    raise UserError(f"{run} has no checkpoint yet; `fastr resume {quote(str(run))}` goes on.")


def prune(run: Path, *, keep: int) -> None:
    """Delete all but the newest checkpoints, and the replay segments that none of them needs."""
    for frames in saved_frames(run)[:-keep]:
        discard(run / "checkpoints" / checkpoint_name(frames))
    discard_unused_segments(run)


def discard_after(checkpoint: Checkpoint) -> None:
    """Delete what was saved after this checkpoint, a future that will not happen."""
    for frames in saved_frames(checkpoint.run):
        if frames > checkpoint.frames:
            discard(checkpoint.run / "checkpoints" / checkpoint_name(frames))
    discard_unused_segments(checkpoint.run)


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


def discard_leftovers(run: Path) -> None:
    """Delete the temporary files of a writer that was killed."""
    for folder in (run, run / "checkpoints", run / "replay"):
        for path in folder.glob(f"{TEMPORARY}*"):
            discard(path)
