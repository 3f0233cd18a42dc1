"""Transitions between device and host: every row in its slot, and never many at once."""

import jax
import numpy as np
import pytest

from fastr.training import replay as ring

CAPACITY, SEEDS, ROW_DIM = 12, 2, 3


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """Five agent steps make a slice; how many were asked of the device each time."""
    found, part = [], ring._part

    def seen(rows, slot, size):
        found.append(size)
        return part(rows, slot, size)

    monkeypatch.setattr(ring, "_part", seen)
    monkeypatch.setattr(ring, "SLICE_BYTES", 5 * SEEDS * ROW_DIM * 4 + 1)
    return found


def numbered(start: int, end: int) -> np.ndarray:
    """Rows that differ in every number from those of all other agent steps."""
    return np.arange(start * 6, end * 6, dtype=np.float32).reshape(-1, SEEDS, ROW_DIM)


@pytest.mark.parametrize(("start", "end"), [(0, 12), (0, 3), (7, 19), (20, 31), (9, 12), (24, 24)])
def test_rows_lie_in_their_slots_and_come_back(sizes, start, end):
    empty = np.full((SEEDS, CAPACITY, ROW_DIM), -1, np.float32)
    rows = ring.written(jax.device_put(empty), start, numbered(start, end))
    expected = empty.copy()
    for step, row in zip(range(start, end), numbered(start, end), strict=True):
        expected[:, step % CAPACITY] = row
    np.testing.assert_array_equal(rows, expected)
    found = ring.fetched(rows, start, end)
    np.testing.assert_array_equal(found, numbered(start, end))
    # As it is saved: a view of another order would be copied once more.
    assert found.flags.c_contiguous
    assert max(sizes, default=0) <= 5


def test_a_ring_is_written_where_it_lies():
    rows = jax.device_put(np.zeros((SEEDS, CAPACITY, ROW_DIM), np.float32)) + 1
    place = rows.unsafe_buffer_pointer()
    after = ring.written(rows, 7, numbered(7, 19))
    assert rows.is_deleted()
    assert after.unsafe_buffer_pointer() == place


def test_a_slice_is_of_all_seeds_and_at_least_one_step(monkeypatch):
    rows = jax.device_put(np.zeros((SEEDS, CAPACITY, ROW_DIM), np.float32))
    for size, steps in ((240, 10), (239, 9), (1, 1)):
        monkeypatch.setattr(ring, "SLICE_BYTES", size)
        assert ring.steps_at_once(rows) == steps
