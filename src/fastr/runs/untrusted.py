"""Validation of untrusted files: no links, no unbounded reads, one sentence for malformed content.

docs/security.md lists what could be tried with each kind of file, and what prevents it.
"""

import contextlib
import json
import os
import resource
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

from fastr.core import UserError

TEXT_BYTES = 2**24
"""Largest JSON file that is read; parsed, it takes up to forty times as much memory."""
HEADER_BYTES = 2**23
"""Largest header of a safetensors file: names and shapes of fifty thousand arrays take less."""
LARGEST_COUNT = 2**60
"""Bytes, rows or frames: more than any disk holds."""


def require_own(paths: Iterable[Path]) -> None:
    """Raise UserError unless each path is absent, a regular file or a directory.

    A link may lead out of the directory that holds it, to be read or overwritten there; reading a
    pipe or a device may never end.
    """
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except (OSError, ValueError):
            continue
        if stat.S_ISLNK(mode):
            raise UserError(f"{path} is a link, which is not followed; replace it by the file.")
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UserError(f"{path} is neither a file nor a directory; remove it.")


def bounded_bytes(path: Path, limit: int = TEXT_BYTES) -> bytes:
    """Content of a small file; UserError if it is larger than the limit."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise UserError(f"{path} is larger than {limit // 2**20} MiB; is it the right file?")
        return file.read()


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error that a malformed file causes in its library into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{path} cannot be read ({reason}); is it damaged?") from error


def json_object(path: Path, limit: int = TEXT_BYTES) -> dict[str, Any]:
    """The JSON object in a file of bounded size."""
    with reading(path):
        content = json.loads(bounded_bytes(path, limit))
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object.")
    return content


def tensors(path: Path) -> Any:
    """Open a safetensors file, which compares its header with the file's size."""
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if header > HEADER_BYTES:
        raise UserError(f"{path} has a header of {header:,} bytes; {HEADER_BYTES:,} are enough.")
    # Not mapped into memory: truncating a mapped file kills the process that reads it.
    return safe_open(path, framework="np", backend="pread")


@contextlib.contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Let allocations fail once this process takes `size` more bytes of address space than now.

    For libraries that allocate whatever a file asks for. Without effect outside Linux, where the
    present size is not known.
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


def number(value: object) -> bool:
    """Whether this is a finite number below 1e300."""
    return type(value) in (int, float) and abs(value) < 1e300  # pyright: ignore


def whole_numbers(value: object, length: int) -> bool:
    """Whether this is a list of `length` whole numbers from 0 to LARGEST_COUNT."""
    return (
        isinstance(value, list)
        and len(value) == length
        and all(type(entry) is int and 0 <= entry <= LARGEST_COUNT for entry in value)
    )
