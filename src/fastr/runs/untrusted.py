"""Files that somebody else may have made: what is asked of them before they are read.

docs/security.md says what could be tried with each kind of file, and what stops it.
"""

import contextlib
import os
import resource
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastr.core import UserError

TEXT_BYTES = 2**24
"""Of a JSON file that is read whole; once parsed it takes up to forty times as much memory."""


def require_own(paths: Iterable[Path]) -> None:
    """Raise UserError unless each of these is absent, or a plain file or directory in its place.

    A link may lead out of the directory that holds it, to be read or overwritten there; a pipe or a
    device may never end.
    """
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except (OSError, ValueError):
            continue
        if stat.S_ISLNK(mode):
            raise UserError(
                f"{path} is a link, and what it leads to may lie anywhere: put the file itself "
                "there, or a copy."
            )
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UserError(f"{path} is neither a file nor a directory; remove it.")


def bounded_bytes(path: Path, limit: int = TEXT_BYTES) -> bytes:
    """The content of a small file; UserError if it is larger than such a file can be."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise UserError(f"{path} is larger than {limit // 2**20} MiB, which it never is.")
        return file.read()


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a malformed file makes its library raise into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{path} cannot be read ({said}); is it damaged?") from error


@contextlib.contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """So many bytes of address space more than now, and no more: then an allocation fails.

    For libraries that allocate whatever a file asks for. Only Linux says how much is taken now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    except OSError:
        yield
        return
    limits = [pages * resource.getpagesize() + size, soft, hard]
    lowest = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
