"""The replay: a ring of packed rows on the device, written in place and sampled there."""

import math
from collections.abc import Iterator
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

BLOCK = 1024
"""Priorities per block of the two-level search."""
PRIORITY_POWER = 0.4
"""LAP's alpha (App. TD7)."""
PRIORITY_FLOOR = 1.0
"""The smallest TD error that counts (App. TD7)."""


class Replay(eqx.Module):
    """One seed's ring of packed transitions, sampled uniformly.

    The number of rows ever added is the engine's clock and is passed in: it is the same for all
    seeds, so under vmap writing stays one slice update instead of a scatter.
    """

    rows: Float[Array, "capacity row"]

    @classmethod
    def empty(cls, capacity: int, row_dim: int) -> "Replay":
        """Room for this many rows."""
        return cls(jnp.zeros((capacity, row_dim)))

    def add(self, row: Float[Array, " row"], added: Int[Array, ""]) -> "Replay":
        """Add a row after `added` others; the oldest is overwritten once the ring is full."""
        return Replay(_written(self.rows, row, added % self.rows.shape[0]))

    def sample(
        self, size: int, added: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[Float[Array, "batch row"], Int[Array, " batch"]]:
        """Sample filled rows uniformly, with replacement; return them and their slots."""
        filled = jnp.minimum(added, self.rows.shape[0])
        slots = jax.random.randint(key, (size,), 0, filled)
        return self.rows[slots], slots

    def reweigh(
        self,
        slots: Int[Array, " batch"],  # noqa: ARG002
        td_error: Float[Array, " batch"],  # noqa: ARG002
        update: Int[Array, ""],  # noqa: ARG002
    ) -> "Replay":
        """Unchanged: all rows stay equally likely."""
        return self


class PrioritizedReplay(eqx.Module):
    """Loss-adjusted prioritised replay: a row is drawn in proportion to its priority (App. TD7).

    Priorities lie in blocks. A draw searches the cumulative sum of the blocks' totals and then that
    of one block: two short sums instead of one over the whole ring, which in float32 would also
    lose the resolution of a single row.
    """

    rows: Float[Array, "capacity row"]
    priorities: Float[Array, "block slot"]
    """0 where no row is yet."""
    largest: Float[Array, ""]
    """The priority that new rows enter with."""
    reset_updates: int = eqx.field(static=True)
    """Updates between two returns of `largest` to the largest stored: those of hard copies."""

    @classmethod
    def empty(cls, capacity: int, row_dim: int, reset_updates: int) -> "PrioritizedReplay":
        """Room for this many rows."""
        block = min(BLOCK, capacity)
        blocks = math.ceil(capacity / block)
        rows, priorities = jnp.zeros((capacity, row_dim)), jnp.zeros((blocks, block))
        return cls(rows, priorities, jnp.ones(()), reset_updates)

    def add(self, row: Float[Array, " row"], added: Int[Array, ""]) -> "PrioritizedReplay":
        """Add a row at the largest priority; the oldest is overwritten once the ring is full."""
        slot = added % self.rows.shape[0]
        block = self.priorities.shape[1]
        entry = self.largest.reshape(1, 1)
        priorities = jax.lax.dynamic_update_slice(
            self.priorities, entry, (slot // block, slot % block)
        )
        return replace(self, rows=_written(self.rows, row, slot), priorities=priorities)

    def sample(
        self,
        size: int,
        added: Int[Array, ""],  # noqa: ARG002  (what is not filled has priority 0)
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, "batch row"], Int[Array, " batch"]]:
        """Sample rows in proportion to their priorities, with replacement; and their slots."""
        totals = jnp.cumsum(jnp.sum(self.priorities, axis=1))
        block_key, slot_key = jax.random.split(key)
        blocks = _drawn(totals, jax.random.uniform(block_key, (size,)))
        inside = jnp.cumsum(self.priorities[blocks], axis=1)
        places = jax.vmap(_drawn_one)(inside, jax.random.uniform(slot_key, (size,)))
        slots = blocks * self.priorities.shape[1] + places
        return self.rows[slots], slots

    def reweigh(
        self,
        slots: Int[Array, " batch"],
        td_error: Float[Array, " batch"],
        update: Int[Array, ""],
    ) -> "PrioritizedReplay":
        """With priorities max(|TD error|, 1)^0.4 for the rows just used.

        New rows enter at the largest priority so far; at every hard copy of the targets that is
        reset to the largest one stored. A row that was sampled twice gets the larger of its two
        priorities, because the order of two writes to one place is undefined.
        """
        same = slots[:, None] == slots[None]
        worst = jnp.max(jnp.where(same, td_error[None], 0.0), axis=1)
        fresh = jnp.maximum(worst, PRIORITY_FLOOR) ** PRIORITY_POWER
        block = self.priorities.shape[1]
        priorities = self.priorities.at[slots // block, slots % block].set(fresh)
        stored = jnp.max(priorities)
        largest = jnp.maximum(self.largest, jnp.max(fresh))
        largest = jnp.where((update + 1) % self.reset_updates == 0, stored, largest)
        return replace(self, priorities=priorities, largest=largest)


def empty_replay(
    capacity: int, row_dim: int, priority_updates: int | None
) -> Replay | PrioritizedReplay:
    """An empty replay: uniform, or prioritised with this period of resets."""
    if priority_updates is None:
        return Replay.empty(capacity, row_dim)
    return PrioritizedReplay.empty(capacity, row_dim, priority_updates)


def _written(
    rows: Float[Array, "capacity row"], row: Float[Array, " row"], slot: Int[Array, ""]
) -> Float[Array, "capacity row"]:
    return jax.lax.dynamic_update_slice(rows, row[None], (slot, 0))


def _drawn(
    cumulative: Float[Array, " entry"], uniform: Float[Array, " batch"]
) -> Int[Array, " batch"]:
    """Entries drawn in proportion to their share of a cumulative sum."""
    return jax.vmap(lambda share: _drawn_one(cumulative, share))(uniform)


def _drawn_one(cumulative: Float[Array, " entry"], share: Float[Array, ""]) -> Int[Array, ""]:
    """The entry that this share of the total falls into; never one of weight 0."""
    # Counted rather than searched: a loop of bisections would cost an accelerator more. An entry of
    # weight 0 repeats the sum before it and is stepped over; rounding may reach the total itself,
    # so the last entry that adds anything is the highest answer.
    place = jnp.sum(cumulative <= share * cumulative[-1])
    last = jnp.sum(cumulative < cumulative[-1])
    return jnp.minimum(place, last).astype(jnp.int32)


SLICE_BYTES = 2**24
"""Size of a slice of all seeds: enough for a transfer at full speed, small for a run."""


def steps_at_once(rows: Float[Array, "seed capacity row"]) -> int:
    """How many agent steps of all seeds make a slice."""
    seeds, _, row_dim = rows.shape
    return max(1, SLICE_BYTES // (seeds * row_dim * rows.dtype.itemsize))


def fetched(
    rows: Float[Array, "seed capacity row"], start: int, end: int
) -> Float[np.ndarray, "step seed row"]:
    """The rows of the agent steps [start, end), on the host."""
    seeds, _, row_dim = rows.shape
    found = np.empty((end - start, seeds, row_dim), rows.dtype)
    # Placed as the ring is: every seed's rows stay on their device.
    part_of = jax.jit(_part, static_argnums=2, out_shardings=rows.sharding)
    for steps, slot in _stretches(rows, start, end):
        part = np.asarray(part_of(rows, slot, len(steps)))
        found[steps.start - start : steps.stop - start] = part.swapaxes(0, 1)
    return found


def written(
    rows: Float[Array, "seed capacity row"], start: int, new: Float[np.ndarray, "step seed row"]
) -> Float[Array, "seed capacity row"]:
    """Write new rows from this agent step on; the old ring must not be used again."""
    with_part = jax.jit(_with_part, donate_argnums=0, out_shardings=rows.sharding)
    for steps, slot in _stretches(rows, start, start + len(new)):
        part = new[steps.start - start : steps.stop - start].swapaxes(0, 1)
        # Waited for: a host that runs ahead would fill the device with slices.
        rows = with_part(rows, jax.device_put(part, rows.sharding), slot).block_until_ready()
    return rows


def _stretches(rows: Array, start: int, end: int) -> Iterator[tuple[range, int]]:
    """Agent steps that make a slice or less and lie side by side; and the slot of the first."""
    capacity, most = rows.shape[1], steps_at_once(rows)
    while start < end:
        slot = start % capacity
        steps = range(start, min(end, start + most, start + capacity - slot))
        yield steps, slot
        start = steps.stop


def _part(
    rows: Float[Array, "seed capacity row"], slot: Int[Array, ""], size: int
) -> Float[Array, "seed size row"]:
    return jax.lax.dynamic_slice_in_dim(rows, slot, size, axis=1)


def _with_part(
    rows: Float[Array, "seed capacity row"],
    part: Float[Array, "seed size row"],
    slot: Int[Array, ""],
) -> Float[Array, "seed capacity row"]:
    return jax.lax.dynamic_update_slice_in_dim(rows, part, slot, axis=1)
