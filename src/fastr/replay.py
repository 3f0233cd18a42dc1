"""Transitions on the device: a ring of packed rows, written in place and sampled uniformly."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Replay(eqx.Module):
    """One seed's ring of packed transitions.

    The number of rows ever added is the engine's clock and is passed in: it is the same for all
    seeds, so under vmap writing stays one slice update instead of a scatter.
    """

    rows: Float[Array, "capacity row"]

    @classmethod
    def empty(cls, capacity: int, row_dim: int) -> "Replay":
        """Room for this many rows."""
        return cls(jnp.zeros((capacity, row_dim)))

    def add(self, row: Float[Array, " row"], added: Int[Array, ""]) -> "Replay":
        """With one more row, in place of the oldest once full; `added` rows came before it."""
        slot = added % self.rows.shape[0]
        return Replay(jax.lax.dynamic_update_slice(self.rows, row[None], (slot, 0)))

    def sample(
        self, size: int, added: Int[Array, ""], key: PRNGKeyArray
    ) -> Float[Array, "batch row"]:
        """Rows drawn uniformly, with replacement, from those that are filled."""
        filled = jnp.minimum(added, self.rows.shape[0])
        return self.rows[jax.random.randint(key, (size,), 0, filled)]
