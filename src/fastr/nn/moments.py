"""Running mean and variance of observations, without cancellation."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

STD_FLOOR = 1e-4


class Moments(eqx.Module):
    """Welford's recurrence: E[x^2] - E[x]^2 would lose offset-heavy coordinates in float32.

    It keeps the variance and an integer count: a float32 count stops at 2^24, and a float32 sum of
    squares loses new terms long before.
    """

    count: Int[Array, ""]
    mean: Float[Array, " state"]
    variance: Float[Array, " state"]

    @classmethod
    def empty(cls, size: int) -> "Moments":
        """No observation yet: normalisation is the identity."""
        return cls(jnp.zeros((), jnp.int32), jnp.zeros(size), jnp.zeros(size))

    def update(self, state: Float[Array, " state"]) -> "Moments":
        """Add one observation."""
        count = self.count + 1
        deviation = state - self.mean
        mean = self.mean + deviation / count
        square = deviation * (state - mean)
        return Moments(count, mean, self.variance + (square - self.variance) / count)

    @property
    def std(self) -> Float[Array, " state"]:
        """Standard deviation, at least 1e-4 so that constant coordinates map to 0."""
        variance = jnp.where(self.count > 0, self.variance, 1.0)
        return jnp.maximum(jnp.sqrt(variance + 1e-8), STD_FLOOR)

    def normalize(self, states: Float[Array, "*batch state"]) -> Float[Array, "*batch state"]:
        """States in units of the running standard deviation around the running mean."""
        rows = (1,) * (states.ndim - 1) + self.mean.shape
        return (states - self.mean.reshape(rows)) / self.std.reshape(rows)
