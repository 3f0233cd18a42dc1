"""Files that are whole or absent: durable writes, checksums, deletion at one stroke."""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

# safetensors writes through its own ".tmpXXXXXX" files, so this prefix finds those leftovers too.
TEMPORARY = ".tmp"


@dataclass(frozen=True)
class FileRecord:
    """The size in bytes and the checksum of one file."""

    size: int
    sha256: str


def file_record(path: Path) -> FileRecord:
    """Size and checksum of a file as it is now."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(file.tell(), sha256)


def temporary(path: Path) -> Path:
    """Name a file or directory has while it is unfinished."""
    return path.with_name(f"{TEMPORARY}-{path.name}")


def sync(path: Path) -> None:
    """Bring a file's content, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file so that a kill leaves the old content or the new one."""
    unfinished = temporary(path)
    unfinished.write_bytes(content)
    sync(unfinished)
    os.replace(unfinished, path)
    sync(path.parent)


def discard(path: Path) -> None:
    """Delete a file or a directory that may be absent; a directory vanishes at one stroke."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    elif path.name.startswith(TEMPORARY):
        shutil.rmtree(path)
    else:
        os.rename(path, temporary(path))
        shutil.rmtree(temporary(path))
