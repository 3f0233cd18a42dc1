"""Arrays in safetensors files: written to the disk, and read with distrust."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from fastr.runs.checkpoints.files import FileRecord, file_record, sync
from fastr.core import UserError

HEADER_BYTES = 2**23
"""Of a safetensors file: fifty thousand arrays have their names and shapes in less."""


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> FileRecord:
    """Write arrays to a file and to the disk; contiguous arrays are not copied."""
    # safetensors writes a strided array's raw memory, which is not its content.
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)
    # safetensors makes files that only their owner can read; follow the directory instead.
    path.chmod(path.parent.stat().st_mode & 0o666)
    sync(path)
    return file_record(path)


def tensors(path: Path) -> Any:
    """Open safetensors file, which checks its header against the file's size."""
    with path.open("rb") as file:
        promised = int.from_bytes(file.read(8), "little")
    if promised > HEADER_BYTES:
        raise UserError(f"{path} has a header of {promised:,} bytes; {HEADER_BYTES:,} are enough.")
    # Not mapped into memory: a file cut while it is mapped kills the process that reads it.
    return safe_open(path, framework="np", backend="pread")
