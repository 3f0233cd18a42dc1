"""The ring of transitions: where rows go, and that draws are uniform over the filled ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.replay import Replay
from fastr.spec import EnvSpec
from fastr.types import Transition

CAPACITY, ROW_DIM = 8, 3


def row(index):
    """The row added after `index` others; its first entry is index + 1, never 0."""
    return jnp.asarray([index + 1.0, -index, 0.5 * index], jnp.float32)


@pytest.fixture(scope="module")
def add():
    return jax.jit(Replay.add)


@pytest.fixture(scope="module")
def sample():
    return jax.jit(Replay.sample, static_argnums=1)


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
