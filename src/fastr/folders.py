"""Directories that a command makes for what it is about to write."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fastr.errors import write_errors


@contextlib.contextmanager
def made(out: Path) -> Iterator[None]:
    """Make a directory, which goes away again if nothing comes of it; so do those above it."""
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
