"""Training with logged transitions: what a log must be, and that half of every batch is from it."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import fastr
from fastr.agents.spectral import Spectral
from fastr.cli import run
from fastr.core import EnvSpec, UserError
from fastr.data.logs import doubt_of_actions, log_of
from fastr.runs import RunDirectory, RunWriter
from fastr.training.config import from_json, grounded, preset
from fastr.training.learner import Learner, Logged
from fastr.training.loop import LOG_SHA256, begin, train
from test_train import Killed, assert_same_end, kill_at, tiny
from transitions import walk, write_lerobot

SPEC = EnvSpec(3, 1)


def columns(rows=400, seed=0, **changes):
    """A pendulum's log, its torques in the simulator's own unit: [-2, 2]."""
    random = np.random.default_rng(seed)
    state, action = random.normal(size=(rows, 3)), random.uniform(-2, 2, size=(rows, 1))
    found = {"state": state, "action": action, "next_state": state + 0.1 * action}
    found |= {"reward": -np.abs(state[:, 0]), "episode": np.arange(rows) // 100}
    return (
        {name: np.asarray(value, np.float32) for name, value in found.items()}
        | {"episode": found["episode"]}
        | changes
    )


@pytest.fixture
def log(tmp_path):
    np.savez(tmp_path / "log.npz", **columns())
    return tmp_path / "log.npz"


def with_log(path, **changes):
    return tiny(data=str(path), **changes)


def test_a_log_is_in_the_units_of_the_training(log):
    found = log_of(with_log(log))
    given = columns()
    np.testing.assert_allclose(found.rows[:, SPEC.row["action"]], given["action"] / 2, atol=1e-6)
    np.testing.assert_array_equal(found.rows[:, SPEC.row["reward"]], given["reward"])
    assert (found.rows[:, SPEC.row["continues"]] == 1.0).all()
    assert log_of(tiny()) is None
    with pytest.raises(UserError, match="no row for fresh"):
        with_log(log, data_share=0.99)
    with pytest.raises(UserError, match="not what it was"):
        log_of(with_log(log), "0" * 64)


def test_a_lerobot_dataset_is_a_log_if_it_has_rewards(tmp_path):
    given = walk(state_dim=3, action_dim=1)
    reward, success = np.arange(24, dtype=np.float32), np.arange(24) == 10
    path = write_lerobot(tmp_path / "a", given, next_reward=reward, next_success=success)
    rows = log_of(with_log(path)).rows
    np.testing.assert_allclose(rows[:, SPEC.row["action"]], given["action"] / 2, atol=1e-6)
    np.testing.assert_array_equal(rows[:, SPEC.row["next_state"]], given["next_state"])
    assert rows[:, SPEC.row["reward"]].tolist() == [i for i in range(24) if i % 6 < 5]
    assert np.flatnonzero(rows[:, SPEC.row["continues"]] == 0.0).tolist() == [9]
    with pytest.raises(UserError, match="no column reward"):
        log_of(with_log(write_lerobot(tmp_path / "b", given)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state": np.zeros((400, 2)), "next_state": np.zeros((400, 2))}, r"observation \(3\)"),
        ({"action": 3 * np.ones((400, 1), np.float32)}, r"must lie in \[-2, 2\]"),
        ({"reward": np.full(400, np.nan)}, "must be finite"),
    ],
)
def test_a_log_that_does_not_fit_is_refused(changes, message, tmp_path, refused):
    np.savez(tmp_path / "log.npz", **columns(**changes))
    with pytest.raises(UserError, match=message):
        log_of(with_log(tmp_path / "log.npz"))
    out = ["--out", str(tmp_path / "run")]
    refused(["train", "gym:Pendulum-v1", "--data", str(tmp_path / "log.npz"), *out], "log.npz")
    assert not (tmp_path / "run").exists()


def test_a_log_without_rewards_is_refused(tmp_path):
    given = columns()
    del given["reward"]
    np.savez(tmp_path / "log.npz", **given)
    with pytest.raises(UserError, match="no column reward"):
        log_of(with_log(tmp_path / "log.npz"))


def test_actions_in_the_wrong_row_are_noticed():
    """A policy's actions are smooth; the change of state is that of its own row all the same."""
    random = np.random.default_rng(0)
    action = np.cumsum(random.normal(size=(2_000, 2)), axis=0)
    action = 0.9 * np.sin(action)
    state = random.normal(size=(2_000, 4))
    change = 0.1 * state + np.repeat(action, 2, axis=1) + 0.1 * random.normal(size=(2_000, 4))
    episodes = np.arange(2_000) // 500
    assert doubt_of_actions(state, action, state + change, episodes) == ""
    late = np.roll(action, -1, axis=0)
    assert "shifted by one row" in doubt_of_actions(state, late, state + change, episodes)


