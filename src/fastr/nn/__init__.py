"""Layers, activations with their own gradients, the optimiser, precision, running statistics.

`networks` has the layers of all methods, `activations` what lies between two products, `optim` Adam
and target averages on packed parameters, `precision` the arithmetic, `moments` the normalisation of
observations. `stream` makes random keys without state.
"""

import jax
from jaxtyping import Array, Int, PRNGKeyArray


def stream(
    seed: Int[Array, ""], purpose: Int[Array, ""] | int, index: Int[Array, ""] | int
) -> PRNGKeyArray:
    """The key of one seed for one purpose at one step; there is no state to save."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), index)
