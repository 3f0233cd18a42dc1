"""One writer at a time: a directory is locked by whoever writes to it."""

import fcntl
import os
from io import FileIO
from pathlib import Path

from fastr.core import UserError, write_errors

LOCK = "lock"


def locked(path: Path) -> FileIO:
    """Lock file of a directory, held until it is closed or this process ends."""
    with write_errors(path / LOCK):
        lock = FileIO(path / LOCK, "a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read(20).decode(errors="replace").strip() or "unknown"
            lock.close()
            raise UserError(
                f"{path} is in use by process {holder}; stop it or choose another --out."
            ) from error
        except BaseException:
            lock.close()
            raise
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n".encode())
    return lock


def user_of(path: Path) -> str | None:
    """The process that writes to this directory now, by its number; None if there is none."""
    try:
        with FileIO(path / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return (path / LOCK).read_text(errors="replace").strip()[:20] or "unknown"
    except OSError:
        return None
    return None
