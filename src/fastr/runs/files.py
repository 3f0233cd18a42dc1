"""Files that are whole or absent: durable writes, locks, and output folders of commands."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from fastr.core import UserError, write_errors

# safetensors writes through its own ".tmpXXXXXX" files, so this prefix finds those leftovers too.
TEMPORARY = ".tmp"
LOCK = "lock"


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and SHA-256 of one file."""

    bytes: int
    sha256: str


def file_record(path: Path) -> FileRecord:
    """Size and checksum of a file as it is now."""
    size = path.stat().st_size
    return FileRecord(size, sha256(path, size))


def sha256(path: Path, size: int) -> str:
    """Checksum of the first `size` bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(min(size, 2**20)):
            digest.update(piece)
            size -= len(piece)
    return digest.hexdigest()


def temporary(path: Path) -> Path:
    """Name of a file or directory while it is being written."""
    return path.with_name(f"{TEMPORARY}-{path.name}")


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's entries, to the disk."""
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
    """Delete a file or a directory, if it exists; a directory loses its name before its content."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    elif path.name.startswith(TEMPORARY):
        shutil.rmtree(path)
    else:
        os.rename(path, temporary(path))
        shutil.rmtree(temporary(path))


def locked(path: Path) -> FileIO:
    """Lock a directory for writing, until the file is closed or this process ends."""
    with write_errors(path / LOCK):
        lock = FileIO(path / LOCK, "a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            if not isinstance(error, BlockingIOError):
                raise
            raise UserError(
                f"{path} is in use by process {_holder(path)}; stop it or choose another --out."
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n".encode())
    return lock


def user_of(path: Path) -> str | None:
    """Number of the process that holds the lock of a directory; None if nothing does."""
    try:
        with FileIO(path / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(path)
    except OSError:
        return None
    return None


def _holder(path: Path) -> str:
    with FileIO(path / LOCK) as lock:
        return lock.read(20).decode(errors="replace").strip() or "unknown"


def refuse_used(out: Path) -> None:
    """Raise UserError unless this directory is new or empty."""
    with write_errors(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} exists and is not an empty directory; choose another --out.")


@contextlib.contextmanager
def made(out: Path) -> Iterator[None]:
    """Create a directory and its parents; if the block fails, remove those that stayed empty."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        with write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise
