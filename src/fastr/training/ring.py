"""Copying the replay between device and host in slices, so that neither holds it twice."""

from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Array, Float, Int

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
