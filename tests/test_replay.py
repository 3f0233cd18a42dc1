"""The ring of transitions: where rows go, and how likely each is drawn."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.core import EnvSpec
from fastr.training import replay
from fastr.training.replay import BLOCK, PrioritizedReplay, Replay
from fastr.transition import Transition

CAPACITY, ROW_DIM = 8, 3


def row(index):
    """The row added after `index` others; its first entry is index + 1, never 0."""
    return jnp.asarray([index + 1.0, -index, 0.5 * index], jnp.float32)


@pytest.fixture(scope="module")
def add():
    return jax.jit(Replay.add)


@pytest.fixture(scope="module")
def sample():
    return jax.jit(lambda *arguments: Replay.sample(*arguments)[0], static_argnums=1)


def filled(add, count):
    replay = Replay.empty(CAPACITY, ROW_DIM)
    for index in range(count):
        replay = add(replay, row(index), jnp.asarray(index))
    return replay


def test_rows_are_written_one_after_another(add):
    rows = np.asarray(filled(add, 5).rows)
    np.testing.assert_array_equal(rows[:5], np.stack([row(i) for i in range(5)]))
    np.testing.assert_array_equal(rows[5:], 0.0)


@pytest.mark.parametrize("count", [8, 9, 19])
def test_the_oldest_row_makes_room(add, count):
    rows = np.asarray(filled(add, count).rows)
    for index in range(count - CAPACITY, count):
        np.testing.assert_array_equal(rows[index % CAPACITY], row(index))


def test_add_writes_in_place():
    add = jax.jit(Replay.add, donate_argnums=0)
    replay = jax.tree.map(jnp.copy, Replay.empty(CAPACITY, ROW_DIM))
    before = replay.rows.unsafe_buffer_pointer()
    after = add(replay, row(0), jnp.asarray(0))
    assert replay.rows.is_deleted()
    assert after.rows.unsafe_buffer_pointer() == before


@pytest.mark.parametrize("count", [1, 5])
def test_empty_rows_are_never_drawn(add, sample, count):
    drawn = sample(filled(add, count), 512, jnp.asarray(count), jax.random.key(0))
    assert set(np.unique(drawn[:, 0])) == set(range(1, count + 1))


def test_whole_rows_are_drawn(add, sample):
    drawn = np.asarray(sample(filled(add, 8), 512, jnp.asarray(8), jax.random.key(1)))
    expected = np.stack([row(int(first) - 1) for first in drawn[:, 0]])
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize(("count", "critical"), [(5, 18.47), (19, 24.32)])
def test_draws_are_uniform(add, sample, count, critical):
    """Pearson's statistic below its 0.1 % point, for 4 and for 7 degrees of freedom."""
    draws = 20_000
    drawn = sample(filled(add, count), draws, jnp.asarray(count), jax.random.key(2))
    _, counts = np.unique(drawn[:, 0], return_counts=True)
    expected = draws / min(count, CAPACITY)
    assert len(counts) == min(count, CAPACITY)
    assert np.sum((counts - expected) ** 2 / expected) < critical


