"""Directories that a command makes for what it is about to write."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fastr.core import UserError, write_errors


def refuse_used(out: Path) -> None:
    """Raise UserError unless this directory is new or empty."""
    with write_errors(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} exists and is not an empty directory; choose another --out.")


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
