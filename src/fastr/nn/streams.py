"""Random streams without state: what is drawn follows from a seed, a purpose and a moment."""

import jax
from jaxtyping import Array, Int, PRNGKeyArray


def stream(
    seed: Int[Array, ""], purpose: Int[Array, ""] | int, index: Int[Array, ""] | int
) -> PRNGKeyArray:
    """The key of one seed for one purpose at one moment; nothing to carry or to save."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), index)