def test_another_key_draws_other_rows(add, sample):
    replay = filled(add, 8)
    first, again, other = (
        np.asarray(sample(replay, 64, jnp.asarray(8), jax.random.key(key))) for key in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_a_packed_row_unpacks_to_its_transition():
    spec = EnvSpec(state_dim=3, action_dim=2)
    rows = jnp.arange(2 * spec.row_dim, dtype=jnp.float32).reshape(2, spec.row_dim)
    batch = Transition.unpack(rows, spec)
    np.testing.assert_array_equal(batch.state, [[0, 1, 2], [10, 11, 12]])
    np.testing.assert_array_equal(batch.action, [[3, 4], [13, 14]])
    np.testing.assert_array_equal(batch.next_state, [[5, 6, 7], [15, 16, 17]])
    np.testing.assert_array_equal(batch.reward, [8, 18])
    np.testing.assert_array_equal(batch.continues, [9, 19])
    single = Transition.unpack(rows[1], spec)
    assert float(single.reward) == 18


# Prioritised.


def weighted(priorities, capacity):
    """A prioritised ring with rows 1, 2, ... and these priorities."""
    replay = PrioritizedReplay.empty(capacity, ROW_DIM, 250)
    padded = np.zeros(replay.priorities.size, np.float32)
    padded[: len(priorities)] = priorities
    rows = np.stack([row(index) for index in range(capacity)])
    return PrioritizedReplay(
        jnp.asarray(rows),
        jnp.asarray(padded).reshape(replay.priorities.shape),
        jnp.asarray(max(priorities), jnp.float32),
        250,
    )


@pytest.fixture(scope="module")
def draw():
    return jax.jit(PrioritizedReplay.sample, static_argnums=1)


def pearson(slots, priorities):
    """Pearson's statistic of the drawn slots against the exact distribution."""
    counts = np.bincount(slots, minlength=len(priorities))
    expected = len(slots) * np.asarray(priorities) / np.sum(priorities)
    used = expected > 0
    assert not counts[~used].any()
    return np.sum((counts[used] - expected[used]) ** 2 / expected[used])


def test_rows_are_drawn_in_proportion_to_their_priorities(draw):
    """Below the 0.1 % point for 5 degrees of freedom; a priority of 0 is never drawn."""
    priorities = [1.0, 3.0, 0.0, 2.0, 0.5, 10.0, 0.25]
    rows, slots = draw(weighted(priorities, 8), 20_000, jnp.asarray(7), jax.random.key(0))
    assert pearson(np.asarray(slots), [*priorities, 0.0]) < 20.52
    np.testing.assert_array_equal(rows[:, 0], np.asarray(slots) + 1.0)


def test_draws_are_right_across_blocks(draw):
    """Three blocks, the last one half empty; shares of all rows below and above the middle."""
    capacity = 2 * BLOCK + 100
    priorities = 1.0 + np.arange(capacity) % 7
    priorities[capacity - 50 :] = 0.0
    _, slots = draw(weighted(priorities, capacity), 50_000, jnp.asarray(0), jax.random.key(1))
    slots = np.asarray(slots)
    assert slots.max() < capacity - 50
    blocks = np.add.reduceat(priorities, [0, BLOCK, 2 * BLOCK])
    assert pearson(slots // BLOCK, blocks) < 13.82
    by_weight = np.array([priorities[priorities == w].sum() for w in range(1, 8)])
    assert pearson(np.asarray(priorities[slots] - 1, int), by_weight) < 22.46


def test_new_rows_enter_at_the_largest_priority():
    replay = PrioritizedReplay.empty(4, ROW_DIM, 250)
    add = jax.jit(PrioritizedReplay.add)
    replay = add(replay, row(0), jnp.asarray(0))
    assert float(replay.priorities[0, 0]) == 1.0
    replay = replace(replay, largest=jnp.asarray(2.5))
    for index in (1, 2, 3, 4):
        replay = add(replay, row(index), jnp.asarray(index))
    np.testing.assert_array_equal(replay.priorities[0], [2.5, 2.5, 2.5, 2.5])
    np.testing.assert_array_equal(replay.rows[0], row(4))


def test_a_row_drawn_twice_gets_the_larger_priority_in_either_order():
    for errors in ([32.0, 1.0, 243.0], [243.0, 1.0, 32.0]):
        slots = jnp.asarray([2, 0, 2])
        after = weighted([9.0] * 4, 4).reweigh(slots, jnp.asarray(errors), jnp.asarray(7))
        np.testing.assert_allclose(after.priorities[0], [1.0, 9.0, 9.0, 9.0], rtol=1e-6)


def test_priorities_are_the_formula_and_the_largest_is_reset():
    """max(|error|, 1)^0.4: 1 for errors up to 1; 32^0.4 = 4."""
    reweigh = jax.jit(PrioritizedReplay.reweigh)
    before = weighted([9.0, 9.0, 9.0, 1.0], 4)
    slots, errors = jnp.asarray([0, 1, 2]), jnp.asarray([0.3, 32.0, 1.0])
    after = reweigh(before, slots, errors, jnp.asarray(7))
    np.testing.assert_allclose(after.priorities[0], [1.0, 4.0, 1.0, 1.0], rtol=1e-6)
    # The largest so far stays, until the 250th update brings it back to the largest stored.
    assert float(after.largest) == 9.0
    assert float(reweigh(before, slots, errors, jnp.asarray(248)).largest) == 9.0
    assert float(reweigh(before, slots, errors, jnp.asarray(249)).largest) == pytest.approx(4.0)


SLOTS, SEEDS, WIDTH = 12, 2, 3


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """Five agent steps make a slice; how many were asked of the device each time."""
    found, part = [], replay._part

    def seen(rows, slot, size):
        found.append(size)
        return part(rows, slot, size)

    monkeypatch.setattr(replay, "_part", seen)
    monkeypatch.setattr(replay, "SLICE_BYTES", 5 * SEEDS * WIDTH * 4 + 1)
    return found


def numbered(start: int, end: int) -> np.ndarray:
    """Rows that differ in every number from those of all other agent steps."""
    return np.arange(start * 6, end * 6, dtype=np.float32).reshape(-1, SEEDS, WIDTH)


@pytest.mark.parametrize(("start", "end"), [(0, 12), (0, 3), (7, 19), (20, 31), (9, 12), (24, 24)])
def test_rows_lie_in_their_slots_and_come_back(sizes, start, end):
    empty = np.full((SEEDS, SLOTS, WIDTH), -1, np.float32)
    rows = replay.written(jax.device_put(empty), start, numbered(start, end))
    expected = empty.copy()
    for step, row in zip(range(start, end), numbered(start, end), strict=True):
        expected[:, step % SLOTS] = row
    np.testing.assert_array_equal(rows, expected)
    found = replay.fetched(rows, start, end)
    np.testing.assert_array_equal(found, numbered(start, end))
    # As it is saved: a view of another order would be copied once more.
    assert found.flags.c_contiguous
    assert max(sizes, default=0) <= 5


def test_a_ring_is_written_where_it_lies():
    rows = jax.device_put(np.zeros((SEEDS, SLOTS, WIDTH), np.float32)) + 1
    place = rows.unsafe_buffer_pointer()
    after = replay.written(rows, 7, numbered(7, 19))
    assert rows.is_deleted()
    assert after.unsafe_buffer_pointer() == place
