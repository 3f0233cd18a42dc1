"""A run on disk.

directory.py is the run itself: configuration, rows, one writer at a time. checkpoints.py saves,
finds and deletes its checkpoints; index.py is one of them, verified and read; files.py writes
durably. Imported by name: untrusted.py validates files from elsewhere, provenance.py says where a
result comes from, summary.py has a run's final numbers, track.py TensorBoard and W&B.
"""

from fastr.runs.checkpoints import Snapshot, saved_frames
from fastr.runs.directory import (
    RunDirectory,
    RunWriter,
    first_difference,
    json_value,
    parsed_row,
    read_config,
    refuse_taken,
    refuse_within_run,
)
from fastr.runs.files import locked, made, refuse_used, temporary, user_of, write_bytes
from fastr.runs.index import CONFIG, ROWS, STATE, Checkpoint

__all__ = [
    "CONFIG",
    "ROWS",
    "STATE",
    "Checkpoint",
    "RunDirectory",
    "RunWriter",
    "Snapshot",
    "first_difference",
    "json_value",
    "locked",
    "made",
    "parsed_row",
    "read_config",
    "refuse_taken",
    "refuse_used",
    "refuse_within_run",
    "saved_frames",
    "temporary",
    "user_of",
    "write_bytes",
]
