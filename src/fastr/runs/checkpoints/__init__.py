"""Checkpoints of a run: arrays, host state and replay rows that survive a kill at any moment.

A checkpoint directory appears whole, by the rename of a finished temporary one. Replay rows lie in
segments that are written once and shared by the checkpoints that need them.
"""

from fastr.runs.checkpoints.array_files import tensors
from fastr.runs.checkpoints.checkpoint import CONFIG, ROWS, STATE, Checkpoint, DamageError
from fastr.runs.checkpoints.files import TEMPORARY, file_record, temporary, write_bytes
from fastr.runs.checkpoints.index import read_index, whole_numbers
from fastr.runs.checkpoints.kept import discard_after, discard_leftovers, latest, prune, saved_frames
from fastr.runs.checkpoints.saving import Snapshot, save

__all__ = [
    "CONFIG",
    "ROWS",
    "STATE",
    "TEMPORARY",
    "Checkpoint",
    "DamageError",
    "Snapshot",
    "discard_after",
    "discard_leftovers",
    "file_record",
    "latest",
    "prune",
    "read_index",
    "save",
    "saved_frames",
    "temporary",
    "tensors",
    "whole_numbers",
    "write_bytes",
]
