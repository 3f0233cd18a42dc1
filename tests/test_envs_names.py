"""Names of tasks: which environment they mean, and what is said of those that mean none."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastr.core import UserError
from fastr.envs import GymTask, SuiteTask, load, parse, tasks
from fastr.envs.names import respelled, spelled


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
    ("typed", "task"),
    [
        ("walker_walk@latency=2", "walker-walk@latency=2"),
        ("ball-in-cup-catch", "ball_in_cup-catch"),
        ("my_pkg:MyRobot-v0", "my_pkg:MyRobot-v0"),
        ("gym:HalfCheetah-v5", "gym:HalfCheetah-v5"),
    ],
)
def test_a_task_has_one_spelling(typed, task):
    assert spelled(typed) == respelled(typed) == task


@pytest.mark.parametrize("name", ["", "walker_wlak", "my_robot@latency=2", "gym:", "<b>_</b>"])
def test_what_is_no_task_stays_as_it_was_written(name):
    assert respelled(name) == name
    with pytest.raises(UserError):
        spelled(name)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("humanoid-wlak", "Did you mean humanoid-walk"),
        ("HalfCheetah-v5", "written gym:HalfCheetah-v5"),
        ("./robots.py", "your own is written my_module:MyRobot-v0"),
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
        ("toy_envs:Whole-v0", "^toy_envs:Whole-v0 has the action space .* Box of real numbers"),
        ("toy_envs:Unbounded-v0", "unbounded action space.*give its Box a low and a high"),
        ("toy_envs:Idle-v0", "nothing to control"),
        ("toy_envs:Spaceless-v0", "has the action space None, but a Box"),
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


def test_without_dm_control_a_suite_task_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(UserError, match=r"walker-walk needs dm_control.*first-hour"):
        load("walker-walk", 2)
