"""Random streams without state: a key is a function of seed, purpose and step."""

import jax
from jaxtyping import Array, Int, PRNGKeyArray


def stream(
    seed: Int[Array, ""], purpose: Int[Array, ""] | int, index: Int[Array, ""] | int
) -> PRNGKeyArray:
    """The key of one seed for one purpose at one step; there is no state to save."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), index)
