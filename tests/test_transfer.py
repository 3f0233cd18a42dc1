"""Runs that keep a part of another run, on the same body with other actuators."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fastr.cli import run
from fastr.cli.studies import returns_of
from fastr.core import EnvSpec, UserError
from fastr.runs.directory import RunDirectory, RunWriter
from fastr.studies.probes import linear_cka
from fastr.training.config import from_json, preset, to_json
from fastr.training.learner import Engine
from fastr.training.loop import begin as start
from fastr.training.loop import check_possible, train
from fastr.training.state import heritage, inherited, legacy

TASK, PENDULUM = "gym:Pendulum-v1", EnvSpec(3, 1)


# The protocol of test_train.py, whose compiled programs these runs share.
PROTOCOL = {"seeds": (3, 7), "frames": 500, "random_frames": 100, "eval_frames": 500}
PROTOCOL |= {"eval_episodes": 1, "checkpoint_frames": 200, "block_steps": 1}


def tiny(method="fastr", keep="nothing", task=TASK, **changes):
    config = preset(task, method, "laptop")
    sizes = {"feature_dim": 8, "hidden_dim": 8, "noise_levels": 2, "fourier_dim": 8, "head_dim": 8}
    # So few updates are to move the representation.
    often = {"representation_updates": 1}
    agent = replace(config.agent, batch_size=16, actor_dim=8, keep=keep, **often)
    return with_form(replace(config, agent=agent, **(PROTOCOL | changes)), **sizes)


def trained(config, path, stopped=lambda: False):
    with RunWriter.create(path, {"train": to_json(config), "provenance": {}}) as writer:
        train(config, writer, stopped=stopped)
    return RunDirectory.open(path)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return trained(tiny(), tmp_path_factory.mktemp("source") / "run")


def heir(origin, **changes):
    options = {"keep": "state-factor", "task": f"{TASK}@degradation:1"}
    options |= {"init": str(origin.path), "init_parts": changes.get("keep", "state-factor")}
    return tiny(**(options | changes))


@pytest.fixture(scope="module")
def adapted(source, tmp_path_factory):
    return trained(heir(source), tmp_path_factory.mktemp("adapted") / "run")


def same_arrays(ours, theirs):
    first, second = ours.latest().arrays(), theirs.latest().arrays()
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


def rows(run):
    found = [{k: v for k, v in row.items() if k != "seconds"} for row in run.rows()]
    return sorted(json.dumps(row) for row in found)


def test_resuming_in_the_middle_is_exact(source, adapted, tmp_path):
    count = iter(range(10_000))
    stopped = trained(heir(source), tmp_path / "run", stopped=lambda: next(count) >= 120)
    assert stopped.latest().frames < 500
    writer, checkpoint = RunWriter.resume(tmp_path / "run")
    with writer:
        train(from_json(writer.config["train"]), writer, checkpoint)
    assert same_arrays(RunDirectory.open(tmp_path / "run"), adapted)
    assert rows(RunDirectory.open(tmp_path / "run")) == rows(adapted)


def inheriting(config):
    engine = Engine(config.agent, PENDULUM, config.seeds, capacity=8, random_steps=0)
    return inherited(engine.init(), config, PENDULUM).tree


def test_some_seeds_of_the_source_are_enough(source):
    """Their observation statistics come with them."""
    ours = inheriting(heir(source, seeds=(7,))).learners.moments.mean
    theirs = source.latest().arrays()["learners.moments.mean"]
    assert np.array_equal(ours, theirs[1:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "ctrl-sr", "keep": "encoder"}, "was trained by fastr, this run is by ctrl-sr"),
        ({"seeds": (3, 8)}, "has no seed 8"),
        ({"init": "nowhere"}, "nowhere is not a run directory"),
        ({"frame_skip": 1}, "was trained with --frame-skip 2, this run has 1: what is taken"),
        ({"task": "gym:InvertedPendulum-v5"}, "has 4 and 1"),
        ({"init_parts": "encoder"}, "all, representation or state-factor is"),
    ],
)
def test_a_wrong_source_is_refused_before_anything_is_written(source, changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        start(heir(source, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def with_form(config, **changes):
    form = replace(config.agent.representation, **changes)
    return replace(config, agent=replace(config.agent, representation=form))


def test_an_encoder_of_another_form_is_refused_and_what_is_not_kept_may_differ(source):
    config = heir(source)
    for changes, message in (
        ({"hidden_dim": 12}, "with --hidden-dim 8, this run has 12"),
        ({"score": "raw"}, "with --score l2, this run has raw"),
    ):
        with pytest.raises(UserError, match=message):
            heritage(with_form(config, **changes))
    other_units = replace(config.agent, normalize_observations=False)
    with pytest.raises(UserError, match="--normalize-observations True, this run has False"):
        heritage(replace(config, agent=other_units))
    heritage(with_form(config, noise_levels=3, reward_weight=0.5, head_dim=4))


def test_networks_of_other_sizes_are_refused_by_name(source):
    config = replace(heir(source), init_parts="all")
    legacy(config, PENDULUM)
    other = replace(config, agent=replace(config.agent, actor_dim=12))
    with pytest.raises(UserError, match="sizes: --actor-dim is 8 there and 12 here"):
        legacy(other, PENDULUM)
    legacy(replace(other, init_parts="representation"), PENDULUM)
    assert (config.uniform_steps, other.random_steps) == (0, 50)


def test_a_source_without_a_checkpoint_is_refused_before_anything_is_written(refused, tmp_path):
    source = RunWriter.create(tmp_path / "empty", {"train": to_json(tiny()), "provenance": {}})
    source.close()
    scratch = ["--shift", "dead", "--keep", "nothing", "--out", str(tmp_path / "out")]
    refused(["transfer", str(source.path), *scratch], "empty has no checkpoint yet")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_run_with_a_checkpoint_needs_its_source_no_more(source, adapted, tmp_path):
    config = heir(source, init="nowhere")
    check_possible(config, adapted.path)
    with pytest.raises(UserError, match="nowhere is not a run directory"):
        check_possible(config, tmp_path)


def test_cka_of_known_features():
    """Invariant to rotation and scale; 1 / sqrt(2) for one of two uncorrelated coordinates."""
    generator = np.random.default_rng(0)
    feature = generator.normal(size=(50, 4)) * np.array([1.0, 2.0, 3.0, 4.0])
    rotation = np.linalg.qr(generator.normal(size=(4, 4)))[0]
    assert linear_cka(feature, 7.0 * feature @ rotation + 3.0) == pytest.approx(1.0)
    first, second = generator.normal(size=(2, 5_000, 3))
    assert linear_cka(first, second) < 0.01
    assert linear_cka(first, np.ones((5_000, 2))) == 0.0
    corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert linear_cka(corners, corners[:, :1]) == pytest.approx(2**-0.5)


def test_transfer_from_beginning_to_end(source, capsys, monkeypatch, tmp_path):
    """Kept and scratch, tables and picture; again, from elsewhere, nothing is trained twice."""
    arguments = ["--shift", "degradation:1", "--figure", "--out", str(tmp_path)]
    assert run(["transfer", str(source.path), *arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    kept, scratch = result["conditions"]
    assert kept["condition"] == "fastr-keep-state-factor"
    assert scratch["condition"] == "fastr-scratch"
    assert kept["frozen_parameters"] > 0 == scratch["frozen_parameters"]
    everything = kept["trainable_parameters"] + kept["frozen_parameters"]
    assert everything == scratch["trainable_parameters"]
    assert kept["unadapted_return"] < 0  # Pendulum's rewards are costs
    values = {(entry["seed"], entry["what"]): entry["value"] for entry in result["moved"]}
    for seed in (3, 7):
        assert values[seed, "CKA of the state factor"] == pytest.approx(1.0, abs=1e-8)
        assert values[seed, "CKA of the action factor"] < 1 - 1e-7
        assert values[seed, "ranking loss, adapted"] > 0
    assert (tmp_path / "curves.png").stat().st_size > 1_000
    recorded = (tmp_path / "fastr-scratch" / "rows.jsonl").read_bytes()
    monkeypatch.chdir(source.path.parent)
    assert run(["transfer", source.path.name, *arguments]) == 0
    assert "What moved" in capsys.readouterr().out
    assert (tmp_path / "fastr-scratch" / "rows.jsonl").read_bytes() == recorded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shift", "permutation"], "at least two actuators"),
        (["--shift", "degradaton"], "Did you mean degradation"),
        (["--shift", "dead", "--keep", "encoder"], "it can keep state-factor"),
    ],
)
def test_wrong_transfers_are_one_sentence(source, refused, tmp_path, arguments, message):
    refused(["transfer", str(source.path), *arguments, "--out", str(tmp_path / "out")], message)
    assert not (tmp_path / "out").exists()


def test_returns_leave_out_frame_0():
    rows = [
        {"kind": "evaluation", "seed": 0, "frames": frames, "return": float(frames)}
        for frames in (0, 10, 20)
    ]
    assert returns_of(rows, (0,)) == (15.0, 0.0)
    assert returns_of(rows[:1], (0,)) == (None, None)


def test_two_runs_of_one_method_cannot_be_compared(source, adapted, refused):
    refused(["transfer", str(source.path), str(adapted.path), "--shift", "dead"], "same method")
