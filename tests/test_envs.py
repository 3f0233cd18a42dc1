"""What environments do with actions, frames, the ends of episodes, and seeds."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toy_envs
from fastr import envs
from fastr.core import EnvSpec, UserError
from fastr.envs import episode_seed, load, tasks


def actions(spec: EnvSpec, steps: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.uniform(-1, 1, (steps, spec.action_dim)).astype(np.float32)


def rollout(environment: envs.Environment, seed: int, steps: int) -> list[np.ndarray]:
    states = [environment.reset(seed)]
    rewards = []
    for action in actions(environment.spec, steps, seed):
        step = environment.step(action)
        states.append(step.next_state)
        rewards.append(step.reward)
    return [*states, np.array(rewards)]


def same_bits(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return [array.tobytes() for array in ours] == [array.tobytes() for array in theirs]


# Sizes, actions, frames


@pytest.mark.parametrize(
    ("task", "state_dim", "action_dim"),
    [
        ("cheetah-run", 17, 6),
        ("walker-walk", 24, 6),
        ("quadruped-run", 78, 12),
        ("quadruped-escape", 101, 12),
        ("humanoid-walk", 67, 21),
        ("dog-walk", 223, 38),
        ("gym:HalfCheetah-v5", 17, 6),
    ],
)
def test_sizes(task, state_dim, action_dim):
    environment = load(task, 2)
    assert environment.spec == EnvSpec(state_dim, action_dim)
    assert environment.episode_frames == 1_000
    state = environment.reset(0)
    assert state.dtype == np.float32
    assert state.shape == (state_dim,)


def test_spec_needs_no_environment():
    assert envs.spec("toy_envs:Count-v0", 2) == EnvSpec(3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("task", tasks())
def test_every_suite_task_forgets_its_past(task):
    environment = load(task, 2)
    fresh = rollout(environment, 5, 10)
    assert all(np.isfinite(array).all() for array in fresh)
    assert environment.episode_frames == 1_000
    rollout(environment, 6, 10)
    assert same_bits(fresh, rollout(environment, 5, 10))
    assert same_bits(fresh, rollout(load(task, 2), 5, 10))


def test_actions_reach_the_actuators_at_their_own_bounds():
    environment = load("quadruped-walk", 1)
    environment.reset(0)
    bounds = environment._env.action_spec()
    assert bounds.maximum.max() == pytest.approx(1.1)  # so that this test can see a wrong scale
    for action, expected in [
        (-1.0, bounds.minimum),
        (0.0, (bounds.minimum + bounds.maximum) / 2),
        (1.0, bounds.maximum),
        (7.0, bounds.maximum),
    ]:
        environment.step(np.full(12, action, np.float32))
        np.testing.assert_allclose(environment._env.physics.data.ctrl, expected, rtol=1e-12)


def test_an_actuator_without_limits_takes_the_action_as_it_is():
    environment = load("lqr-lqr_6_2", 1)
    environment.reset(0)
    environment.step(np.array([0.25, 3.0], np.float32))
    np.testing.assert_array_equal(environment._env.physics.data.ctrl, [0.25, 1.0])


@pytest.mark.parametrize(("action", "arrives"), [(-1, -2), (0, 2), (0.5, 4), (1, 6), (9, 6)])
def test_gym_actions_are_rescaled(action, arrives):
    environment = load("toy_envs:Count-v0", 1)
    environment.reset(0)
    assert environment.step(np.array([action], np.float32)).reward == arrives


@pytest.mark.parametrize("task", ["cheetah-run", "gym:HalfCheetah-v5"])
def test_a_held_action_is_the_same_as_a_repeated_one(task):
    held, single = load(task, 4), load(task, 1)
    np.testing.assert_array_equal(held.reset(3), single.reset(3))
    for action in actions(held.spec, 5):
        frames = [single.step(action) for _ in range(4)]
        step = held.step(action)
        assert step.reward == sum(frame.reward for frame in frames)
        assert step.next_state.tobytes() == frames[-1].next_state.tobytes()


@pytest.mark.parametrize(
    ("task", "works"),
    [("humanoid-walk", "1, 2, 4, 5, 8, 10, 20"), ("toy_envs:Count-v0", "1, 2, 4")],
)
def test_a_frame_skip_must_divide_the_episode(task, works):
    with pytest.raises(UserError, match=rf"frame skip of 3 does not divide .* such as {works}\."):
        load(task, 3)


def test_a_frame_skip_is_at_least_one():
    with pytest.raises(UserError, match="1 or more"):
        load("humanoid-walk", 0)


def test_dictionary_observations_are_flat_in_the_spaces_order():
    environment = load("toy_envs:Parts-v0", 1)
    assert environment.spec.state_dim == 6
    np.testing.assert_array_equal(environment.reset(0), [0, 1, 2, 3, 5, 0])
    assert environment.step(np.zeros(1, np.float32)).next_state.dtype == np.float32


def test_suite_observations_are_flat_in_the_suites_order():
    from dm_control import suite

    environment = load("humanoid-walk", 1)
    state = environment.reset(0)
    keys = ["joint_angles", "head_height", "extremities", "torso_vertical", "com_velocity"]
    physics = environment._env.physics
    assert [part.name for part in environment.parts][:5] == keys
    assert list(suite.load("humanoid", "walk").observation_spec())[:5] == keys
    np.testing.assert_array_equal(state[:21], physics.joint_angles().astype(np.float32))
    assert state[21] == np.float32(physics.head_height())


@pytest.mark.parametrize("task", ["humanoid-walk", "quadruped-run", "finger-turn_hard"])
def test_states_are_what_the_suite_itself_observes(task):
    from dm_control import suite

    ours, theirs = load(task, 2), suite.load(*task.split("-"), task_kwargs={"random": 0})

    def seen(timestep):
        return np.concatenate([np.ravel(part) for part in timestep.observation.values()])

    for seed in (3, 4):
        theirs.task.random.seed(seed)
        np.testing.assert_array_equal(ours.reset(seed), seen(theirs.reset()).astype(np.float32))
        for action in actions(ours.spec, 5):
            frames = [theirs.step(ours._rescaled(action)) for _ in range(2)]
            step = ours.step(action)
            assert step.reward == sum(frame.reward for frame in frames)
            np.testing.assert_array_equal(step.next_state, seen(frames[-1]).astype(np.float32))


# Ends of episodes


def test_a_suite_episode_is_truncated_at_its_last_frame():
    environment = load("cartpole-balance", 250)
    environment.reset(0)
    steps = [environment.step(np.zeros(1, np.float32)) for _ in range(4)]
    assert [step.truncated for step in steps] == [False, False, False, True]
    assert not any(step.terminated for step in steps)
    physics = environment._env.physics
    np.testing.assert_array_equal(steps[-1].next_state[:3], physics.bounded_position().astype("f"))


def test_a_suite_task_without_a_time_limit_is_truncated_too():
    environment = load("lqr-lqr_2_1", 500)
    environment.reset(0)
    steps = [environment.step(np.ones(1, np.float32)) for _ in range(2)]
    assert [step.truncated for step in steps] == [False, True]
    assert environment.reset(1) is not None
    assert not environment.step(np.ones(1, np.float32)).truncated


def test_a_suite_termination_ends_the_held_action():
    environment = load("lqr-lqr_2_1", 4)
    environment.reset(0)
    with environment._env.physics.reset_context():
        environment._env.physics.data.qpos[:] = 0.0
    step = environment.step(np.zeros(1, np.float32))
    assert step.terminated
    assert not step.truncated
    assert environment._frames == 1


@pytest.mark.parametrize(
    ("task", "frame_skip", "frames", "terminated", "truncated"),
    [
        ("toy_envs:Count-v0", 1, 4, False, True),
        ("gym:toy_envs:Count-v0", 2, 4, False, True),
        ("toy_envs:Cliff-v0", 1, 3, True, False),
        ("toy_envs:Cliff-v0", 2, 3, True, False),
        ("toy_envs:Goal-v0", 1, 4, True, True),
    ],
)
def test_the_end_of_a_gym_episode(task, frame_skip, frames, terminated, truncated):
    environment = load(task, frame_skip)
    environment.reset(0)
    total = 0.0
    for _ in range(-(-frames // frame_skip) - 1):
        step = environment.step(np.ones(1, np.float32))
        assert (step.terminated, step.truncated) == (False, False)
        total += step.reward
    last = environment.step(np.ones(1, np.float32))
    assert (last.terminated, last.truncated) == (terminated, truncated)
    assert (last.next_state[0], last.next_state[2]) == (frames, 6 * frames)
    assert total + last.reward == 6 * frames


def test_a_gym_episode_may_be_endless():
    environment = load("toy_envs:Endless-v0", 3)
    assert environment.episode_frames is None
    environment.reset(0)
    steps = [environment.step(np.ones(1, np.float32)) for _ in range(10)]
    assert not any(step.terminated or step.truncated for step in steps)


# Seeds


@pytest.mark.parametrize(
    "task",
    [
        "cheetah-run",
        "walker-walk",
        "humanoid-walk",
        "quadruped-run",
        "lqr-lqr_6_2",  # its model is drawn at random when it is loaded
        "gym:HalfCheetah-v5",
    ],
)
def test_an_episode_is_a_function_of_seed_and_actions(task):
    used, fresh = load(task, 2), load(task, 2)
    other = rollout(used, 8, 40)
    again = rollout(used, 7, 20)
    assert same_bits(again, rollout(fresh, 7, 20))
    assert not same_bits(again[:1], other[:1])


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_training_and_evaluation_seeds_never_meet(seed, episode):
    for stream, parity in [("train", 0), ("evaluate", 1)]:
        drawn = episode_seed(seed, episode, stream)
        assert 0 <= drawn < 2**32
        assert drawn % 2 == parity


def test_episode_seeds_differ_and_stay_what_they_were():
    drawn = {episode_seed(seed, episode, "train") for seed in range(5) for episode in range(200)}
    assert len(drawn) == 1_000
    expected = np.random.SeedSequence([3, 14, 1]).generate_state(1)[0]
    assert episode_seed(3, 14, "evaluate") == expected | 1


class Lenient(np.ndarray):
    """An array as NumPy before 2.4 has it, where one entry is a number."""

    def __float__(self):
        return float(self.item())


@pytest.mark.parametrize(
    ("method", "returned", "said"),
    [
        ("reset", np.zeros(3), "reset() must return an observation and a dictionary"),
        ("reset", (np.zeros(4), {}), "the observation is of size 4, its space of size 3"),
        # The one that would be broadcast.
        ("step", (np.zeros(1), 0.0, False, False, {}), "the observation is of size 1"),
        ("step", (np.zeros(3), np.ones(1), False, False, {}), "an array of shape (1,)"),
        ("step", (np.zeros(3), Lenient(1), False, False, {}), "an array of shape (1,)"),
        ("step", (np.zeros(3), None, False, False, {}), "the reward is None"),
        ("step", (np.zeros(3), 0.0, False, {}), "the old Gym had one value, done"),
        ("step", None, "step() must return five values"),
        ("step", (np.zeros(3), 0.0, False, {}, {}), "truncated is {}; it must be True or False"),
        ("step", (np.zeros(3), 0.0, "no", False, {}), "terminated is 'no'"),
    ],
)
def test_what_an_environment_returns_wrongly_is_named(method, returned, said, monkeypatch):
    environment = envs.load("toy_envs:Count-v0", 1)
    environment.reset(0)
    monkeypatch.setattr(toy_envs.Count, method, lambda *_, **__: returned)
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        environment.reset(0) if method == "reset" else environment.step(np.zeros(1, np.float32))


@pytest.mark.parametrize("over", [1, np.True_, np.array([True])])
def test_a_mark_of_the_end_may_be_any_kind_of_true(over, monkeypatch):
    environment = envs.load("toy_envs:Count-v0", 1)
    environment.reset(0)
    returned = (np.zeros(3), 0.0, over, 0, {})
    monkeypatch.setattr(toy_envs.Count, "step", lambda *_: returned)
    step = environment.step(np.zeros(1, np.float32))
    assert (step.terminated, step.truncated) == (True, False)


def test_a_reset_without_a_seed_is_told_what_it_must_take(monkeypatch):
    environment = envs.load("toy_envs:Count-v0", 1)
    monkeypatch.setattr(toy_envs.Count, "reset", lambda _: np.zeros(3))
    with pytest.raises(envs.MalformedError, match="seed=None, options=None"):
        environment.reset(0)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_mistake_within_an_environment_stays_its_own(method, monkeypatch):
    environment = envs.load("toy_envs:Count-v0", 1)
    environment.reset(0)

    def mistaken(*_, **__):
        _, _ = (0,)

    monkeypatch.setattr(toy_envs.Count, method, mistaken)
    with pytest.raises(ValueError, match="not enough values to unpack"):
        environment.reset(0) if method == "reset" else environment.step(np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("returned", "said"),
    [({"first": 0.0}, "the observation lacks 'second'"), (np.zeros(6), "of type ndarray")],
)
def test_a_dictionary_that_is_none_is_named(returned, said, monkeypatch):
    environment = envs.load("toy_envs:Parts-v0", 1)
    monkeypatch.setattr(toy_envs.Parts, "reset", lambda *_, **__: (returned, {}))
    with pytest.raises(envs.MalformedError, match=said):
        environment.reset(0)
