"""`import fastr`: an environment of the program itself, trained, loaded, used and exported."""

import json
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import fastr
from fastr.core import UserError
from fastr.export import numpy_policy
from fastr.runs.contract import Contract

SMALL = {"frame_skip": 1, "random_frames": 40, "eval_frames": 200, "eval_episodes": 1}
SMALL |= {"hidden_dim": 8, "batch_size": 8, "checkpoint_frames": 0}


class Arm(gymnasium.Env):
    """Its Dict is out of alphabetical order, its action has two axes."""

    metadata: ClassVar = {"render_modes": [], "render_fps": 50, "units": {"joints": "rad"}}
    action_space = Box(-2.0, 6.0, (1, 2), np.float32)

    def __init__(self):
        parts = [("joints", Box(-9, 9, (2, 2))), ("aim", Box(-1, 1, (1,)))]
        self.observation_space = Dict(parts)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        super().reset(seed=seed)
        self.joints = self.np_random.normal(size=(2, 2)).astype(np.float32)
        return self.seen(), {}

    def seen(self):
        return {"aim": np.ones(1, np.float32), "joints": self.joints}

    def step(self, action):
        assert action.shape == (1, 2)
        self.joints = self.joints + 0.01 * action.astype(np.float32)
        return self.seen(), -float(np.abs(self.joints).sum()), False, False, {}


def arm():
    return gymnasium.wrappers.TimeLimit(Arm(), 50)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "arm"
    return fastr.train(arm, "td3", seeds=[3, 7], frames=200, out=path, **SMALL)


def test_actions_are_in_the_environments_units(run):
    observation, _ = arm().reset(seed=0)
    action, state = run.policy(7).predict(observation)
    assert state is None
    assert arm().action_space.contains(action)
    flat = np.concatenate([observation["joints"].ravel(), observation["aim"]])
    normalized = run.trained(7).act(flat)
    np.testing.assert_allclose(action[0], 2.0 + 4.0 * normalized, rtol=1e-6)
    many = {name: np.stack([part] * 3) for name, part in observation.items()}
    actions, _ = run.policy(7).predict(many)
    np.testing.assert_allclose(actions, np.stack([action] * 3), rtol=1e-5)
    np.testing.assert_allclose(run.contract.normalized(actions), [normalized] * 3, atol=1e-6)
    with pytest.raises(UserError, match="it must have joints, aim"):
        run.policy().predict({"joints": observation["joints"]})


def test_a_run_is_what_it_recorded(run):
    curve = run.curve()
    assert list(curve.columns) == ["frames", "seed", "return"]
    assert curve["frames"].tolist() == [0, 200, 0, 200]
    assert run.seeds == (3, 7)
    again = fastr.load(run.path, env=arm)
    np.testing.assert_array_equal(run.evaluate(1), again.evaluate(1))
    with pytest.raises(UserError, match="no representation"):
        again.features(np.zeros(5), np.zeros((1, 2)))


def test_the_contract_names_every_entry(run):
    found = json.loads((run.path / "contract.json").read_text())
    parts = [(p["name"], p["first"], p["shape"], p["unit"]) for p in found["observation"]]
    assert parts == [("joints", 0, [2, 2], "rad"), ("aim", 4, [1], None)]
    assert [(e["low"], e["high"]) for e in found["action"]] == [(-2.0, 6.0)] * 2
    assert found["action_seconds"] == 0.02
    assert Contract.from_json(found, "") == run.contract
    for name in ("observation", "action", "action_shape", "frame_skip"):
        with pytest.raises(UserError, match="contract"):
            Contract.from_json({key: found[key] for key in found if key != name} | {name: None}, "")


def test_a_recording_is_compared_with_training(run, tmp_path):
    environment, seen = arm(), []
    for seed in range(20):
        seen.append(environment.reset(seed=seed)[0])
    recording = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
    run.export(tmp_path / "policy", "safetensors")
    for policy in (run.policy(), numpy_policy.load(tmp_path / "policy" / "policy.safetensors")):
        assert policy.check(recording) == []
        degrees = recording | {"joints": np.rad2deg(recording["joints"])}
        assert [line.split(":")[0] for line in policy.check(degrees)] == [
            f"joints[{i}]" for i in range(4)
        ]
        aim_first = np.concatenate([recording["aim"], recording["joints"].reshape(20, 4)], axis=1)
        assert "aim" in policy.check(aim_first)[-1]
        action, _ = policy.predict(seen[0])
        np.testing.assert_allclose(action, run.policy().predict(seen[0])[0], atol=1e-5)
        assert action.shape == (1, 2)


def test_a_callback_stops_and_a_run_goes_on(tmp_path):
    gymnasium.register("Cell-v0", Arm, max_episode_steps=50)
    seen = []

    def callback(row):
        seen.append(row["frames"])
        return row["frames"] < 100

    run = fastr.train("Cell-v0", "td3", frames=150, out=tmp_path / "a", callback=callback, **SMALL)
    assert run.frames < 150
    assert run.resume(frames=200).frames == 200
    facts = run.export(tmp_path / "policy", "safetensors")
    assert facts["observation"][0]["name"] == "joints"


def test_options_are_found_by_name(tmp_path):
    with pytest.raises(UserError, match=r"no option noise_level\. Did you mean noise_levels"):
        fastr.train("walker-walk", noise_level=3, out=tmp_path / "a")
    with pytest.raises(UserError, match="discount"):
        fastr.train("walker-walk", discount="high", out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_environment_without_an_end_is_refused(tmp_path):
    with pytest.raises(UserError, match="TimeLimit"):
        fastr.train(Arm, "td3", out=tmp_path / "a")