def test_a_share_of_every_batch_is_from_the_log(monkeypatch):
    config = replace(tiny().agent, normalize_observations=False)
    learner = Learner.init(config, SPEC, 8, jnp.int32(0))
    for i in range(8):
        learner = learner.observe(jnp.zeros(SPEC.row_dim), jnp.int32(i))
    log = Logged(jnp.full((5, SPEC.row_dim), 7.0), 4)
    update, seen = Spectral.update, []

    def spied(agent, batch, key, step):
        seen.append(batch.state[:, 0])
        return update(agent, batch, key, step)

    monkeypatch.setattr(Spectral, "update", spied)
    learner.improve(jnp.int32(8), jnp.int32(0), log)
    assert sorted(seen[0].tolist()) == [0.0] * 12 + [7.0] * 4


def trained(config, path, **options):
    log = log_of(config)
    with begin(config, path, log) as writer:
        train(config, writer, log=log, **options)
    return RunDirectory.open(path)


def test_a_run_with_other_steps_is_no_log(log, tmp_path):
    trained(with_log(log, seeds=(3,)), tmp_path / "run")
    assert len(log_of(with_log(tmp_path / "run")).rows) == 250
    with pytest.raises(UserError, match="--frame-skip 2, this training has 1"):
        log_of(with_log(tmp_path / "run", frame_skip=1))


def test_killed_and_resumed_with_a_log_equals_uninterrupted(log, tmp_path, capsys):
    config = with_log(log)
    whole = trained(config, tmp_path / "whole")
    count = whole.latest().arrays()["learners.moments.count"]
    assert (count == 400 + 250).all()
    with pytest.raises(Killed):
        trained(config, tmp_path / "killed", listeners=(kill_at(400),))
    kept = log.read_bytes()
    np.savez(log, **columns(seed=1))
    assert run(["resume", str(tmp_path / "killed")]) == 2
    assert "not what it was" in capsys.readouterr().err
    log.write_bytes(kept)
    assert run(["resume", str(tmp_path / "killed")]) == 0
    assert_same_end(tmp_path / "killed", whole)
    assert LOG_SHA256 in whole.config["provenance"]
    assert from_json(whole.config["train"]).logged_rows == 8
    with RunWriter.resume(tmp_path / "killed")[0]:
        pass


def test_offline_learns_from_the_log_alone(log, tmp_path):
    """Killed and resumed as undisturbed; the policy imitates; every batch is the log's."""
    config = grounded(with_log(log, offline=True))
    whole = trained(config, tmp_path / "whole")
    assert from_json(whole.config["train"]).agent.imitation == 0.4
    assert [row["kind"] for row in whole.rows() if row["seed"] == 3] == ["evaluation"] * 3
    with pytest.raises(Killed):
        trained(config, tmp_path / "killed", listeners=(kill_at(400),))
    assert run(["resume", str(tmp_path / "killed")]) == 0
    assert_same_end(tmp_path / "killed", whole)
    checkpoint = whole.latest()
    count = checkpoint.arrays()["learners.moments.count"]
    assert (count == 400).all()
    assert checkpoint.replay.start == checkpoint.replay.end


def test_a_log_needs_no_environment(tmp_path, capsys):
    log, fit = tmp_path / "log.npz", tmp_path / "fit"
    np.savez(log, **columns())
    assert run(["fit", str(log), "--out", str(fit)]) == 2
    assert "add the arrays action_low" in capsys.readouterr().err
    np.savez(log, **columns(), action_low=[-2.0], action_high=[2.0])
    sizes = ["--batch-size", "16", "--hidden-dim", "8", "--feature-dim", "8", "--actor-dim", "8"]
    assert run(["fit", str(log), "--frames", "400", *sizes, "--out", str(fit)]) == 0
    fitted = fastr.load(fit)
    action, _ = fitted.policy().predict(np.zeros(3))
    assert abs(action[0]) <= 2.0
    arrays = RunDirectory.open(fit).latest().arrays()
    steps = {name: count for name, count in arrays.items() if name.endswith("moments.0.count")}
    assert {name.split(".")[2]: int(count[0]) for name, count in steps.items()} == {
        "representation": 201,
        "critics": 0,
        "actor": 0,
    }
    fitted.export(tmp_path / "policy", "safetensors")
    assert run(["eval", str(fit)]) == 2
    assert "learned from a log alone" in capsys.readouterr().err
    assert run(["report", str(fit), "--out", str(tmp_path / "report")]) == 2
    assert "learned from a log alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offline": True}, "--offline needs --data"),
        ({"offline": True, "data": "log.npz", "method": "sac"}, "cannot imitate"),
    ],
)
def test_what_offline_cannot_do_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        replace(preset("", options.pop("method", "td3"), "laptop"), **options)
