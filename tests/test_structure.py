"""Gradient coverage, and the sizes of all interactions."""

import json
import re
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.cli import run
from fastr.core import EnvSpec, Method
from fastr.representations.interactions import CPConfig, TuckerConfig
from fastr.representations.ranking import RankingConfig
from fastr.representations.scores import perturb, vp_signal
from fastr.studies.probes import Rows, core_gradient, measure, random_rows, ranks, standardised
from fastr.training.config import grounded, named, preset
from fastr.training.cost import network_parameters, products

ROOT = Path(__file__).parents[1]
KEY = jax.random.key(0)
SIZES = {"hidden_dim": 16, "blocks": 1, "noise_levels": 3, "fourier_dim": 8, "head_dim": 4}
CP, TUCKER = CPConfig(feature_dim=4, **SIZES), TuckerConfig(feature_dim=4, **SIZES)


def rows(spec, count):
    values = np.random.default_rng(0).normal(size=(count, spec.row_dim))
    return Rows(values, spec)


@pytest.mark.parametrize(("config", "dimension"), [(CP, 4), (TUCKER, 16)])
def test_a_batch_reaches_as_many_directions_as_the_papers_bound(spec, config, dimension):
    """min(N, dim M): CP is covered by four transitions, a full core not by ten."""
    found = measure("any", config, rows(spec, 20), (3, 10, 20), 0)
    assert [entry.dimension for entry in found] == [dimension] * 3
    assert [entry.bound for entry in found] == [min(size, dimension) for size in (3, 10, 20)]
    assert [entry.rank for entry in found] == [entry.bound for entry in found]
    assert all(1 <= entry.effective <= entry.rank for entry in found)


def test_the_cores_gradient_is_the_sum_over_anchors(spec, make_batch):
    """d loss / d M(s'_j) = sum_i (softmax - own)_ij / T * phi_s(s_i) phi_a(a_i)^T, in NumPy."""
    net, batch = TUCKER.init(spec, KEY), make_batch(spec, 5, seed=0)
    found = np.asarray(jax.jit(core_gradient)(net, batch, KEY))
    features = np.asarray(jax.vmap(net.feature)(batch.state, batch.action), np.float64)
    outer = np.einsum("ni,nj->nij", features[:, :4], features[:, 4:]).reshape(5, 16)
    states = perturb(
        batch.next_state, jax.random.normal(KEY, (3, *batch.next_state.shape)), vp_signal(3)
    )
    cores = np.asarray(net.contrast.candidates(states, jnp.arange(3)), np.float64).reshape(3, 5, 16)
    expected = []
    for level in (0, 2):
        logits = outer @ cores[level].T  # temperatures start at 1
        softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected.append((softmax - np.eye(5)).T @ outer / (5 * 2))
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-4, atol=1e-7)


def test_ranks_of_known_matrices():
    assert ranks(np.diag([1.0, 1.0, 1.0, 0.0])) == (3, 3)
    assert ranks(np.diag([1.0, 0.05, 1e-14])) == (2, 1)
    assert ranks(np.zeros((3, 2))) == (0, 0)


def test_random_rows_are_standardised_and_repeatable():
    found, again = (standardised(random_rows("cartpole-swingup", 2, 700, 3)) for _ in range(2))
    np.testing.assert_array_equal(found.values, again.values)
    states = found.values[:, : found.spec.state_dim]
    np.testing.assert_allclose(states.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(states.std(axis=0), 1.0, atol=1e-3)
    assert found.values.shape == (700, found.spec.row_dim)


INFO = ["info", "cartpole-swingup", "--preset", "laptop", "--coverage"]


def test_coverage_on_the_command_line(capsys):
    """By a quarter, half and the whole of a batch."""
    assert run([*INFO, "--batch-size", "16", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["coverage"]
    assert [(line["batch_size"], line["rank"]) for line in lines] == [(4, 4), (8, 8), (16, 16)]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--method", "td7"], "td7 does not; choose among fastr"),
        (["--batch-size", "100000"], "--batch-size of at most 16,384"),
    ],
)
def test_wrong_coverage_is_one_sentence(refused, arguments, named):
    refused([*INFO, *arguments], named)


INTERACTION = re.compile(r"\| `(\S+)` \| .* \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) G \|")
INTERACTIONS = INTERACTION.findall((ROOT / "docs" / "methods.md").read_text())
HUMANOID = EnvSpec(67, 21)


@pytest.mark.parametrize("row", INTERACTIONS, ids=lambda row: row[0])
def test_the_methods_page_counts_what_is_computed(row):
    """Numbers per next state, parameters and billions of multiply-adds, on humanoid."""
    config = grounded(preset("humanoid-walk", row[0], "paper"))
    parameters = sum(network_parameters(config, HUMANOID).values())
    operations = sum(products(config, HUMANOID).multiply_adds.values())
    candidate = config.agent.representation.candidate_dim
    assert row[1:] == (f"{candidate:,}", f"{parameters:,}", f"{operations / 1e9:.1f}")


def test_the_methods_page_has_every_interaction():
    agents = {method: named(method) for method in get_args(Method)}
    ranking = (getattr(agent, "representation", None) for agent in agents.values())
    expected = [m for m, r in zip(agents, ranking, strict=True) if isinstance(r, RankingConfig)]
    assert sorted(row[0] for row in INTERACTIONS) == sorted(expected)
