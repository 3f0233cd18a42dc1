"""Environments: names, actions, frames, the ends of episodes, seeds, drawing."""

import ctypes.util
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toy_envs
from fastr import envs
from fastr.core import EnvSpec, UserError
from fastr.envs import GymTask, SuiteTask, episode_seed, load, parse, tasks
from fastr.envs.names import respelled, spelled


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
        ("quadruped-escape", 101, 12),
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


@pytest.mark.parametrize("task", ["humanoid-walk", "toy_envs:Count-v0"])
def test_a_frame_skip_must_divide_the_episode(task):
    with pytest.raises(UserError, match="frame skip of 3 does not divide"):
        load(task, 3)


def test_dictionary_observations_are_flat_in_the_spaces_order():
    environment = load("toy_envs:Parts-v0", 1)
    assert [(part.name, part.size) for part in environment.parts] == [
        ("second", 4),
        ("first", 1),
        ("count", 1),
    ]
    np.testing.assert_array_equal(environment.reset(0), [0, 1, 2, 3, 5, 0])
    assert environment.step(np.zeros(1, np.float32)).next_state.dtype == np.float32


@pytest.mark.parametrize("task", ["quadruped-run", "finger-turn_hard"])
def test_states_are_what_the_suite_itself_observes(task):
    from dm_control import suite

    ours, theirs = load(task, 2), suite.load(*task.split("-"), task_kwargs={"random": 0})
    assert [part.name for part in ours.parts] == list(theirs.observation_spec())

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


@pytest.mark.parametrize("task", ["cartpole-balance", "lqr-lqr_2_1"])
def test_a_suite_episode_is_truncated_at_its_last_frame(task):
    environment = load(task, 250)  # the suite itself has no time limit for lqr
    for _ in range(2):
        environment.reset(0)
        steps = [environment.step(np.ones(1, np.float32)) for _ in range(4)]
        assert [step.truncated for step in steps] == [False, False, False, True]
        assert not any(step.terminated for step in steps)


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
        ("toy_envs:Cliff-v0", 2, 3, True, False),
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


# Seeds


@pytest.mark.parametrize(
    "task",
    [
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


# Names


def test_our_list_is_the_installed_suite():
    load("pendulum-swingup", 1)
    from dm_control import suite

    assert sorted(tasks()) == sorted(f"{domain}-{task}" for domain, task in suite.ALL_TASKS)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("humanoid-walk", SuiteTask("humanoid", "walk")),
        ("cartpole-swingup-sparse", SuiteTask("cartpole", "swingup_sparse")),
        ("ball-in-cup-catch", SuiteTask("ball_in_cup", "catch")),
        ("gym:HalfCheetah-v5", GymTask("HalfCheetah-v5")),
        ("gym:ALE/Pong-v5", GymTask("ALE/Pong-v5")),
        ("gym:my_pkg.robots:MyRobot-v0", GymTask("my_pkg.robots:MyRobot-v0")),
        ("my_pkg:MyRobot-v0", GymTask("my_pkg:MyRobot-v0")),
    ],
)
def test_a_name_means_one_environment(task, name):
    assert parse(task) == name


@pytest.mark.parametrize(
    ("typed", "task"),
    [
        ("walker_walk@latency=2", "walker-walk@latency=2"),
        ("ball-in-cup-catch", "ball_in_cup-catch"),
        ("my_pkg:MyRobot-v0", "my_pkg:MyRobot-v0"),
    ],
)
def test_a_task_has_one_spelling(typed, task):
    assert spelled(typed) == respelled(typed) == task


@given(st.text() | st.from_regex(r"(gym:)?[\w.:/-]*") | st.sampled_from(tasks()))
def test_any_text_is_a_name_or_a_user_error(text):
    try:
        name = parse(text)
    except UserError:
        return
    assert parse(str(name)) == name


# What cannot be loaded, or returns what it must not


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("humanoid-wlak", "Did you mean humanoid-walk"),
        ("HalfCheetah-v5", "written gym:HalfCheetah-v5"),
        ("gym:MyArm-v0", "`MyArm` doesn't exist.* write my_module:MyArm-v0"),
        ("no_such_module:Robot-v0", "No module named 'no_such_module'"),
        ("toy_envs:FaultyStart-v0", "cannot make toy_envs:FaultyStart-v0: no robot$"),
        ("toy_envs:Choice-v0", "discrete actions are not supported"),
        ("toy_envs:Unbounded-v0", "unbounded action space"),
        ("toy_envs:Nested-v0", "flat Dict of Boxes"),
        ("toy_envs:Cameras-v0", r"images of shape \(8, 8, 3\) as its left"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(task, says):
    with pytest.raises(UserError, match=says) as caught:
        load(task, 1)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_without_dm_control_a_suite_task_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(UserError, match=r"walker-walk needs dm_control.*first-hour"):
        load("walker-walk", 2)


def test_an_observation_of_another_size_is_named(monkeypatch):
    environment = load("toy_envs:Count-v0", 1)
    monkeypatch.setattr(toy_envs.Count, "observation", lambda _: np.zeros(4))
    with pytest.raises(envs.SimulatorError, match="of size 4, its space of size 3"):
        environment.reset(0)


# Importing and drawing


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_importing_is_cheap_and_loading_is_quiet():
    result = run_python(
        "import sys, os, fastr.envs, fastr.envs.processes\n"
        "print([m for m in ('jax','dm_control','mujoco','gymnasium') if m in sys.modules])\n"
        "fastr.envs.load('cheetah-run', 1).step\n"
        "print('jax' in sys.modules, os.environ.get('MUJOCO_GL'))"
    )
    assert result.stdout.split("\n")[:2] == ["[]", "False None"]
    assert result.stderr == ""


DRAW = """
from fastr import envs
from fastr.core import UserError
for task in ["quadruped-escape", "gym:HalfCheetah-v5"]:
    try:
        environment = envs.load(task, 1, render_mode="rgb_array")
        environment.reset(0)
        image = environment.frame(600, 700)
        print(image.shape, image.dtype, image.std() > 5)
        environment.close()
    except UserError as error:
        print(error)
"""


def test_frames_are_drawn_without_a_screen():
    result = run_python(DRAW)
    lines = result.stdout.splitlines()
    assert len(lines) == 2, result.stderr
    if ctypes.util.find_library("EGL"):
        assert lines == ["(600, 700, 3) uint8 True"] * 2
    else:
        assert all("libegl1 libgl1" in line for line in lines)


def test_a_failure_to_draw_names_the_fix():
    result = run_python(DRAW, MUJOCO_GL="nonsense")
    assert result.stdout.count("libegl1 libgl1") == 1
    assert result.stdout.splitlines()[0].startswith("quadruped-escape cannot be drawn (")
    assert "Traceback" not in result.stderr


def test_gym_frames_have_the_size_asked_for():
    environment = load("toy_envs:Count-v0", 1, render_mode="rgb_array")
    environment.reset(0)
    image = environment.frame(24, 16)
    assert image.shape == (24, 16, 3)
    # Drawn 6 x 8, white above black: twice as large, in the middle, not stretched.
    assert (image[:6] == 0).all()
    assert (image[6:11] == 200).all()
    assert (image[13:] == 0).all()
