"""Where a result comes from: which code, on what machine, by which command."""

import importlib.metadata
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastr
from fastr.runs.commits import commit

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "mujoco", "dm_control", "gymnasium")


def provenance() -> dict[str, Any]:
    """Origin of a run: versions, commit, hardware, command line and time."""
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


def package_version(name: str) -> str | None:
    """Installed version of a package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
