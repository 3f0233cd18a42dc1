"""Factorized spectral representations for reinforcement learning.

`fastr.train(TASK)` trains a run and `fastr.load(RUN)` opens one: its policies, features and curve.
`fastr.register(NAME, CONFIG)` adds a method. Importing fastr is light: JAX is imported when one of
these is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastr.library import Policy, Run, load, train
    from fastr.training.config import register

__all__ = ["Policy", "Run", "__version__", "load", "register", "train"]
__version__ = "0.1.0"
_PLACES = dict.fromkeys(__all__, "library") | {"register": "training.config"}


def __dir__() -> list[str]:
    """List also the names that are imported on first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a name that needs JAX."""
    if name not in _PLACES:
        raise AttributeError(f"module 'fastr' has no attribute {name!r}")
    from importlib import import_module

    from fastr.core import configure_jax

    configure_jax()
    return getattr(import_module(f"fastr.{_PLACES[name]}"), name)
