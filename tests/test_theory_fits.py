"""Both objectives' minimisers on tables, and Fourier features, against the equations in loops."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from fastr.studies.theory.fits import (
    Descent,
    Factored,
    Fit,
    Joint,
    empirical_loss,
    factored_fit,
    joint_fit,
    ranking_fits,
    ranking_loss,
    risk,
)
from fastr.studies.theory.intervals import crossing, exponents, interval, log_interval
from fastr.studies.theory.mdp import draw, energy, mixture, population
from fastr.studies.theory.ratio import (
    bellman_residual,
    normalised_fourier,
    waves_of,
)
from fastr.studies.theory.sieves import merged, sample, sieve_risk
from fastr.studies.theory.waves import waves


def counted(triples, shape):
    """Shares of observed (s, a, s')."""
    shares = np.zeros(shape)
    for triple in triples:
        shares[triple] += 1 / len(triples)
    return shares


def observed(n, shape, seed):
    return [tuple(triple) for triple in np.random.default_rng(seed).integers(shape, size=(n, 3))]


def test_the_l2_loss_is_the_sum_over_samples():
    shape, generator = (4, 3, 4), np.random.default_rng(0)
    triples = observed(50, shape, 1)
    fit = Fit(generator.normal(size=(4, 3, 2)), generator.normal(size=(4, 2)), 1.0)
    score = 1.0 + np.einsum("sak,xk->sax", fit.feature, fit.next_factor)
    losses = [
        -2 * score[s, a, x] + np.mean([score[s, a, u] ** 2 for u in range(4)])
        for s, a, x in triples
    ]
    expected = np.mean(losses)
    assert empirical_loss(fit, counted(triples, shape)) == pytest.approx(expected)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_the_joint_minimiser_has_the_eckart_young_loss(offset):
    shape = (4, 3, 5)
    shares = counted(observed(300, shape, 2), shape)
    seen = shares.sum(-1)
    assert seen.min() > 0
    targets = (shares / seen[..., None] * 5 - offset).reshape(12, 5)
    weighted = np.sqrt(seen.reshape(12, 1) / 5) * targets
    sizes = np.linalg.svd(weighted, compute_uv=False)
    fit = joint_fit(shares, 2, offset)
    left = np.sqrt(seen.reshape(12, 1) / 5) * (targets - (fit.score - offset).reshape(12, 5))
    assert np.square(left).sum() == pytest.approx(np.square(sizes[2:]).sum())


def test_a_pair_without_data_gets_a_feature_of_zero():
    shares = np.zeros((2, 2, 3))
    shares[0, 0, 1] = shares[1, 1, 2] = 0.5
    fit = joint_fit(shares, 2)
    assert not fit.feature[0, 1].any()
    np.testing.assert_allclose(fit.score[0, 0], [0.0, 3.0, 0.0], atol=1e-12)


def test_the_factored_minimiser_cannot_be_improved_nearby():
    shape, generator = (5, 4, 5), np.random.default_rng(0)
    shares = counted(observed(400, shape, 3), shape)
    fit = factored_fit(shares, 2, generator)
    loss = empirical_loss(fit, shares)
    assert loss >= empirical_loss(joint_fit(shares, 2), shares) - 1e-12
    # psi stays a product of factors when a row or a column is scaled.
    for size in (1e-3, 1e-2):
        for _ in range(50):
            rows, columns = (1 + size * generator.normal(size=(n, 2)) for n in shape[:2])
            moved = fit._replace(feature=fit.feature * rows[:, None] * columns[None])
            assert empirical_loss(moved, shares) >= loss - 1e-9


def test_both_classes_recover_an_exact_cp_kernel():
    density = mixture(12, 8, np.random.default_rng(0)).mdp.density
    factored = factored_fit(population(density), 6, np.random.default_rng(1), sweeps=2000)
    assert risk(joint_fit(population(density), 6).score, density) < 1e-20
    assert risk(factored.score, density) < 1e-6 * density.var()


def test_shares_are_those_of_the_density():
    density = energy(5, 3, np.random.default_rng(0)).mdp.density
    shares = draw(density, 10**7, np.random.default_rng(1))
    assert shares.sum() == pytest.approx(1.0)
    expected = population(density)
    assert (np.abs(shares - expected) < 5 * np.sqrt(expected / 1e7)).all()
    np.testing.assert_allclose(expected.sum(-1), 1 / 15)


@pytest.mark.parametrize("kind", ["factored", "joint"])
def test_the_ranking_loss_is_the_one_of_the_paper_with_the_sample_as_batch(kind):
    """Eq. (nce) at one noise level: each row's candidates are all next states of the sample."""
    shape, generator = (4, 3, 5), np.random.default_rng(0)
    triples = observed(40, shape, 5)
    psi = generator.normal(size=(4, 3, 2))
    tables = Joint(jnp.asarray(psi), jnp.asarray(generator.normal(size=(5, 2))))
    if kind == "factored":
        state, action = generator.normal(size=(4, 2)), generator.normal(size=(3, 2))
        psi = state[:, None] * action[None]
        tables = Factored(jnp.asarray(state), jnp.asarray(action), tables.target)
    m = np.asarray(tables.target)
    total = 0.0
    for s, a, x in triples:
        candidates = [math.exp(psi[s, a] @ m[u]) for _, _, u in triples]
        total -= math.log(math.exp(psi[s, a] @ m[x]) / sum(candidates))
    expected = total / len(triples) - math.log(len(triples))
    shares = jnp.asarray(counted(triples, shape), jnp.float32)
    assert float(ranking_loss(tables, shares, jnp.zeros(()))) == pytest.approx(expected, abs=1e-4)
    size = sum(float(jnp.sum(leaf**2)) for leaf in tables)
    penalised = float(ranking_loss(tables, shares, jnp.asarray(0.5)))
    assert penalised == pytest.approx(expected + 0.25 * size, rel=1e-4)


@pytest.mark.parametrize("kind", ["factored", "joint"])
def test_the_ranking_loss_recovers_an_energy(kind):
    density = energy(8, 6, np.random.default_rng(0), features=3, scale=1.0).mdp.density
    shares = population(density)[None]
    generator = np.random.default_rng(1)
    fits = ranking_fits(
        kind, shares, np.array([np.inf]), 3, [generator], Descent(steps=400, starts=4)
    )
    assert risk(fits.density[0], density) < 1e-3 * density.var()
    np.testing.assert_allclose(fits.density.mean(-1), 1.0, rtol=1e-5)


def test_a_sample_is_fitted_alike_wherever_it_stands():
    samples = [population(energy(4, 3, np.random.default_rng(i)).mdp.density) for i in range(2)]

    def fitted(order):
        generators = [np.random.default_rng(i) for i in order]
        shares, n = np.stack([samples[i] for i in order]), np.full(2, 100.0)
        return ranking_fits("joint", shares, n, 2, generators, Descent(steps=4, starts=2)).density

    np.testing.assert_allclose(fitted((0, 1)), fitted((1, 0))[::-1], rtol=1e-5)


def test_sines_and_cosines_are_the_gaussian_kernel():
    generator = np.random.default_rng(0)
    x, y = 0.7 * generator.normal(size=(2, 3))
    count = 200_000
    both = waves_of(np.stack([x, y])[:, None], generator.normal(size=(3, count)))[:, 0]
    kernel = both[0] @ both[1] / count
    assert kernel == pytest.approx(math.exp(-((x - y) ** 2).sum() / 2), abs=4 / math.sqrt(count))


def test_normalised_features_make_an_energy_linear_in_the_limit():
    """With as many features as pairs need, the identity leaves nothing; psi alone leaves much."""
    model, generator = energy(6, 5, np.random.default_rng(0), features=3), np.random.default_rng(1)
    kernel = model.mdp.kernel
    base = np.full(6, 1 / 6)
    features = normalised_fourier(model.feature, model.next_factor, base, 4000, generator)
    # With few features the right combination is the kernel's own: sum over w of both sides.
    psi, m = model.feature, model.next_factor
    assert bellman_residual(kernel, features) < 1e-6
    assert bellman_residual(kernel, psi) > 0.1
    frequencies = np.random.default_rng(2).normal(size=(3, 400_000))
    gauge = np.sqrt(np.square(m).mean(0) / np.square(psi).mean((0, 1)))
    psi, m = psi * np.sqrt(gauge), m / np.sqrt(gauge)
    left = waves_of(psi, frequencies)
    right = waves_of(m[None], frequencies)[0] * np.exp(0.5 * (m**2).sum(-1))[:, None]
    weights = np.exp(0.5 * (psi**2).sum(-1)) / np.exp(psi @ m.T).sum(-1)
    estimate = weights[..., None] * (left @ right.T) / 400_000
    assert np.abs(estimate - kernel).max() < 0.05


def test_the_bellman_residual_is_that_of_random_values():
    generator = np.random.default_rng(0)
    kernel = energy(10, 6, generator).mdp.kernel
    feature = generator.normal(size=(10, 6, 4))
    rows = np.insert(feature.reshape(60, 4), 0, 1.0, axis=1)
    hat = rows @ np.linalg.inv(rows.T @ rows) @ rows.T
    backups = kernel.reshape(60, 10) @ generator.normal(size=(10, 20_000))
    left = np.square(backups - hat @ backups).sum()
    expected = math.sqrt(left / np.square(backups - backups.mean(0)).sum())
    assert bellman_residual(kernel, feature) == pytest.approx(expected, rel=0.02)


def test_merging_cells_is_counting_in_wider_cells():
    generator = np.random.default_rng(0)
    points = generator.uniform(size=(500, 5))

    def histogram(cells):
        places = (points * cells).astype(int)
        shares = np.zeros((cells**2, cells, cells**2))
        for s0, s1, a, x0, x1 in places:
            shares[s0 * cells + s1, a, x0 * cells + x1] += 1 / 500
        return shares

    np.testing.assert_allclose(merged(histogram(8), (2, 1), 4), histogram(2))


def test_the_sieve_knows_its_risk_and_refines_with_data():
    truth = waves(1, 1, terms=2)
    chosen = []
    for n in (1_000, 10**7):
        generator = np.random.default_rng(0)
        data = sample(truth, n, 16, generator)
        error, cells = sieve_risk("factored", truth, data, 16, generator)
        # No table of this resolution is closer than the cells' own means.
        within = truth.second_moment - np.square(truth.cell_means(cells)).mean()
        assert error >= within * (1 - 1e-12)
        chosen.append((cells, error))
    assert chosen[0][0] < chosen[1][0]
    assert chosen[0][1] > 10 * chosen[1][1]


def test_intervals_by_hand():
    summary = interval(np.array([1.0, 2.0, 3.0]))
    # t quantile 4.3027 at two degrees of freedom, standard error 1 / sqrt(3).
    assert summary.mean == 2.0
    assert summary.high - summary.mean == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
    assert log_interval(np.array([1.0, 100.0])).mean == pytest.approx(10.0)
    single = interval(np.array([[5.0, 6.0]]))
    np.testing.assert_array_equal(single.mean, [5.0, 6.0])
    assert single.low is single.high is None
    assert single.below(summary) is summary.below(single) is None
    assert f"{log_interval(np.array([3.0])):.2f}" == "3.00"


def test_an_interval_below_another_ends_before_it_begins():
    low, high = interval(np.array([[1.0, 1.0], [1.2, 9.0]])), interval(np.array([[7.0], [7.2]]))
    np.testing.assert_array_equal(low.below(high), [True, False])
    np.testing.assert_array_equal(high.below(low), [False, False])


def test_exponents_and_crossings_by_hand():
    x = np.array([1.0, 10.0, 100.0, 1000.0])
    np.testing.assert_allclose(exponents(x, np.stack([x**-0.5, 3 * x**2])), [-0.5, 2.0])
    assert crossing(x, np.full(4, 0.05), 1 / x) == pytest.approx(20.0)
    assert crossing(x, np.full(4, 1e-9), 1 / x) == math.inf
    assert crossing(x, np.full(4, 5.0), 1 / x) == 1.0
