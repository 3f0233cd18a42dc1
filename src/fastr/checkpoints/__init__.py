"""Checkpoints of a run: arrays, host state and replay rows that survive a kill at any moment.

A checkpoint directory appears whole, by the rename of a finished temporary one. Replay rows lie in
segments that are written once and shared by the checkpoints that need them.
"""

from fastr.checkpoints.array_files import tensors
from fastr.checkpoints.checkpoint import CONFIG, ROWS, STATE, Checkpoint, DamageError
from fastr.checkpoints.files import TEMPORARY, file_record, temporary, write_bytes
from fastr.checkpoints.index import read_index, whole_numbers
from fastr.checkpoints.kept import discard_after, discard_leftovers, latest, prune, saved_frames
from fastr.checkpoints.saving import Snapshot, save

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
