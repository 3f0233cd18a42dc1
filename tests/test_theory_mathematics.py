"""The mathematics of the theory against loops, closed forms and brute force."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from fastr.studies.theory import crossing, exponents, interval, log_interval
from fastr.studies.theory.exploration import (
    Explore,
    explore,
    misspecification,
    optimal_values,
    policy_value,
    unit_features,
)
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
from fastr.studies.theory.linearity import (
    bellman_residual,
    norm_bound,
    normalised_fourier,
    random_checks,
    waves_of,
)
from fastr.studies.theory.mdp import (
    FiniteMDP,
    cell_cosines,
    cosines,
    energy,
    frequencies,
    grid,
    lock,
    mixture,
    population,
    random_policy,
    waves,
)
from fastr.studies.theory.separation import Sieve, merged


def models():
    """Every family's kernel by name."""
    for seed in range(3):
        for family, sizes in ((mixture, (9, 5)), (energy, (9, 5)), (lock, ())):
            yield f"{family.__name__} {seed}", family(*sizes, np.random.default_rng(seed)).mdp
    for dims, points in (((1, 1), 16), ((2, 1), 5), ((3, 3), 3)):
        for dial in (0.0, 0.2, 0.5):
            mdp = waves(*dims, dial=dial).table(points, np.zeros(4), 0.9)
            yield f"waves {dims} {dial}", mdp


MODELS = dict(models())


@pytest.mark.parametrize("family", MODELS)
def test_kernels_are_distributions(family):
    mdp = MODELS[family]
    assert mdp.kernel.min() >= 0.0
    np.testing.assert_allclose(mdp.kernel.sum(-1), 1.0, rtol=0, atol=1e-12)


def test_q_is_the_fixed_point_of_the_bellman_equation():
    generator = np.random.default_rng(3)
    mdp, policy = energy(6, 4, generator).mdp, random_policy(6, 4, generator)
    q = np.zeros((6, 4))
    for _ in range(400):
        values = [sum(policy[t, b] * q[t, b] for b in range(4)) for t in range(6)]
        for s, a in np.ndindex(6, 4):
            future = sum(mdp.kernel[s, a, t] * values[t] for t in range(6))
            q[s, a] = mdp.reward[s, a] + 0.9 * future
    np.testing.assert_allclose(mdp.q_function(policy), q, atol=1e-12)


@pytest.mark.parametrize("family", ["mixture", "waves"])
def test_q_is_linear_and_the_norm_bound_holds_for_100_policies(family):
    generator = np.random.default_rng(0)
    if family == "mixture":
        model = mixture(30, 12, generator, modes=4, outcomes=3)
    else:
        model = waves(2, 1).cp_model(5, generator.normal(size=4), 0.95)
    residual, share_of_bound = random_checks(model, 100, generator).T
    assert len(residual) == 100
    assert residual.max() < 1e-10
    assert share_of_bound.max() <= 1.0


def test_the_norm_bound_by_hand():
    model = mixture(7, 3, np.random.default_rng(1), discount=0.8)
    mass = sum(np.sqrt(sum(m * m for m in row)) for row in model.next_factor)
    largest = max(abs(r) for r in model.mdp.reward.ravel())
    expected = np.sqrt(sum(w * w for w in model.reward_weight)) + 0.8 * mass * largest / 0.2
    assert norm_bound(model) == pytest.approx(expected)


def test_on_cp_table_and_model_are_the_same():
    truth, weight = waves(2, 1), np.array([1.0, -2.0, 0.5, 3.0])
    table, model = truth.table(5, weight, 0.9), truth.cp_model(5, weight, 0.9)
    np.testing.assert_allclose(table.kernel, model.mdp.kernel, atol=1e-15)
    np.testing.assert_allclose(table.reward, model.mdp.reward, atol=1e-12)
    assert truth.cp_error == 0.0


