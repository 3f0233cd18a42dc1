"""Factorized spectral representations for reinforcement learning.

`fastr.load(RUN)` gives a trained policy and its features; `fastr.register(NAME, CONFIG)` adds a
method. Importing fastr is light: JAX is imported when one of these is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastr.training.config import register
    from fastr.training.trained import Trained, load

__all__ = ["Trained", "__version__", "load", "register"]
__version__ = "0.1.0"
_PLACES = {"load": "trained", "Trained": "trained", "register": "config"}


def __dir__() -> list[str]:
    """List also the names that are imported on first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a name that needs JAX."""
    if name not in _PLACES:
        raise AttributeError(f"module 'fastr' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fastr.training.{_PLACES[name]}"), name)
