"""Covering numbers against brute force, certificates against numbers worked out by hand."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fastr.envs import spec
from fastr.studies.theory.certificates import (
    PROBLEMS,
    TASKS,
    Problem,
    covering_number,
    deviation,
    distances,
    entropy_terms,
    factored_scores,
    log_certificate,
    log_rate_constant,
    log_ratio,
    log_scale,
    log_sufficient_n,
    product_bound,
)

# The unit cube in three dimensions has diameter sqrt(3): L times the diameter is 1.
UNIT = Problem(3, 3, feature_dim=1, lipschitz=1 / math.sqrt(3))


def brute_force_cover(functions, radius):
    near = distances(functions) <= radius
    for size in range(1, len(functions) + 1):
        for centres in itertools.combinations(range(len(functions)), size):
            if near[:, list(centres)].any(1).all():
                return size
    raise AssertionError


@pytest.mark.parametrize("seed", range(6))
def test_covering_number_is_that_of_all_subsets(seed):
    generator = np.random.default_rng(seed)
    functions = generator.normal(size=(7, 3, 2))
    for radius in (0.1, 1.0, 2.0, 3.0, 10.0):
        assert covering_number(functions, radius) == brute_force_cover(functions, radius)


@pytest.mark.parametrize("seed", range(6))
def test_theorem_1_holds_on_small_classes(seed):
    generator = np.random.default_rng(seed)
    states, actions, nexts = (generator.normal(size=(4, size, 2)) for size in (3, 2, 3))
    scores = factored_scores(states, actions, nexts)
    products = np.einsum("k,k,k", states[1, 0], actions[2, 1], nexts[3, 2])
    assert scores.reshape(4, 4, 4, 3, 2, 3)[1, 2, 3, 0, 1, 2] == pytest.approx(products)
    for radius in (0.5, 2.0, 5.0, 10.0, 20.0, 40.0):
        assert covering_number(scores, radius) <= product_bound(states, actions, nexts, radius)


def entropy(problem, kind, epsilon):
    """The bound on log N(G, epsilon)."""
    return sum(math.exp(scale) * epsilon**-p for scale, p in entropy_terms(problem, kind))


def test_entropies_by_hand():
    # Factored: three terms of 3 over epsilon, cubed. Joint: sqrt(2) L and sqrt(2) times the
    # diameter, so 4 over epsilon to the sixth, and 2 over epsilon, cubed.
    assert entropy(UNIT, "factored", 0.5) == pytest.approx(3 * 6**3)
    assert entropy(UNIT, "joint", 0.5) == pytest.approx(8**6 + 4**3)


def test_certificates_by_hand():
    # A = 81: 8 (4 + 24 * 9) + 4 (4 + 24 sqrt(81 * 2^3)) = 1760 + 16 + 96 * 18 sqrt(2).
    factored = 1776 + 96 * 18 * math.sqrt(2)
    assert math.exp(log_rate_constant(UNIT, "factored")) == pytest.approx(factored)
    # A = 4^6 + 2^3 = 4104: 8 (4 + 6 sqrt(4104)) + 4 (4 + 6 sqrt(4104 * 2^6)).
    joint = 32 + 48 * math.sqrt(4104) + 16 + 24 * 8 * math.sqrt(4104)
    assert math.exp(log_rate_constant(UNIT, "joint")) == pytest.approx(joint)
    # 2 (2 + 1) sqrt(2 ln 20) = 6 * 2.4477...
    assert deviation(UNIT, 0.05) == pytest.approx(14.6865, abs=1e-3)
    at = math.exp(log_certificate(UNIT, "factored", math.log(1e9), 0.05, cp_error=0.25))
    assert at == pytest.approx(0.25 + factored / 1e3 + 14.6865 / math.sqrt(1e9), rel=1e-6)
    at = math.exp(log_certificate(UNIT, "joint", math.log(1e12), 0.05, cp_error=0.25))
    assert at == pytest.approx(joint / 1e2 + 14.6865 / 1e6, rel=1e-6)


def test_certificate_with_norms_above_one_by_hand():
    """The paper's steps in plain numbers: B_phi = 2, B_m = 3, d_s = 4, d_a = 3, B_g = 12."""
    problem = Problem(4, 3, 5, factor_norm=2.0, next_norm=3.0, lipschitz=0.5)
    scale = 0.0
    for size, shrink in ((4, 3 * 3 * 2), (3, 3 * 3 * 2), (4, 3 * 2**2)):
        scale += 5 * (0.5 * math.sqrt(size) * shrink) ** size * 12 ** (4 - size)
    of_scores = 4 * 12 + 24 * math.sqrt(scale) * 12 ** (1 - 4 / 2) / (4 - 2)
    of_squares = 4 * 144 + 24 * math.sqrt(scale * 24**4) * 144 ** (1 - 4 / 2) / (4 - 2)
    expected = 8 * of_scores + 4 * of_squares
    assert math.exp(log_rate_constant(problem, "factored")) == pytest.approx(expected)


def test_the_entropy_constant_covers_every_radius_of_the_lemma():
    """A tau^-D is above the entropy's bound for all tau up to B_g, not only up to 1."""
    problem = Problem(5, 3, factor_norm=1.5, next_norm=2.0)
    for tau in np.geomspace(1e-3, problem.score_bound, 50):
        bound = log_scale(problem, "factored") - 5 * math.log(tau)
        assert math.log(entropy(problem, "factored", float(tau))) <= bound + 1e-9


@pytest.mark.parametrize("kind", ["factored", "joint"])
def test_sufficient_n_is_where_the_certificate_meets_the_target(kind):
    log_n = log_sufficient_n(Problem(4, 3), kind, 0.3, 0.05)
    assert math.exp(log_certificate(Problem(4, 3), kind, log_n, 0.025)) == pytest.approx(0.09)


@pytest.mark.parametrize("dims", [(3, 1), (3, 3), (2, 5), (17, 6), (67, 21), (223, 38)])
def test_the_ratio_of_sample_sizes_has_the_slope_of_proposition_2(dims):
    problem = Problem(*dims)
    low, high = 1e-9, 1e-8
    rise = log_ratio(problem, high, 0.05) - log_ratio(problem, low, 0.05)
    assert rise / math.log(high / low) == pytest.approx(-2 * min(dims), abs=1e-3)


@pytest.mark.parametrize("task", TASKS)
def test_dimensions_are_those_of_the_tasks(task):
    sizes = spec(task, 2)
    assert TASKS[task] == (sizes.state_dim, sizes.action_dim)
    assert PROBLEMS[task].dimension("joint") == sizes.state_dim + sizes.action_dim


def test_no_norms_make_a_certificate_say_something_at_a_usual_n():
    """docs/theory.md: at least 7 times B_g^2, which bounds L without data."""
    shares = []
    for factor, nexts in itertools.product(np.geomspace(1.0, 1e3, 10).tolist(), repeat=2):
        problem = replace(PROBLEMS["cheetah-run"], factor_norm=factor, next_norm=nexts)
        known = 2.0 * math.log(problem.score_bound)
        for kind in ("factored", "joint"):
            shares.append(log_certificate(problem, kind, math.log(1e6), 0.05) - known)
    assert min(shares) == pytest.approx(math.log(7.1), abs=0.01)
