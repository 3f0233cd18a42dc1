"""A run on disk.

directory.py is the run itself: configuration, rows, one writer at a time. checkpoints.py saves,
verifies, reads and deletes its checkpoints; files.py writes durably. Imported by name: untrusted.py
validates files from elsewhere, provenance.py says where a result comes from, summary.py has a run's
final numbers and sends its rows to TensorBoard and W&B.
"""

from fastr.runs.checkpoints import CONFIG, STATE, Checkpoint, Snapshot, saved_frames
from fastr.runs.directory import RunDirectory, RunWriter, json_value
from fastr.runs.files import locked, made, refuse_used, user_of

__all__ = [
    "CONFIG",
    "STATE",
    "Checkpoint",
    "RunDirectory",
    "RunWriter",
    "Snapshot",
    "json_value",
    "locked",
    "made",
    "refuse_used",
    "saved_frames",
    "user_of",
]
