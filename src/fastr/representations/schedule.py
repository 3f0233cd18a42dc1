"""The variance-preserving perturbation of next states, shared by all spectral representations."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def vp_signal(levels: int) -> Float[Array, " level"]:
    """Share of the signal's variance at t = 1..T: exp(-0.1 t/T - 4.95 (t/T)^2); no clean level."""
    time = jnp.arange(1, levels + 1) / levels
    return jnp.exp(-0.1 * time - 4.95 * jnp.square(time))


def perturb(
    states: Float[Array, "batch state"], noise: Float[Array, "level batch state"]
) -> Float[Array, "level batch state"]:
    """Each state at each level: sqrt(abar) s' + sqrt(1 - abar) noise."""
    signal = vp_signal(noise.shape[0])[:, None, None]
    return jnp.sqrt(signal) * states[None] + jnp.sqrt(1.0 - signal) * noise
