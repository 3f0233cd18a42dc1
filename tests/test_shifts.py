"""Shifted actuators: what arrives, and that a name always means the same."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastr import envs
from fastr.core import UserError
from fastr.envs.shifts import (
    KINDS,
    Dead,
    DeadBand,
    Degradation,
    Latency,
    Permutation,
    Quantization,
    check,
    drawn,
)

SIZES = st.integers(2, 40)
SEEDS = st.integers(0, 999)


def actions(size):
    return np.random.default_rng(size).uniform(-1, 1, size).astype(np.float32)


@given(SIZES, SEEDS)
def test_a_permutation_moves_every_channel_and_can_be_undone(size, seed):
    (shift,) = drawn(f"permutation:{seed}", size)
    assert isinstance(shift, Permutation)
    assert sorted(shift.order) == list(range(size))
    assert all(i != channel for i, channel in enumerate(shift.order))
    action = actions(size)
    back = np.argsort(shift.order)
    np.testing.assert_array_equal(shift(action)[back], action)
    np.testing.assert_array_equal(shift(action[back]), action)


@given(SIZES, SEEDS)
def test_degradation_scales_and_flips(size, seed):
    (shift,) = drawn(f"degradation:{seed}", size)
    assert isinstance(shift, Degradation)
    assert all(0.5 <= abs(gain) <= 1 for gain in shift.gains)
    action = actions(size)
    np.testing.assert_array_equal(np.sign(shift(action)), np.sign(shift.gains) * np.sign(action))
    np.testing.assert_allclose(np.abs(shift(action) / action), np.abs(shift.gains), rtol=1e-6)
    assert shift(action).dtype == np.float32


@given(SIZES, st.integers(0, 2), SEEDS)
def test_dead_actuators_receive_nothing(size, count, seed):
    (shift,) = drawn(f"dead={count}:{seed}", size)
    assert isinstance(shift, Dead)
    arrived, action = shift(actions(size)), actions(size)
    assert (arrived == 0).sum() == count
    np.testing.assert_array_equal(arrived[arrived != 0], action[arrived != 0])


def test_both_signs_are_drawn():
    gains = drawn("degradation:1", 30)[0].gains
    assert min(gains) < 0 < max(gains)


def test_latency_delays_and_forgets_between_episodes():
    shift = Latency(2)
    sent = [np.full(1, i, np.float32) for i in range(1, 6)]
    assert [float(shift(action)[0]) for action in sent] == [0, 0, 1, 2, 3]
    shift.begin()
    assert float(shift(sent[4])[0]) == 0


def test_what_waits_is_a_copy():
    shift, action = Latency(1), np.ones(1, np.float32)
    shift(action)
    action[:] = 5.0
    assert float(shift(action)[0]) == 1


def test_dead_band_and_quantization():
    action = np.asarray([-1.0, -0.3, -0.05, 0.0, 0.09, 0.5, 1.0], np.float32)
    np.testing.assert_allclose(DeadBand(0.1)(action), [-1, -0.3, 0, 0, 0, 0.5, 1], atol=1e-7)
    np.testing.assert_allclose(Quantization(5)(action), [-1, -0.5, 0, 0, 0, 0.5, 1], atol=1e-6)


def test_names_and_seeds_decide():
    assert drawn("permutation:3", 6) == drawn("permutation:3", 6)
    assert drawn("permutation:3", 6) != drawn("permutation:4", 6)
    first, second = drawn("degradation:2+dead=2:5", 6)
    assert (first, second) == (*drawn("degradation:2", 6), *drawn("dead=2:5", 6))


@given(st.text("abdegilmnoprtuy-=+:0123456789. ", max_size=20))
def test_any_text_is_a_shift_or_one_sentence(text):
    with contextlib.suppress(UserError):
        check(text)
        assert len(drawn(text, 6)) == text.count("+") + 1


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("walker-walk@permutaton", "Did you mean permutation"),
        ("walker-walk@permutation=3", "a seed is written @permutation:3"),
        ("walker-walk@latency=1.5", "whole number"),
        ("walker-walk@quantization=1", "at least 2"),
        ("walker-walk@dead=7", "more than this robot's 6 actuators"),
        ("cartpole-swingup@permutation", "this robot has one"),
        ("walker-walk@", "not a shift"),
        ("walker-wlk@permutation", "'walker-wlk' is not a DM Control Suite task"),
    ],
)
def test_what_cannot_be_is_one_sentence(task, said):
    with pytest.raises(UserError, match=said) as error:
        envs.load(task, 2)
    assert "\n" not in str(error.value)


def after(task, steps=5):
    """Controls that reached the physics, and the states they led to."""
    rng, controls, states = np.random.default_rng(0), [], []
    with contextlib.closing(envs.load(task, 2)) as environment:
        inner = getattr(environment, "_inner", environment)
        states.append(environment.reset(4))
        for _ in range(steps):
            action = rng.uniform(-1, 1, environment.spec.action_dim).astype(np.float32)
            states.append(environment.step(action).next_state)
            controls.append(inner.robot().data.ctrl.copy())
    return np.asarray(controls), np.asarray(states)


@pytest.mark.parametrize("kind", ["permutation:3", "degradation:3", "dead=2", "latency=2"])
def test_the_physics_sees_the_shifted_torque(kind):
    plain, _ = after("walker-walk")
    shifted, _ = after(f"walker-walk@{kind}")
    (shift,) = drawn(kind, 6)
    expected = [shift(row.astype(np.float32)) for row in plain]
    np.testing.assert_allclose(shifted, expected, atol=1e-6)
    assert not np.allclose(shifted, plain)


@pytest.mark.parametrize("task", ["walker-walk", "gym:HalfCheetah-v5"])
@pytest.mark.parametrize("identity", ["latency=0", "dead=0", "dead-band=0"])
def test_no_shift_leaves_everything_as_it_was(task, identity):
    for plain, shifted in zip(after(task), after(f"{task}@{identity}"), strict=True):
        np.testing.assert_array_equal(shifted, plain)


def test_every_kind_can_be_loaded():
    for kind in KINDS:
        with contextlib.closing(envs.load(f"walker-walk@{kind}", 2)) as environment:
            environment.reset(0)
            assert np.isfinite(environment.step(np.ones(6, np.float32)).reward)