@pytest.mark.parametrize(("dims", "points"), [((1, 1), 16), ((3, 3), 3)])
@pytest.mark.parametrize("dial", [0.1, 0.3, 0.5])
def test_epsilon_cp_is_the_tail_of_the_unfolding(dims, points, dial):
    """No CP product of d terms has a smaller error than the singular values of an unfolding."""
    truth = waves(*dims, dial=dial)
    density = truth.density(points)
    unfolded = density.reshape(len(density), -1)
    sizes = np.linalg.svd(unfolded, compute_uv=False) / np.sqrt(density.size)
    assert truth.cp_error == pytest.approx(np.square(sizes[truth.feature_dim :]).sum(), rel=1e-9)


@pytest.mark.parametrize("dial", [0.1, 0.4])
def test_descent_finds_epsilon_cp_and_nothing_below_it(dial):
    truth = waves(1, 1, dial=dial)
    density = truth.density(12)
    generator = np.random.default_rng(0)
    fitted = factored_fit(population(density), 3, generator, offset=1.0)
    error = risk(fitted.score, density)
    assert error == pytest.approx(truth.cp_error, rel=1e-4)
    assert error >= truth.cp_error * (1 - 1e-9)
    assert risk(joint_fit(population(density), 3, 1.0).score, density) < 1e-20


def test_wave_vectors_are_different_and_orthonormal():
    numbers = frequencies(2, 8)
    assert len({tuple(vector) for vector in numbers}) == 8
    assert all(vector.any() for vector in numbers)
    values = cosines(numbers, grid(40, numbers))
    np.testing.assert_allclose(values.T @ values / len(values), np.eye(8), atol=1e-12)


def test_cell_means_are_the_means_of_many_points():
    numbers = np.array([[1, 0], [2, 3]])
    fine = cosines(numbers, grid(400, numbers)).reshape(4, 100, 4, 100, 2).mean((1, 3))
    np.testing.assert_allclose(cell_cosines(numbers, 4), fine.reshape(16, 2), atol=1e-4)


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
    losses = [-2 * score[s, a, x] + np.mean(score[s, a] ** 2) for s, a, x in triples]
    assert empirical_loss(fit, counted(triples, shape)) == pytest.approx(np.mean(losses))


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
    generator, descent = np.random.default_rng(1), Descent(steps=400, starts=4)
    fits = ranking_fits(kind, shares, np.array([np.inf]), 3, [generator], descent)
    assert risk(fits.density[0], density) < 1e-3 * density.var()
    np.testing.assert_allclose(fits.density.mean(-1), 1.0, rtol=1e-5)


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
    kernel, base = model.mdp.kernel, np.full(6, 1 / 6)
    features = normalised_fourier(model.feature, model.next_factor, base, 4000, generator)
    assert bellman_residual(kernel, features) < 1e-6
    assert bellman_residual(kernel, model.feature) > 0.1


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
    sieve, chosen = Sieve(1, 1, finest=16, powers=(3.0, 7.0)), []
    for n in (1_000, 10**7):
        generator = np.random.default_rng(0)
        error, cells = sieve.fit("factored", sieve.sample(n, generator), generator)
        # No table of this resolution is closer than the cells' own means.
        within = sieve.truth.second_moment - np.square(sieve.truth.cell_means(cells)).mean()
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


def test_exponents_and_crossings_by_hand():
    x = np.array([1.0, 10.0, 100.0, 1000.0])
    np.testing.assert_allclose(exponents(x, np.stack([x**-0.5, 3 * x**2])), [-0.5, 2.0])
    assert crossing(x, np.full(4, 0.05), 1 / x) == pytest.approx(20.0)
    assert crossing(x, np.full(4, 1e-9), 1 / x) == math.inf
    assert crossing(x, np.full(4, 5.0), 1 / x) == 1.0


def small_lock():
    return lock(np.random.default_rng(0), regions=2, width=2, actions=5)


