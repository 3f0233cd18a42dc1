import ctypes.util
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastr import envs
from fastr.envs import GymTask, SuiteTask, episode_seed, load, parse, tasks
from fastr.errors import UserError
from fastr.spec import EnvSpec


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


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    path = os.pathsep.join(filter(None, [os.path.dirname(__file__), inherited.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# Names


def test_our_list_is_the_installed_suite():
    load("pendulum-swingup", 1)
    from dm_control import suite

    assert set(tasks()) == {f"{domain}-{task}" for domain, task in suite.ALL_TASKS}
    assert len(tasks()) == len(suite.ALL_TASKS)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("humanoid-walk", SuiteTask("humanoid", "walk")),
        ("cartpole-swingup_sparse", SuiteTask("cartpole", "swingup_sparse")),
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
    ("task", "says"),
    [
        ("humanoid-wlak", "Did you mean humanoid-walk"),
        ("HalfCheetah-v5", "written gym:HalfCheetah-v5"),
        ("gym:", "gym:HalfCheetah-v5"),
        ("gym:a:b:c", "my_module:MyRobot-v0"),
        (".relative:Robot-v0", "my_module:MyRobot-v0"),
        ("", "not a DM Control Suite task"),
    ],
)
def test_a_wrong_name_gets_a_suggestion(task, says):
    with pytest.raises(UserError, match=says):
        parse(task)


@given(st.text() | st.from_regex(r"(gym:)?[\w.:/-]*") | st.sampled_from(tasks()))
@settings(deadline=None, max_examples=300)
def test_any_text_is_a_name_or_a_user_error(text):
    try:
        name = parse(text)
    except UserError:
        return
    assert parse(str(name)) == name


@given(st.sampled_from(tasks()), st.data())
def test_hyphens_may_stand_for_underscores(task, data):
    typed = "".join(data.draw(st.sampled_from("-_")) if c == "_" else c for c in task)
    assert str(parse(typed)) == task


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("gym:HalfCheetha-v5", "Did you mean HalfCheetah-v"),
        ("gym:HalfCheetah-v99", "knows no environment HalfCheetah-v99"),
        ("gym:Xyzzy", "write my_module:MyRobot-v0"),
        ("no_such_module:Robot-v0", "There is no Python module no_such_module"),
        ("toy_envs:Cuont-v0", "after importing toy_envs. Did you mean Count-v0"),
        ("toy_envs:FaultyStart-v0", "cannot make toy_envs:FaultyStart-v0: no robot$"),
        ("toy_envs:Choice-v0", "discrete actions are not supported"),
        ("toy_envs:Whole-v0", "Box of real numbers"),
        ("toy_envs:Unbounded-v0", "unbounded action space"),
        ("toy_envs:Nested-v0", "flat Dict of Boxes"),
        ("gym:CartPole-v1", "gym:CartPole-v1 has the action space Discrete"),
    ],
)
def test_what_gymnasium_cannot_give_is_one_sentence(task, says):
    with pytest.raises(UserError, match=says) as caught:
        load(task, 1)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_error_in_the_users_module_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "broken_robots.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"cannot make broken_robots:Robot-v0: division by zero"):
        load("broken_robots:Robot-v0", 1)


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
    environment = load("humanoid-walk", 1)
    state = environment.reset(0)
    keys = ["joint_angles", "head_height", "extremities", "torso_vertical", "com_velocity"]
    physics = environment._env.physics
    assert list(environment._env.observation_spec())[:5] == keys
    np.testing.assert_array_equal(state[:21], physics.joint_angles().astype(np.float32))
    assert state[21] == np.float32(physics.head_height())


# Ends of episodes


def test_without_dm_control_a_suite_task_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(UserError, match=r"walker-walk needs dm_control.*first-hour"):
        load("walker-walk", 2)


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


# Rendering and what an import costs


def test_importing_is_cheap_and_loading_is_quiet():
    found = run_python(
        "import sys, os, fastr.envs, fastr.pool\n"
        "print([m for m in ('jax','dm_control','mujoco','gymnasium') if m in sys.modules])\n"
        "fastr.envs.load('cheetah-run', 1).step\n"
        "print('jax' in sys.modules, os.environ.get('MUJOCO_GL'))"
    )
    assert found.stdout.split("\n")[:2] == ["[]", "False None"]
    assert found.stderr == ""


DRAW = """
import sys
from fastr import envs
from fastr.errors import UserError
for task in sys.argv[1:] or ["quadruped-escape", "gym:HalfCheetah-v5"]:
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
    found = run_python(DRAW)
    lines = found.stdout.splitlines()
    assert len(lines) == 2, found.stderr
    if ctypes.util.find_library("EGL"):
        assert lines == ["(600, 700, 3) uint8 True"] * 2
    else:
        assert all("libegl1 libgl1" in line for line in lines)


def test_a_failure_to_draw_names_the_fix():
    found = run_python(DRAW, MUJOCO_GL="nonsense")
    assert found.stdout.count("apt-get install libegl1 libgl1) and set MUJOCO_GL=egl") == 1
    assert found.stdout.splitlines()[0].startswith("quadruped-escape cannot be drawn (")
    assert "Traceback" not in found.stderr


def test_a_process_without_a_renderer_says_so(monkeypatch):
    load("pendulum-swingup", 1)
    from dm_control import _render

    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(_render, "BACKEND", "disable")
    with pytest.raises(UserError, match="in a new process"):
        load("pendulum-swingup", 1, render_mode="rgb_array")


def test_gym_frames_have_the_size_asked_for():
    environment = load("toy_envs:Count-v0", 1, render_mode="rgb_array")
    environment.reset(0)
    image = environment.frame(24, 16)
    assert image.shape == (24, 16, 3)
    # Drawn 6 x 8, white above black: twice as large, in the middle, not stretched.
    assert (image[:6] == 0).all()
    assert (image[6:11] == 200).all()
    assert (image[13:] == 0).all()
    with pytest.raises(UserError, match="the limit is 1080 x 1920"):
        environment.frame(5_000, 4)


def test_frames_must_be_asked_for_at_load():
    with pytest.raises(RuntimeError, match="render_mode"):
        load("toy_envs:Count-v0", 1).frame(8, 8)
