"""Where a result comes from: which code, on what machine, by which command.

setup.py runs this file by itself to record the commit, so it imports nothing of fastr at the top.
"""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "mujoco", "dm_control", "gymnasium")
RECORD = Path(__file__).parent / "commit.json"
"""Only in a built package: the commit that it was built from."""


def provenance() -> dict[str, Any]:
    """Origin of a run: versions, commit, hardware, command line and time."""
    import fastr

    return {
        "fastr": fastr.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "command": list(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> dict[str, Any] | None:
    """Commit of the source tree and whether files differ from it; None if it is unknown."""
    # An installed copy may lie inside another project's checkout, whose commit says nothing.
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
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


def package_version(name: str) -> str | None:
    """Installed version of a package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
