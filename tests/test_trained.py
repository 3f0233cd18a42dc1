"""fastr.load: what a library's user sees of a trained run."""

import re
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

import fastr
from fastr.core import UserError
from fastr.nn.activations import average_l1_norm
from fastr.runs.directory import RunDirectory
from fastr.training.evaluate import compiled
from fastr.training.state import saved_cohort
from fastr.training.trained import load
from saved_runs import FRAMES, SEEDS, save_run

SHAPES = [(), (1,), (0,), (2, 3), (1, 2, 3), (2, 0)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "fastr"
    return path, save_run(path)


@pytest.fixture(scope="module")
def trained(run):
    return load(run[0])


def learner_of(trained, place):
    """The learner behind one seed, for expectations."""
    cohort, _ = saved_cohort(trained.config, RunDirectory.open(trained.path).latest())
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[place]), cohort.learners)


def pair_of(trained):
    return jnp.asarray(states_of(trained, 1)[0]), jnp.asarray(actions_of(trained, 1)[0])


def states_of(trained, count):
    rng = np.random.default_rng(0)
    return rng.normal(3, 200, (count, trained.spec.state_dim)).astype(np.float32)


def actions_of(trained, count):
    rng = np.random.default_rng(1)
    return rng.uniform(-1, 1, (count, trained.spec.action_dim)).astype(np.float32)


def test_importing_fastr_does_not_load_jax():
    code = "import fastr, sys; fastr.__version__; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_loaded_yet_can_be_found():
    assert {"Run", "load"} <= set(dir(fastr))


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="lod"):
        fastr.lod  # noqa: B018


def test_a_run_says_what_it_is(run, trained):
    assert trained.config == run[1]
    assert (trained.spec.state_dim, trained.spec.action_dim) == (3, 1)
    assert (trained.frames, trained.seed, trained.path) == (FRAMES, SEEDS[0], run[0])


def test_actions_are_those_of_the_policy_that_evaluation_plays(trained):
    act = compiled(trained.config.agent, trained.spec)
    for one in trained.every_seed():
        states = states_of(trained, 5)
        expected = [act(one.leaves, state) for state in states]
        np.testing.assert_allclose(one.act(states), expected, atol=1e-6)
        np.testing.assert_allclose(one.act(states[0]), expected[0], atol=1e-6)
        assert np.ptp(expected) > 0.05


def test_seeds_are_told_apart(run, trained):
    states = states_of(trained, 4)
    other = load(run[0], seed=SEEDS[1])
    np.testing.assert_array_equal(other.act(states), trained.with_seed(SEEDS[1]).act(states))
    assert not np.allclose(other.act(states), trained.act(states), atol=1e-3)


def test_features_are_what_the_critics_read(trained):
    """phi_s * phi_a of normalised observations, from the target copy, over its norm."""
    learner = learner_of(trained, 1)
    net = learner.agent.target_representation
    state, action = pair_of(trained)
    seen = (state - learner.moments.mean) / jnp.sqrt(learner.moments.variance + 1e-8)
    product = np.asarray(net.state_encoder(seen) * net.action_encoder(action))
    found = trained.with_seed(SEEDS[1]).features(state, action)
    np.testing.assert_allclose(found, product / np.linalg.norm(product), atol=1e-5)
    online = learner.agent.representation.net.feature(seen, action)
    assert not np.allclose(found, online, atol=1e-3)


def test_features_follow_the_configuration_to_the_online_copy(tmp_path, run):
    agent = replace(run[1].agent, feature_source="online")
    save_run(tmp_path / "run", agent=agent)
    trained = load(tmp_path / "run")
    learner = learner_of(trained, 0)
    state, action = pair_of(trained)
    expected = learner.agent.representation.net.feature(learner.normalize(state), action)
    np.testing.assert_allclose(trained.features(state, action), expected, atol=1e-5)


