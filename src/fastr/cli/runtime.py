"""Settings of JAX that must be in the environment before it is imported."""

import os
from importlib.metadata import version
from pathlib import Path

# Measured on two CPU cores with jaxlib 0.10.2: Eigen's products are up to 1.5 times as fast as
# YNNPACK's at these sizes, and a small update 1.3 times. Other releases may not know the flag, and
# XLA ends the process over a flag it does not know.
EIGEN = "--xla_cpu_experimental_ynn_fusion_type="


def configure() -> None:
    """Take device memory as needed, keep compiled programs, choose the faster CPU products."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "fastr" / "jax"))
    flags = os.environ.get("XLA_FLAGS", "")
    if version("jaxlib").startswith("0.10.") and "ynn_fusion" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {EIGEN}".strip()
