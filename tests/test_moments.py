"""Running statistics against NumPy's in float64, where float32 is at its worst."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.nn.moments import STD_FLOOR, Moments

COUNT = 5_000


@pytest.fixture(scope="module")
def data():
    """Columns: standard, offset by 1e4, tiny, constant."""
    generator = np.random.default_rng(0)
    scale, offset = [1.0, 1.0, 0.01, 0.0], [0.5, 1e4, -0.3, 7.3]
    return generator.normal(offset, scale, size=(COUNT, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def moments(data):
    @jax.jit
    def gathered(rows):
        return jax.lax.scan(lambda moments, row: (moments.update(row), None), empty, rows)[0]

    empty = Moments.empty(data.shape[1])
    return gathered(jnp.asarray(data))


def test_statistics_are_numpys(moments, data):
    exact = data.astype(np.float64)
    assert moments.count == COUNT
    ordinary = np.array([0, 2])
    np.testing.assert_allclose(moments.mean[ordinary], exact.mean(0)[ordinary], rtol=2e-5)
    np.testing.assert_allclose(moments.std[ordinary], exact.std(0)[ordinary], rtol=2e-4)


def test_an_offset_does_not_cancel_the_variance(moments, data):
    column = data[:, 1]
    # E[x^2] - E[x]^2 in float32: the squares are 1e8, whose spacing is 8, and the variance 1.
    naive = np.mean(column**2, dtype=np.float32) - np.mean(column, dtype=np.float32) ** 2
    assert abs(naive - 1.0) > 0.5
    # The mean itself has spacing 1e-3 there, and late corrections are smaller than that.
    assert moments.mean[1] == pytest.approx(column.astype(np.float64).mean(), abs=0.05)
    assert moments.std[1] == pytest.approx(column.astype(np.float64).std(), rel=0.01)


def test_a_constant_coordinate_maps_to_zero(moments, data):
    assert moments.std[3] == pytest.approx(STD_FLOOR, rel=1e-5)
    np.testing.assert_array_equal(moments.normalize(jnp.asarray(data[:5]))[:, 3], np.zeros(5))


def test_normalized_data_are_standard(moments, data):
    normal = np.asarray(moments.normalize(jnp.asarray(data)))[:, [0, 2]]
    np.testing.assert_allclose(normal.mean(0), 0.0, atol=2e-3)
    np.testing.assert_allclose(normal.std(0), 1.0, rtol=1e-3)


def test_normalize_takes_any_number_of_leading_axes(moments, data):
    rows = jnp.asarray(data[:6])
    expected = (np.asarray(rows) - np.asarray(moments.mean)) / np.asarray(moments.std)
    np.testing.assert_allclose(moments.normalize(rows[0]), expected[0], rtol=1e-6)
    np.testing.assert_allclose(
        moments.normalize(rows.reshape(2, 3, 4)), expected.reshape(2, 3, 4), rtol=1e-6
    )


def test_nothing_seen_is_the_identity():
    states = jnp.asarray([[1.5, -2.0], [1e4, 0.0]])
    np.testing.assert_allclose(Moments.empty(2).normalize(states), states, rtol=1e-7)


def test_one_observation_maps_to_zero():
    state = jnp.asarray([3.0, -5.0])
    moments = Moments.empty(2).update(state)
    np.testing.assert_array_equal(moments.mean, state)
    np.testing.assert_array_equal(moments.normalize(state), np.zeros(2))


def test_statistics_hold_beyond_what_float32_can_count():
    """After 2^24 observations, a million more of another spread move the variance in proportion."""
    before, more = 2**24, 2**20
    start = Moments(jnp.asarray(before, jnp.int32), jnp.zeros(1), jnp.ones(1))
    rows = np.random.default_rng(1).normal(0.0, 3.0, (more, 1)).astype(np.float32)
    after = jax.jit(lambda m, r: jax.lax.scan(lambda m, x: (m.update(x), None), m, r)[0])(
        start, rows
    )
    assert int(after.count) == before + more
    assert float(after.variance[0]) == pytest.approx(
        (before + 9 * more) / (before + more), rel=5e-3
    )
