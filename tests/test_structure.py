"""What one batch can train, and the table of interactions."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fastr.training.count import multiply_adds, network_parameters
from matplotlib.figure import Figure

from fastr.cli import run
from fastr.core import EnvSpec, Method
from fastr.report.plots import compared_curves
from fastr.representations.cp import CPConfig
from fastr.representations.ranking import RankingConfig
from fastr.representations.schedule import perturb
from fastr.representations.tucker import TuckerConfig
from fastr.runs.directory import RunWriter
from fastr.studies.coverage import Rows, core_gradient, measure, random_rows, ranks, standardised
from fastr.training.config import grounded, preset
from fastr.training.methods import named

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
    states = perturb(batch.next_state, jax.random.normal(KEY, (3, *batch.next_state.shape)))
    cores = np.asarray(net.contrast.candidates(states), np.float64).reshape(3, 5, 16)
    expected = []
    for level in (0, 2):
        logits = outer @ cores[level].T  # temperatures start at 1
        softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected.append((softmax - np.eye(5)).T @ outer / (5 * 2))
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-4, atol=1e-7)


def test_one_anchor_moves_the_core_in_one_direction(spec, make_batch):
    net, batch = TUCKER.init(spec, KEY), make_batch(spec, 5, seed=0)
    score = net.scored(batch).score
    cores = net.contrast.candidates(jnp.broadcast_to(batch.next_state, (1, 5, spec.state_dim)))
    loss = lambda cores: -jax.nn.log_softmax(score(cores)[0, 0])[0]  # noqa: E731
    gradient = np.asarray(jax.grad(loss)(cores)[0], np.float64)
    values = np.linalg.svd(gradient, compute_uv=False)
    assert values[1] < 1e-5 * values[0]


def test_at_each_level_the_gradients_of_all_candidates_cancel(spec, make_batch):
    net, batch = CP.init(spec, KEY), make_batch(spec, 6, seed=0)
    gradient = np.asarray(jax.jit(core_gradient)(net, batch, KEY)).reshape(2, 6, 4)
    np.testing.assert_allclose(gradient.sum(axis=1), 0.0, atol=1e-7)


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


def test_coverage_on_the_command_line(capsys, tmp_path):
    arguments = ["coverage", "cartpole-swingup", "--preset", "quick", "--methods", "fastr"]
    sizes = ["--batch-sizes", "8", "16", "--out", str(tmp_path), "--json"]
    assert run([*arguments, *sizes]) == 0
    lines = json.loads(capsys.readouterr().out)["coverage"]
    assert [(line["batch_size"], line["rank"]) for line in lines] == [(8, 8), (16, 16)]
    assert (tmp_path / "coverage.png").stat().st_size > 1_000
    with (tmp_path / "coverage.csv").open() as file:
        assert [int(line["rank"]) for line in csv.DictReader(file)] == [8, 16]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "td7"], "ranks no next states"),
        (["--batch-sizes", "1"], "one has no negatives"),
        (["--batch-sizes", "8", "100000"], "--batch-sizes 100000 is too large; at most 16,384."),
        (["--batch-sizes", "x"], "--batch-sizes"),
    ],
)
def test_wrong_coverage_is_one_sentence(refused, arguments, said):
    refused(["coverage", "walker-walk", *arguments], said)


def test_a_file_in_the_place_of_out_is_said_before_the_work(refused, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("")
    refused(["coverage", "walker-walk", "--out", str(taken)], "taken cannot be written")


ABLATION = ["ablation", "gym:Pendulum-v1", "--preset", "quick", "--methods", "td3", "concat"]


@pytest.mark.slow
def test_an_ablation_from_beginning_to_end(capsys, tmp_path):
    """Two conditions, the table and the picture; again, nothing is trained twice."""
    arguments = [*ABLATION, "--frames", "2100", "--out", str(tmp_path)]
    assert run([*arguments, "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["methods"]
    assert [line["method"] for line in lines] == ["td3", "concat"]
    assert [line["nce_dimension"] for line in lines] == [None, 128]
    assert all(line["return_mean"] < 0 for line in lines)  # Pendulum's rewards are costs
    recorded = [(tmp_path / name / "rows.jsonl").read_bytes() for name in ("td3", "concat")]
    assert run(arguments) == 0
    assert "NCE dim" in capsys.readouterr().out
    assert recorded == [(tmp_path / n / "rows.jsonl").read_bytes() for n in ("td3", "concat")]
    assert (tmp_path / "curves.png").stat().st_size > 1_000
    with (tmp_path / "table.csv").open() as file:
        assert [line["method"] for line in csv.DictReader(file)] == ["td3", "concat"]
    assert run([*ABLATION, "--frames", "2200", "--out", str(tmp_path)]) == 2
    assert "holds another run: frames is 2100 there" in capsys.readouterr().err


def other_run(path):
    RunWriter.create(path, {"train": {"frames": 1}, "provenance": {}}).close()


TAKEN = {
    "inside a run": (other_run, "is a run directory, and nothing else is kept"),
    "a file": (lambda out: (out / "concat").write_text(""), "concat is a file; choose another"),
    "a folder": (lambda out: (out / "concat" / "x").mkdir(parents=True), "neither empty nor a run"),
    "another run": (lambda out: other_run(out / "concat"), "concat holds another run"),
}


@pytest.mark.parametrize(("take", "says"), TAKEN.values(), ids=TAKEN.keys())
def test_where_an_ablation_cannot_end_it_does_not_begin(take, says, tmp_path, capsys):
    take(tmp_path)
    assert run([*ABLATION, "--out", str(tmp_path)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert says in said
    assert not (tmp_path / "td3").exists()


def test_bands_are_named_where_there_are_any(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    curve = [(0, 1.0), (10, 2.0)]
    for seeds in ([curve], [curve, curve]):
        compared_curves({"fastr": seeds}, "task", tmp_path / "curves.png")
    labels = [figure.axes[0].get_ylabel() for figure in drawn]
    assert ["standard deviation over seeds" in label for label in labels] == [False, True]


def test_an_ablation_says_which_method_it_trains_and_finds_no_deviation_of_one_seed(
    capsys, tmp_path, monkeypatch
):
    rows = [{"kind": "evaluation", "seed": 0, "frames": 0, "return": -9.5, "seconds": 1.0}]
    monkeypatch.setattr("fastr.cli.training.check_possible", lambda *_: None)
    monkeypatch.setattr("fastr.cli.training.finished_rows", lambda *_: rows)
    assert run([*ABLATION, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == ["td3: run 1 of 2", "concat: run 2 of 2"]
    assert said.out.count("-9.5") == said.out.count("one seed") == 2


INTERACTION = re.compile(r"\| `(\S+)` \| .* \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) G \|")
INTERACTIONS = INTERACTION.findall((ROOT / "docs" / "methods.md").read_text())
HUMANOID = EnvSpec(67, 21)


def counted(method, **changes):
    """Numbers per next state, parameters and billions of multiply-adds, on humanoid."""
    config = grounded(preset("humanoid-walk", method, "paper"))
    representation = replace(config.agent.representation, **changes)
    config = replace(config, agent=replace(config.agent, representation=representation))
    parameters = sum(network_parameters(config, HUMANOID).values())
    return (
        f"{representation.candidate_dim:,}",
        f"{parameters:,}",
        f"{multiply_adds(config, HUMANOID) / 1e9:.1f}",
    )


def test_the_methods_page_has_every_interaction():
    agents = {method: named(method) for method in get_args(Method)}
    contrastive = [
        method
        for method, agent in agents.items()
        if isinstance(getattr(agent, "representation", None), RankingConfig)
    ]
    assert sorted(row[0] for row in INTERACTIONS) == sorted(contrastive)


@pytest.mark.parametrize("row", INTERACTIONS, ids=lambda row: row[0])
def test_the_methods_page_counts_what_is_computed(row):
    assert counted(row[0]) == row[1:]


@pytest.mark.parametrize(("method", "operations"), [("fastr", "77.8"), ("tucker", "215.8")])
def test_the_last_layer_acts_on_candidates_where_the_score_is_not_linear(method, operations):
    """As the methods page says: in the form raw a full core costs 2.8 times CP's."""
    assert counted(method, score="raw")[2] == operations
