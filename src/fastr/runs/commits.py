"""The commit that this code is, in a checkout and in a package built from one.

setup.py runs this file by itself to write the record, so it imports nothing of fastr.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "commit.json"
"""In a built package only: what `commit` found where it was built."""


def commit() -> dict[str, Any] | None:
    """Source tree's commit and whether files differ from it; None if nothing tells."""
    # An installed copy may lie inside another project's checkout, whose commit says nothing.
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return json.loads(RECORD.read_text()) if RECORD.exists() else None
    revision, changes = git("rev-parse", "HEAD"), git("status", "--porcelain")
    return {"revision": revision, "dirty": changes != ""} if revision else None


def git(*arguments: str) -> str | None:
    """Output of git about the source tree, or None if it fails or is not installed."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
