"""Exported policies: the same actions elsewhere, and a card that says what they are."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from fastr import envs
from fastr.cli import run
from fastr.core import EnvSpec, RunError
from fastr.envs import Bounds
from fastr.export import numpy_policy
from fastr.export.export import TOLERANCE, check_agreement
from fastr.export.program import Program, onnx_bytes, safetensors_bytes, scaling
from fastr.training.config import METHODS
from fastr.training.evaluate import template
from fastr.training.learner import NormalizedPolicy
from fastr.training.trained import load
from saved_runs import FRAMES, SEEDS, save_run, tiny_agent

ROOT = Path(__file__).parent.parent
SPEC = EnvSpec(3, 1)
BOUNDS = Bounds(np.array([-0.7]), np.array([5.1]))
FACTS = {"observation": [{"name": "all", "first": 0, "size": SPEC.state_dim}]}


def policy_of(method, *, normalize):
    """A policy with NumPy weights, and statistics far from 0 and 1 if it has any."""
    agent = replace(tiny_agent(method), normalize_observations=normalize)
    shapes = template(agent, SPEC)
    rng = np.random.default_rng(2)

    def leaf(path, shape):
        name = jax.tree_util.keystr(path)
        if name == ".mean":
            return rng.normal(0, 300, shape.shape).astype(np.float32)
        if name == ".std":
            return (10 ** rng.uniform(-3, 3, shape.shape)).astype(np.float32)
        scale = 0.25 if len(shape.shape) == 1 else shape.shape[0] ** -0.5
        return (scale * rng.normal(size=shape.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def observations_for(policy, count=64):
    rng = np.random.default_rng(3)
    states = 3 * rng.normal(size=(count, SPEC.state_dim))
    if isinstance(policy, NormalizedPolicy):
        states = policy.mean + policy.std * states
    return states.astype(np.float32)


def session_of(content):
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


CASES = [(method, METHODS[method].normalize_observations) for method in METHODS]
CASES += [("td7", True), ("sac", True), ("td3", not METHODS["td3"].normalize_observations)]


@pytest.mark.parametrize(("method", "normalize"), CASES)
def test_every_method_acts_alike_in_onnxruntime_and_numpy(method, normalize):
    policy = policy_of(method, normalize=normalize)
    assert isinstance(policy, NormalizedPolicy) == normalize
    states = observations_for(policy)
    expected = np.asarray(jax.vmap(policy)(states))
    assert np.ptp(expected) > 0.05
    assert np.abs(expected).max() < 0.9999
    program = Program.of(policy, BOUNDS)
    scaled = 2.2 + 2.9 * expected
    content = onnx_bytes(program, SPEC, {})
    actions, normalized = session_of(content).run(
        ["action", "normalized_action"], {"observation": states}
    )
    np.testing.assert_allclose(normalized, expected, atol=1e-5)
    np.testing.assert_allclose(actions, scaled, atol=2.9e-5)
    elsewhere = numpy_policy.parsed(safetensors_bytes(program, FACTS))
    np.testing.assert_allclose(elsewhere(states, "normalized_action"), expected, atol=1e-5)
    np.testing.assert_allclose(elsewhere(states), scaled, atol=2.9e-5)
    np.testing.assert_allclose(elsewhere(states[0]), scaled[0], atol=2.9e-5)


def test_onnx_takes_any_number_of_observations():
    content = onnx_bytes(Program.of(policy_of("fastr", normalize=True), BOUNDS), SPEC, {})
    session = session_of(content)
    for count in (0, 1, 7):
        states = np.zeros((count, SPEC.state_dim), np.float32)
        assert session.run(["action"], {"observation": states})[0].shape == (count, 1)
    with pytest.raises(Exception, match="Got invalid dimensions"):
        session.run(["action"], {"observation": np.zeros((1, 4), np.float32)})


@settings(max_examples=100, deadline=None)
@given(
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
    output=st.floats(-1, 1, width=32),
)
@example(low=-0.1, width=0.4, output=1.0)
@example(low=0.1, width=0.2, output=-1.0)
def test_scaled_actions_never_leave_the_bounds(low, width, output):
    """Also where float32 has no number that equals a bound."""
    bounds = Bounds(np.array([low]), np.array([low + width]))
    arrays = {name: np.asarray(array, np.float32) for name, array in scaling(bounds).items()}
    action = numpy_policy.OPERATIONS["rescale"](np.array([output], np.float32), **arrays)
    if arrays["low"] <= arrays["high"]:
        assert bounds.low[0] <= float(action[0]) <= bounds.high[0]
    exact = low + width / 2 * (1 + output)
    assert abs(float(action[0]) - exact) <= 1e-6 * (abs(low) + width)


# The command


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "pendulum"
    save_run(path)
    return path


@pytest.fixture(scope="module")
def exported(saved, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "pendulum"
    arguments = ["--seed", str(SEEDS[1]), "--episodes", "2", "--license", "CC-BY-4.0"]
    assert run(["export", str(saved), "--out", str(out), *arguments]) == 0
    return out


def greedy_return(environment, act, seed):
    state, total, over = environment.reset(seed), 0.0, False
    while not over:
        step = environment.step(act(state))
        state, over = step.next_state, step.terminated or step.truncated
        total += step.reward
    return total


def returns_of_example(script, *arguments):
    """The numbers that end the lines of an example, run without JAX and fastr."""
    code = (
        "import runpy, sys; sys.argv = ['x', *sys.argv[1:]]; "
        f"runpy.run_path({str(ROOT / 'examples' / script)!r}, run_name='__main__'); "
        "assert not {'jax', 'fastr'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]


def test_the_example_controls_without_jax(saved, exported):
    found = returns_of_example("control_with_onnx.py", exported / "policy.onnx")
    trained = load(saved, seed=SEEDS[1])
    environment = envs.load("gym:Pendulum-v1", 1)
    expected = [greedy_return(environment, trained.act, episode) for episode in range(10)]
    np.testing.assert_allclose(found, expected, rtol=0.01)


def test_the_example_films_policies_without_jax(tmp_path):
    task, frame_skip, film = "cartpole-balance", 5, tmp_path / "film.webp"
    save_run(tmp_path / "run", task=task, spec=EnvSpec(5, 1), frame_skip=frame_skip)
    folders = [tmp_path / str(seed) for seed in SEEDS]
    for seed, out in zip(SEEDS, folders, strict=True):
        options = ["--format", "safetensors", "--episodes", "0", "--seed", str(seed)]
        assert run(["export", str(tmp_path / "run"), "--out", str(out), *options]) == 0
    found = returns_of_example("film_policies.py", film, *folders)
    simulator = envs.load(task, frame_skip)
    expected = [
        greedy_return(simulator, load(tmp_path / "run", seed=seed).act, 0) for seed in SEEDS
    ]
    np.testing.assert_allclose(found, expected, rtol=0.01)
    with Image.open(film) as pictures:
        # Ten in each of six seconds, and the first: as many columns as policies.
        assert (pictures.n_frames, pictures.size) == (61, (2 * 160, 160))


def test_the_onnx_file_is_sound_and_says_where_it_comes_from(exported):
    model = onnx.load(exported / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 17
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert (facts["task"], facts["gymnasium_id"]) == ("gym:Pendulum-v1", "Pendulum-v1")
    assert (facts["seed"], facts["frames"]) == (str(SEEDS[1]), str(FRAMES))
    assert facts["license"] == "CC-BY-4.0"
    (actuator,) = json.loads(facts["action"])
    assert (actuator["low"], actuator["high"]) == (-2.0, 2.0)


def test_the_card_says_what_the_policy_is(exported):
    card = (exported / "MODEL_CARD.md").read_text()
    for words in (
        "# gym:Pendulum-v1, fastr, seed 7",
        "commit 0123abc with local changes",
        "mean -700.0 over 10 episodes for this seed; -800.0 over the run's training seeds 5, 7",
        "| 0 to 2 | observation |",
        "| 0 | actuator 0 | -2 | 2 |",
        r"&lt;b&gt;hostile&lt;/b&gt; \| processor",
    ):
        assert words in card, words


def test_returns_on_the_card_are_those_of_the_named_episodes(saved, exported):
    session = session_of((exported / "policy.onnx").read_bytes())
    played = json.loads(session.get_modelmeta().custom_metadata_map["evaluation"])
    trained = load(saved, seed=SEEDS[1])
    environment = envs.load("gym:Pendulum-v1", 1)
    found = [greedy_return(environment, trained.act, seed) for seed in played["reset_seeds"]]
    np.testing.assert_allclose(found, played["returns"], rtol=1e-3)
    assert played["return_mean"] == pytest.approx(np.mean(played["returns"]), abs=1e-3)


def test_safetensors_brings_its_own_loader(tmp_path, capsys):
    save_run(tmp_path / "run", method="td7", task="toy_envs:Count-v0@degradation:3")
    out = tmp_path / "out"
    arguments = ["--format", "safetensors", "--episodes", "0", "--json"]
    command = ["--import", "toy_envs", "export", str(tmp_path / "run")]
    assert run([*command, "--out", str(out), *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["largest_difference"] <= 1e-5
    assert len(list(out.iterdir())) == 4
    code = (
        "import sys; from numpy_policy import load; p = load('policy.safetensors'); "
        "print(p.facts['method'], *p([0.5, 1.5, -2.0]))\n"
        "for wrong in ([0.5], [[1.0], [2.0]], 0.5):\n"
        "    try: p(wrong)\n"
        "    except ValueError as error: assert 'must be (3,)' in str(error)\n"
        "    else: raise AssertionError(wrong)\n"
        "assert not {'jax', 'fastr', 'safetensors'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, cwd=out, capture_output=True, text=True, check=True).stdout
    method, action = said.split()
    # The environment's bounds are -2 and 6.
    expected = 2 + 4 * load(tmp_path / "run").act([0.5, 1.5, -2.0])[0]
    assert method == "td7"
    assert float(action) == pytest.approx(expected, abs=4e-5)


def test_an_environment_that_has_changed_is_refused(tmp_path, capsys):
    save_run(tmp_path / "run", task="toy_envs:Count-v0", spec=EnvSpec(5, 1))
    command = ["--import", "toy_envs", "export", str(tmp_path / "run")]
    assert run([*command, "--out", str(tmp_path / "out")]) == 2
    assert "3 observation entries" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_an_unknown_seed_leaves_nothing(saved, exported, refused):
    before = {path: path.read_bytes() for path in exported.iterdir()}
    refused(["export", str(saved), "--out", str(exported)], "choose another")
    assert {path: path.read_bytes() for path in exported.iterdir()} == before
    out = exported.parent / "out"
    refused(["export", str(saved), "--out", str(out), "--seed", "6"], "Seed 6 is not in", "[5, 7]")
    assert not out.exists()


def test_a_full_disk_leaves_nothing_behind(saved, tmp_path, capsys, monkeypatch):
    out, write = tmp_path / "out", Path.write_bytes

    def full(path, data):
        if path.name == "MODEL_CARD.md":
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert run(["export", str(saved), "--out", str(out), "--episodes", "0"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not out.exists()


def test_a_file_that_acts_otherwise_is_not_written(saved):
    trained = load(saved)
    states = np.zeros((4, 3), np.float32)
    assert check_agreement(trained.act, trained, states, "policy.onnx") == 0
    for wrong in (2e-5, np.nan):
        act = lambda s, w=wrong: trained.act(s) + w  # noqa: E731
        with pytest.raises(RunError, match=r"policy.onnx is not written"):
            check_agreement(act, trained, states, "policy.onnx")


def test_a_policy_that_rounds_much_may_be_rounded_as_much(saved):
    steep = jax.tree.map(lambda leaf: np.float32(16) * leaf, policy_of("fastr", normalize=False))
    trained = replace(load(saved), _policies=jax.tree.map(lambda leaf: leaf[None], steep))
    states = observations_for(steep, 4000)
    policy = numpy_policy.parsed(safetensors_bytes(Program.of(steep, BOUNDS), FACTS))
    act = lambda s: policy(s, "normalized_action")  # noqa: E731
    assert TOLERANCE < check_agreement(act, trained, states, "policy") < 1e-3
    with pytest.raises(RunError, match="is not written"):
        check_agreement(lambda s: act(s) + 1e-3, trained, states, "policy")
