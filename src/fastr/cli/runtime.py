"""What JAX must be told before it is imported."""

import contextlib
import os
from importlib.metadata import version
from pathlib import Path

# Measured on two CPU cores with jaxlib 0.10.2: Eigen's products are up to 1.5 times as fast as
# YNNPACK's at these sizes, and a small update 1.3 times. Other releases may not know the flag, and
# XLA ends the process over a flag it does not know.
EIGEN = "--xla_cpu_experimental_ynn_fusion_type="


def configure() -> None:
    """Take device memory as needed, keep compiled programs, choose the faster CPU products."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if (cache := cache_folder()) is not None:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    flags = os.environ.get("XLA_FLAGS", "")
    if version("jaxlib").startswith("0.10.") and "ynn_fusion" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {EIGEN}".strip()


def cache_folder() -> Path | None:
    """Where compiled programs are kept; None for a user without a home, as in a container."""
    with contextlib.suppress(RuntimeError):
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(root) / "fastr" / "jax"
    return None
