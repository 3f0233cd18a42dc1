"""Exact CP-MDPs: valid kernels, Q-linearity, and how far the dial leaves CP."""

import numpy as np
import pytest

from fastr.studies.theory.fits import factored_fit, joint_fit, risk
from fastr.studies.theory.linearity import norm_bound, policy_residual, random_checks
from fastr.studies.theory.mdp import energy, lock, mixture, population, random_policy
from fastr.studies.theory.waves import cell_cosines, cosines, frequencies, grid, waves

SEEDS = (0, 1, 2)


def models():
    """Every family's kernel by name."""
    yield from ((f"mixture {s}", mixture(9, 5, np.random.default_rng(s)).mdp) for s in SEEDS)
    yield from ((f"energy {s}", energy(9, 5, np.random.default_rng(s)).mdp) for s in SEEDS)
    yield from ((f"lock {s}", lock(np.random.default_rng(s)).mdp) for s in SEEDS)
    for dims, points in (((1, 1), 16), ((2, 1), 5), ((3, 3), 3)):
        for dial in (0.0, 0.2, 0.5):
            weight = np.zeros(4)
            yield f"waves {dims} {dial}", waves(*dims, dial=dial).table(points, weight, 0.9)


MODELS = dict(models())


@pytest.mark.parametrize("family", MODELS)
def test_kernels_are_distributions(family):
    mdp = MODELS[family]
    assert mdp.kernel.min() >= 0.0
    np.testing.assert_allclose(mdp.kernel.sum(-1), 1.0, rtol=0, atol=1e-12)


def test_q_is_the_fixed_point_of_the_bellman_equation():
    generator = np.random.default_rng(3)
    mdp = energy(6, 4, generator).mdp
    policy = random_policy(6, 4, generator)
    q = np.zeros((6, 4))
    for _ in range(400):
        backed_up = np.zeros_like(q)
        for s in range(6):
            for a in range(4):
                future = sum(
                    mdp.kernel[s, a, t] * sum(policy[t, b] * q[t, b] for b in range(4))
                    for t in range(6)
                )
                backed_up[s, a] = mdp.reward[s, a] + 0.9 * future
        q = backed_up
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


@pytest.mark.parametrize("dial", [0.05, 0.3, 0.5])
def test_off_cp_the_residual_stays_within_what_epsilon_allows(dial):
    generator = np.random.default_rng(0)
    truth = waves(1, 1, dial=dial)
    mdp = truth.table(16, generator.normal(size=4), 0.9)
    psi = truth.feature(16)
    for _ in range(20):
        policy = random_policy(16, 16, generator)
        residual, allowed = policy_residual(mdp, psi, policy, truth.cp_error)
        assert 0.0 < residual <= allowed


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
