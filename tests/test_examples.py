"""The examples do what their pages say."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import nbformat
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from nbclient import NotebookClient

from fastr.cli import after_imports, command, run
from fastr.core import EnvSpec, UserError
from fastr.representations.scores import ranking_losses
from fastr.training.config import METHODS, from_json, named, preset, register, to_json
from fastr.transition import Transition

EXAMPLES = Path(__file__).parent.parent / "examples"
SPEC = EnvSpec(state_dim=3, action_dim=2)
SIZES = {"feature_dim": 12, "hidden_dim": 10, "noise_levels": 3, "fourier_dim": 16, "head_dim": 9}


pytestmark = pytest.mark.usefixtures("with_examples")


@pytest.fixture
def gated(with_examples):  # noqa: ARG001
    return import_module("gated")


@pytest.fixture
def net(gated, make_weights):
    config = gated.GatedConfig(**SIZES, blocks=0, sharpness=2.0)
    return make_weights(jax.eval_shape(lambda key: config.init(SPEC, key), jax.random.key(0)), 0)


def test_the_feature_is_the_equation(net):
    state, action = jnp.array([0.3, -1.0, 2.0]), jnp.array([0.5, -0.7])
    product = net.state_encoder(state) * jnp.tanh(2.0 * net.action_encoder(action))
    expected = product / jnp.linalg.norm(product)
    assert jnp.allclose(net.feature(state, action), expected, atol=1e-6)


def test_identical_states_leave_chance(net):
    rows = jnp.ones((16, 3)), jnp.ones((16, 2)), jnp.ones((16, 3)), jnp.zeros(16), jnp.ones(16)
    # Without noise there is nothing to tell them apart by.
    logits = jax.jit(
        lambda net: net.contrast.logits(
            net.scored(Transition(*rows)).score, jnp.ones((3, 16, 3)), jnp.arange(3)
        )
    )(net)
    assert jnp.allclose(ranking_losses(logits), jnp.log(16.0), atol=1e-5)


def test_a_gradient_step_lowers_the_loss(net, make_batch):
    batch, key = make_batch(SPEC, 16, seed=1), jax.random.key(2)
    loss = jax.jit(jax.value_and_grad(lambda net: net.loss(batch, key)[0]))
    before, gradient = loss(net)
    after, _ = loss(jax.tree.map(lambda p, g: p - 0.01 * g, net, gradient))
    assert after < before


def test_a_method_of_ones_own_has_a_name_and_options(gated, capsys):
    assert named("gated").representation == gated.GatedConfig()
    line = ["--import", "gated", "info", "walker-walk", "--method", "gated", "--preset", "laptop"]
    config = command(*after_imports([*line, "--sharpness", "2"])).config
    expected = replace(gated.GatedConfig().laptop(), sharpness=2.0)
    assert config.agent.representation == expected
    assert from_json(json.loads(json.dumps(to_json(config)))) == config
    assert run([*line, "--sharpness", "-1"]) == 2
    assert "--sharpness" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run([*line, "--none", "1"])


def test_a_name_is_given_once():
    import_module("gated")
    register("gated", METHODS["gated"])
    with pytest.raises(UserError, match="gated exists"):
        register("gated", METHODS["fastr"])


def test_a_run_of_an_unknown_method_imports_nothing(tmp_path, capsys):
    record = to_json(preset("walker-walk", "fastr", "laptop")) | {"method": "gated"}
    (tmp_path / "config.json").write_text(json.dumps({"train": record, "provenance": {}}))
    assert run(["eval", str(tmp_path)]) == 2
    assert "--import MODULE` first, or in Python `import" in capsys.readouterr().err
    assert "gated" not in sys.modules


def test_the_hovercraft_is_an_environment():
    check_env(gymnasium.make("dock:Dock-v0").unwrapped, skip_render_check=True)


def test_the_hovercraft_drives_straight_with_equal_thrust():
    env = gymnasium.make("dock:Dock-v0").unwrapped
    env.reset(seed=0)
    env.place, env.heading = np.zeros(2), 0.0
    observation, reward, terminated, _, _ = env.step(np.array([1.0, 1.0, 0.0]))
    # v = 0.1 * 2 = 0.2 along x, then x = 0.1 * 0.2.
    assert np.allclose(observation, [0.02, 0, 1, 0, 0.2, 0, 0], atol=1e-7)
    assert reward == pytest.approx(np.exp(-0.02))
    assert not terminated


@pytest.fixture
def said(tmp_path):
    """A function that runs a script in an empty directory; the lines that it prints."""

    def run_script(name, *arguments):
        command = [sys.executable, str(EXAMPLES / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run_script


def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(EXAMPLES / "first_policy.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells)
    assert "FRAMES = 10_000" in cells[0].source
    cells[0].source = "FRAMES = 400"
    NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}).execute()
    assert "height: " in cells[4].outputs[0]["text"]
    assert "numpy_policy.py" in cells[-1].outputs[0]["text"]


def test_a_policy_for_ones_own_environment_runs_at_50_hz(said):
    lines = said("own_environment.py", "2100", "policy")
    assert "unlike training: nothing" in lines
    assert [line.split(":")[0] for line in lines[-2:]] == ["  joints[0]", "  joints[1]"]
    lines = said("robot_loop.py", "policy", "2")
    assert "50 observations look like training: starting" in lines
    commands, stops = (int(number) for number in re.findall(r"\d+", lines[-2]))
    assert commands + stops == 50
    assert 1 <= stops <= 9  # as the sensors fail for nine ticks
    assert lines[-1].startswith("predict: median ")


def test_a_robot_refuses_a_policy_for_another():
    robot_loop = import_module("robot_loop")
    robot_loop.require_contract(robot_loop.EXPECTED)
    degrees = [part | {"unit": "deg"} for part in robot_loop.EXPECTED["observation"]]
    with pytest.raises(SystemExit, match="observation: the policy has"):
        robot_loop.require_contract(robot_loop.EXPECTED | {"observation": degrees})


def test_a_log_is_written_and_learned_from(said):
    lines = said("from_logs.py", "600")
    assert lines[-1].split()[:2] == ["600", "0"]


def test_new_actuators_are_learned(said):
    lines = said("new_actuators.py", "reverse:0", "representation", "400", "600")
    assert [line.split()[-1].lstrip("-").isdigit() for line in lines] == [True] * 3
