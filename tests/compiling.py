"""How the compiler is told to take its time."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def optimised() -> Iterator[None]:
    """For programs that run for seconds, which repays their optimisation."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", val=False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
