"""Shifted actuators: what arrives, and that a name always means the same."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastr import envs
from fastr.core import UserError
from fastr.envs.shifts import KINDS, draw

SIZES = st.integers(2, 40)
SEEDS = st.integers(0, 999)


def actions(size):
    return np.random.default_rng(size).uniform(-1, 1, size).astype(np.float32)


def shifted(name, action):
    (shift,) = draw(name, len(action))
    return shift(action)


@given(SIZES, SEEDS)
def test_a_permutation_moves_every_channel(size, seed):
    order = shifted(f"permutation:{seed}", np.arange(size, dtype=np.float32))
    assert sorted(order) == list(range(size))
    assert (order != np.arange(size)).all()


@given(SIZES, SEEDS)
def test_degradation_scales_and_flips(size, seed):
    action = actions(size)
    arrived = shifted(f"degradation:{seed}", action)
    gains = shifted(f"degradation:{seed}", np.ones(size, np.float32))
    assert ((np.abs(gains) >= 0.5) & (np.abs(gains) <= 1)).all()
    np.testing.assert_array_equal(arrived, gains * action)
    assert arrived.dtype == np.float32


@given(SIZES, st.integers(0, 2), SEEDS)
def test_dead_actuators_receive_nothing(size, count, seed):
    action = actions(size)
    arrived = shifted(f"dead={count}:{seed}", action)
    assert (arrived == 0).sum() == count
    np.testing.assert_array_equal(arrived[arrived != 0], action[arrived != 0])


def test_a_reversed_actuator_turns_the_other_way():
    np.testing.assert_array_equal(shifted("reverse:1", np.float32([3, 4, 5])), [3, -4, 5])


def test_dead_band_and_quantization():
    action = np.asarray([-1.0, -0.3, -0.05, 0.0, 0.09, 0.5, 1.0], np.float32)
    np.testing.assert_allclose(shifted("dead-band=0.1", action), [-1, -0.3, 0, 0, 0, 0.5, 1])
    np.testing.assert_allclose(
        shifted("quantization=5", action), [-1, -0.5, 0, 0, 0, 0.5, 1], atol=1e-6
    )


def test_latency_delays_copies():
    (shift,) = draw("latency=2", 1)
    arrived = []
    for i in range(1, 6):
        action = np.full(1, i, np.float32)
        arrived.append(float(shift(action)[0]))
        action[:] = 9.0
    assert arrived == [0, 0, 1, 2, 3]


def test_latency_forgets_between_episodes():
    with contextlib.closing(envs.load("toy_envs:Count-v0@latency=1", 1)) as environment:
        for _ in range(2):
            environment.reset(0)
            rewards = [environment.step(np.ones(1, np.float32)).reward for _ in range(2)]
            assert rewards == [2, 6]  # 0 and 1 in the environment's own units


def test_names_and_seeds_decide():
    action = actions(6)

    def arrived(name):
        for shift in draw(name, 6):
            name = shift(action)
        return name.tolist()

    assert arrived("permutation:3") == arrived("permutation:3") != arrived("permutation:4")
    # In a combination, each draws what it draws alone.
    assert arrived("degradation:2+dead=2:5") == arrived("dead=2:5")


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("walker-walk@permutaton", "Did you mean permutation"),
        ("walker-walk@permutation=3", "a seed is written @permutation:3"),
        ("walker-walk@reverse:6", "this robot has 6 actuators, numbered from 0"),
        ("walker-walk@latency=1.5", "whole number"),
        ("walker-walk@quantization=1", "at least 2"),
        ("walker-walk@dead=7", "more than this robot's 6 actuators"),
        ("cartpole-swingup@permutation", "this robot has one"),
    ],
)
def test_an_impossible_shift_is_one_sentence(task, says):
    with pytest.raises(UserError, match=says) as error:
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_physics_sees_the_shifted_torque(kind):
    plain, _ = after("walker-walk")
    arrived, states = after(f"walker-walk@{kind}")
    (shift,) = draw(kind, 6)
    expected = [shift(row.astype(np.float32)) for row in plain]
    np.testing.assert_allclose(arrived, expected, atol=1e-6)
    assert not np.allclose(arrived, plain)
    assert np.isfinite(states).all()


@pytest.mark.parametrize("task", ["walker-walk", "gym:HalfCheetah-v5"])
def test_no_shift_leaves_everything_as_it_was(task):
    identity = "latency=0+dead=0+dead-band=0"
    for plain, same in zip(after(task), after(f"{task}@{identity}"), strict=True):
        np.testing.assert_array_equal(same, plain)
