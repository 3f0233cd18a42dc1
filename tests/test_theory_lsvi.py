"""LSVI-UCB against a version in loops, its regret's exponent, and eta in closed form."""

import numpy as np
import pytest

from fastr.studies.theory.intervals import exponents
from fastr.studies.theory.lsvi import (
    Explore,
    chebyshev,
    explore,
    misspecification,
    optimal_values,
    policy_value,
    unit_features,
)
from fastr.studies.theory.mdp import FiniteMDP, lock


def small_lock():
    return lock(np.random.default_rng(0), regions=2, width=2, actions=5)


def lsvi_in_loops(mdp, feature, config, generator):
    """Algorithm 1 of Jin et al. (2020), regressing anew on all stored transitions."""
    states, actions, size = feature.shape
    stored = [[] for _ in range(config.horizon)]
    values = []
    for _ in range(config.episodes):
        value = np.zeros(states)
        policy = []
        for h in reversed(range(config.horizon)):
            gram, pull = config.ridge * np.eye(size), np.zeros(size)
            for s, a, r, t in stored[h]:
                gram += np.outer(feature[s, a], feature[s, a])
                pull += feature[s, a] * (r + value[t])
            weight, inverse = np.linalg.solve(gram, pull), np.linalg.inv(gram)
            q = np.zeros((states, actions))
            for s in range(states):
                for a in range(actions):
                    psi = feature[s, a]
                    optimistic = psi @ weight + config.bonus * np.sqrt(psi @ inverse @ psi)
                    q[s, a] = min(optimistic, config.horizon - h)
            policy.insert(0, q.argmax(-1))
            value = np.maximum(q.max(-1), 0.0)
        s, total = config.start, np.zeros(states)
        for h in reversed(range(config.horizon)):
            total = np.array(
                [
                    mdp.reward[x, policy[h][x]] + mdp.kernel[x, policy[h][x]] @ total
                    for x in range(states)
                ]
            )
        values.append(total[config.start])
        for h in range(config.horizon):
            a = policy[h][s]
            height = generator.uniform(size=(1, 1))[0, 0]
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


def test_regret_grows_like_the_square_root_of_the_episodes():
    """Fitted exponent over episodes 200 to 2,000 from 0.3 to 0.6; a useless feature has 1.

    This is one lock's: the theorem bounds the exponent from above alone, and other locks have less.
    """
    model = lock(np.random.default_rng(0))
    features = np.stack([unit_features(model.feature)] * 4)
    outcome = explore(model.mdp, features, Explore(episodes=2_000), np.random.default_rng(0))
    episodes = np.arange(200, 2_000, dtype=float)
    assert 0.3 < exponents(episodes, outcome.regret[:, 200:]).mean() < 0.6
    ones = np.ones((1, *model.feature.shape[:2], 1))
    blind = explore(model.mdp, ones, Explore(episodes=300), np.random.default_rng(0))
    assert exponents(np.arange(30.0, 300.0), blind.regret[:, 30:]).mean() > 0.95


def test_optimal_values_are_the_best_of_all_policies():
    generator = np.random.default_rng(0)
    kernel = generator.dirichlet(np.ones(3), size=(3, 2))
    mdp = FiniteMDP(kernel, generator.uniform(size=(3, 2)), 1.0)
    choices = np.array(list(np.ndindex(*([2] * 6)))).reshape(-1, 2, 3)
    best = policy_value(mdp, choices, 1).max()
    assert optimal_values(mdp, 2)[0, 1] == pytest.approx(best)
    assert not optimal_values(mdp, 2)[2].any()


def test_the_best_constant_is_the_middle():
    target = np.array([0.0, 1.0, 5.0])
    assert chebyshev(np.ones((3, 1)), target) == pytest.approx(2.5)
    line = np.stack([np.ones(3), np.arange(3.0)], axis=1)
    # |x| on -1, 0, 1: the best line is 1/2, off by 1/2 everywhere.
    assert chebyshev(line, np.array([1.0, 0.0, 1.0])) == pytest.approx(0.5)


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
