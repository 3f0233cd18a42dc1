"""The examples do what their pages say."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from fastr.cli import run
from fastr.errors import UserError
from fastr.methods import METHODS, named, register
from fastr.spec import EnvSpec
from fastr.types import Transition

SPEC = EnvSpec(state_dim=3, action_dim=2)
SIZES = {"feature_dim": 12, "hidden_dim": 10, "noise_levels": 3, "fourier_dim": 16, "head_dim": 9}


@pytest.fixture
def gated(with_examples):
    import gated

    return gated


@pytest.fixture
def net(gated):
    return gated.GatedConfig(**SIZES, blocks=0, sharpness=2.0).init(SPEC, jax.random.key(0))


def test_the_feature_is_the_equation(net):
    state, action = jnp.array([0.3, -1.0, 2.0]), jnp.array([0.5, -0.7])
    product = net.state_encoder(state) * jnp.tanh(2.0 * net.action_encoder(action))
    expected = product / jnp.linalg.norm(product)
    assert jnp.allclose(net.feature(state, action), expected, atol=1e-6)


def test_identical_states_leave_chance(net):
    rows = jnp.ones((16, 3)), jnp.ones((16, 2)), jnp.ones((16, 3)), jnp.zeros(16), jnp.ones(16)
    # Without noise there is nothing to tell them apart by.
    logits = net.contrast.logits(net.scored(Transition(*rows)).score, jnp.ones((3, 16, 3)))
    assert jnp.allclose(jax.nn.logsumexp(logits, axis=-1) - logits[..., 0], jnp.log(16.0), atol=1e-5)


def test_a_gradient_step_lowers_the_loss(net, make_batch):
    batch, key = make_batch(SPEC, 16, seed=1), jax.random.key(2)
    loss = lambda net: net.loss(batch, key)[0]  # noqa: E731
    before, gradient = jax.jit(jax.value_and_grad(loss))(net)
    after = loss(jax.tree.map(lambda p, g: p - 0.01 * g, net, gradient))
    assert after < before


def test_a_method_of_ones_own_has_a_name_and_options(gated, capsys):
    assert named("gated").representation == gated.GatedConfig()
    line = ["--import", "gated", "info", "walker-walk", "--method", "gated", "--json"]
    assert run([*line, "--sharpness", "2", "--preset", "quick"]) == 0
    assert '"method": "gated"' in capsys.readouterr().out
    assert run([*line, "--sharpness", "-1"]) == 2
    assert "--sharpness" in capsys.readouterr().err


def test_a_name_is_given_once(gated):
    register("gated", METHODS["gated"])
    with pytest.raises(UserError, match="gated already"):
        register("gated", METHODS["fastr"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["info", "walker-walk", "--method", "gated"], "--import MODULE"),
        (["ablation", "walker-walk", "--methods", "gated"], "--import MODULE"),
        (["--import", "no_such_module", "info", "walker-walk"], "no_such_module"),
        (["--import"], "--import"),
    ],
)
def test_what_is_not_imported_is_unknown(arguments, said, capsys):
    assert run(arguments) == 2
    words = capsys.readouterr().err
    assert said in words
    assert words.count("\n") == 1


def test_a_run_of_an_unknown_method_imports_nothing(with_examples, monkeypatch, tmp_path, capsys):
    import json
    import sys

    from fastr.config import preset, to_json

    record = to_json(preset("walker-walk", "fastr", "quick")) | {"method": "gated"}
    (tmp_path / "config.json").write_text(json.dumps({"train": record, "provenance": {}}))
    assert run(["eval", str(tmp_path)]) == 2
    assert "--import MODULE" in capsys.readouterr().err
    assert "gated" not in sys.modules


def test_the_hovercraft_is_an_environment(with_examples):
    check_env(gymnasium.make("dock:Dock-v0").unwrapped, skip_render_check=True)


def test_the_hovercraft_drives_straight_with_equal_thrust(with_examples):
    env = gymnasium.make("dock:Dock-v0").unwrapped
    env.reset(seed=0)
    env.place, env.heading = np.zeros(2), 0.0
    observation, reward, terminated, _, _ = env.step(np.array([1.0, 1.0, 0.0]))
    # v = 0.1 * 2 = 0.2 along x, then x = 0.1 * 0.2.
    assert np.allclose(observation, [0.02, 0, 1, 0, 0.2, 0, 0], atol=1e-7)
    assert reward == pytest.approx(np.exp(-0.02))
    assert not terminated