def lsvi_in_loops(mdp, feature, config, generator):
    """Algorithm 1 of Jin et al. (2020), regressing anew on all stored transitions."""
    states, actions, size = feature.shape
    stored = [[] for _ in range(config.horizon)]
    values = []
    for _ in range(config.episodes):
        value, policy = np.zeros(states), []
        for h in reversed(range(config.horizon)):
            gram, pull = config.ridge * np.eye(size), np.zeros(size)
            for s, a, r, t in stored[h]:
                gram += np.outer(feature[s, a], feature[s, a])
                pull += feature[s, a] * (r + value[t])
            weight, inverse = np.linalg.solve(gram, pull), np.linalg.inv(gram)
            q = np.zeros((states, actions))
            for s, a in np.ndindex(states, actions):
                psi = feature[s, a]
                optimistic = psi @ weight + config.bonus * np.sqrt(psi @ inverse @ psi)
                q[s, a] = min(optimistic, config.horizon - h)
            policy.insert(0, q.argmax(-1))
            value = np.maximum(q.max(-1), 0.0)
        total = np.zeros(states)
        for actions_of in reversed(policy):
            backed_up = [(mdp.reward[x, a], mdp.kernel[x, a]) for x, a in enumerate(actions_of)]
            total = np.array([reward + row @ total for reward, row in backed_up])
        values.append(total[0])
        s = 0
        for h in range(config.horizon):
            a, height = policy[h][s], generator.uniform(size=(1, 1))[0, 0]
            t = int(np.searchsorted(np.cumsum(mdp.kernel[s, a]), height, side="right"))
            stored[h].append((s, a, mdp.reward[s, a], t))
            s = t
    return values


def test_lsvi_is_the_algorithm_in_loops():
    model, config = small_lock(), Explore(episodes=25, horizon=3)
    feature = unit_features(model.feature)
    outcome = explore(model.mdp, feature[None], config, np.random.default_rng(7))
    best = optimal_values(model.mdp, 3)[0, 0]
    values = lsvi_in_loops(model.mdp, feature, config, np.random.default_rng(7))
    np.testing.assert_allclose(outcome.regret[0], np.cumsum(best - np.array(values)), atol=1e-8)


def test_optimal_values_are_the_best_of_all_policies():
    generator = np.random.default_rng(0)
    kernel = generator.dirichlet(np.ones(3), size=(3, 2))
    mdp = FiniteMDP(kernel, generator.uniform(size=(3, 2)), 1.0)
    choices = np.array(list(np.ndindex(*([2] * 6)))).reshape(-1, 2, 3)
    best = policy_value(mdp, choices)[:, 1].max()
    assert optimal_values(mdp, 2)[0, 1] == pytest.approx(best)
    assert not optimal_values(mdp, 2)[2].any()


def test_eta_is_zero_for_the_true_feature_and_half_the_range_for_a_constant():
    model = small_lock()
    values = np.random.default_rng(0).uniform(0, 3, size=(5, 4))
    assert misspecification(model.mdp, model.feature, values) < 1e-9
    backups = model.mdp.reward[None] + np.einsum("sax,vx->vsa", model.mdp.kernel, values)
    ranges = backups.reshape(5, -1).max(1) - backups.reshape(5, -1).min(1)
    ones = np.ones((4, 5, 1))
    assert misspecification(model.mdp, ones, values) == pytest.approx(ranges.max() / 2)


def test_unit_features_keep_the_span_in_one_gauge():
    generator = np.random.default_rng(0)
    feature = generator.normal(size=(6, 4, 3)) @ generator.normal(size=(3, 3))
    unit = unit_features(feature)
    rows, given = unit.reshape(24, 3), feature.reshape(24, 3)
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(1.0)
    moments = rows.T @ rows
    np.testing.assert_allclose(moments, moments[0, 0] * np.eye(3), atol=1e-12)
    assert np.linalg.matrix_rank(np.concatenate([rows, given], axis=1)) == 3
