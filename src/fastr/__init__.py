"""Factorized spectral representations for reinforcement learning.

As a library, `fastr.load(RUN)` gives a trained policy and its features (docs/export.md). Importing
fastr itself is light: JAX comes with the first use of `load`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastr.training.trained import Trained, load

__all__ = ["Trained", "__version__", "load"]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    """Also the names that are not there yet, for whoever asks what there is."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """The names that bring in JAX, when they are first asked for."""
    if name not in ("Trained", "load"):
        raise AttributeError(f"module 'fastr' has no attribute {name!r}")
    from fastr.training import trained

    return getattr(trained, name)