def test_td7_has_the_embedding_of_its_kept_policy(tmp_path):
    """And a TD7 run can be read at all: its priorities have the shape of the replay."""
    save_run(tmp_path / "td7", method="td7")
    trained = load(tmp_path / "td7")
    agent = learner_of(trained, 0).agent
    encoder = agent.encoder.layout.unpack(agent.checkpoint.encoder)
    state, action = pair_of(trained)
    zs = average_l1_norm(encoder.state(state))
    expected = encoder.pair(jnp.concatenate([zs, action]))
    np.testing.assert_allclose(trained.features(state, action), expected, atol=1e-5)
    assert not trained.has_factors


def test_a_method_without_a_representation_says_so(tmp_path):
    save_run(tmp_path / "sac", method="sac")
    trained = load(tmp_path / "sac")
    assert trained.act(states_of(trained, 2)).shape == (2, 1)
    with pytest.raises(UserError, match="sac learns no representation"):
        trained.features(states_of(trained, 1), actions_of(trained, 1))


@pytest.mark.parametrize("leading", SHAPES)
def test_leading_axes_come_back(trained, leading):
    states = states_of(trained, int(np.prod(leading, dtype=int))).reshape(*leading, 3)
    actions = trained.act(states)
    assert actions.shape == (*leading, 1)
    assert actions.dtype == np.float32
    assert np.all(np.abs(actions) <= 1)
    features = trained.features(states, actions)
    assert features.shape == (*leading, 12)
    assert features.dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(
    state=hnp.arrays(
        hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)
    )
)
def test_any_array_is_acted_on_or_refused_in_one_sentence(trained, state):
    try:
        actions = trained.act(state)
    except UserError as error:
        said = str(error)
    else:
        said = "state is fine"
        assert actions.shape == (*state.shape[:-1], 1)
        assert np.all(np.isfinite(actions))
    assert re.fullmatch("state .*", said)


WRONG_STATES = {
    "size": (np.zeros(4), r"state has shape \(4,\); it must be \(3,\)"),
    "scalar": (1.0, r"state has shape \(\)"),
    "nan": ([0.0, np.nan, 0.0], "not finite"),
    "overflow": ([0.0, 1e300, 0.0], "not finite"),
    "text": (["a", "b", "c"], "not an array of real numbers"),
    "complex": (np.zeros(3, complex), "not an array of real numbers"),
    "ragged": ([[1.0], [1.0, 2.0]], "not an array of real numbers"),
    "nothing": (None, "not an array of real numbers"),
}


@pytest.mark.parametrize(("state", "said"), WRONG_STATES.values(), ids=WRONG_STATES.keys())
def test_wrong_states_are_refused(trained, state, said):
    with pytest.raises(UserError, match=said):
        trained.act(state)


def test_wrong_actions_are_refused(trained):
    states = states_of(trained, 2)
    with pytest.raises(UserError, match=r"action reaches 2; fastr's actions lie in \[-1, 1\]"):
        trained.features(states, [[0.0], [-2.0]])
    with pytest.raises(UserError, match="all axes but the last must agree"):
        trained.features(states, [0.0])


def test_what_cannot_be_loaded_is_refused(run, tmp_path):
    with pytest.raises(UserError, match="not a run directory"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"Seed 6 is not in .*; it has \[5, 7\]"):
        load(run[0], seed=6)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    save_run(tmp_path / "run")
    (state,) = (tmp_path / "run").rglob("state.safetensors")
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    with pytest.raises(UserError, match="no usable checkpoint"):
        load(tmp_path / "run")


def test_a_checkpoint_that_was_passed_over_is_named(run, monkeypatch):
    sound = RunDirectory.open(run[0]).latest()
    passed = replace(sound, skipped=("checkpoint 000005000 is damaged",))
    monkeypatch.setattr(RunDirectory, "latest", lambda _: passed)
    with pytest.warns(UserWarning, match="000005000 is damaged"):
        load(run[0])
