"""Transitions as tables of frequencies: n draws of (s, a, s') with (s, a) uniform."""

import numpy as np
from jaxtyping import Float


def draw(
    density: Float[np.ndarray, "state action next"], n: int, generator: np.random.Generator
) -> Float[np.ndarray, "state action next"]:
    """The share of n i.i.d. transitions in each cell; n costs nothing, so it can be large."""
    chances = np.clip(density, 0.0, None).ravel()
    counts = generator.multinomial(n, chances / chances.sum())
    return counts.reshape(density.shape) / n


def population(
    density: Float[np.ndarray, "state action next"],
) -> Float[np.ndarray, "state action next"]:
    """The same at n = infinity."""
    return density / density.sum()
