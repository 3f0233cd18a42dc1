"""Groups of entries as text, and the limbs of real robots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastr.core import UserError
from fastr.envs.anatomy import KINEMATIC, Group, Partition, examined, parse, partition
from fastr.training.config import from_json, grounded, preset, to_json

NAMES = st.text("abcdefghij_", min_size=1, max_size=5)


@st.composite
def sides(draw):
    """A random partition of 0 .. size - 1."""
    owner = draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
    groups = [[i for i, group in enumerate(owner) if group == number] for number in range(4)]
    return tuple(Group(draw(NAMES), tuple(group)) for group in groups if group), len(owner)


@given(sides(), sides())
def test_text_and_partition_are_the_same(states, actions):
    whole = Partition(states[0], actions[0])
    assert parse(str(whole), states[1], actions[1]) == whole


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0-1;1-3|0-1", "observation entry 1 is in two groups, group 0 and group 1"),
        ("a=0-1;b=3|0-1", "observation entry 2 is in no group"),
        ("0-4|0-1", "there is no observation entry '0-4'; give numbers from 0 to 3"),
        ("0-3", "with one | between them"),
    ],
)
def test_what_is_no_partition_is_named(text, says):
    with pytest.raises(UserError, match=says.replace("|", r"\|")):
        parse(text, 4, 2)


LIMBS = {
    "walker-walk": (["trunk", "right_thigh", "left_thigh"], ["right_thigh", "left_thigh"]),
    "humanoid-walk": (
        ["trunk", "right_thigh", "left_thigh", "right_upper_arm", "left_upper_arm"],
        ["trunk", "right_thigh", "left_thigh", "right_upper_arm", "left_upper_arm"],
    ),
    "cartpole-swingup": (["body"], ["body"]),
    "gym:HalfCheetah-v5": (["trunk", "bthigh", "fthigh"], ["bthigh", "fthigh"]),
}


@pytest.mark.parametrize("task", LIMBS)
def test_limbs_of_real_robots(task):
    groups = partition(task, 1, KINEMATIC)
    assert tuple([group.name for group in side] for side in groups) == LIMBS[task]


def test_a_walkers_entries_go_where_its_limbs_are():
    """Orientations of torso, right and left leg (two numbers a body), height, nine velocities."""
    groups = partition("walker-walk", 2, KINEMATIC)
    entries = {group.name: group.entries for group in groups.states}
    assert entries["trunk"] == (0, 1, 14, 15, 16, 17)
    assert entries["right_thigh"] == (2, 3, 4, 5, 6, 7, 18, 19, 20)
    assert entries["left_thigh"] == (8, 9, 10, 11, 12, 13, 21, 22, 23)
    assert [group.entries for group in groups.actions] == [(0, 1, 2), (3, 4, 5)]


def test_looking_leaves_the_joints_as_they_were():
    """Each joint moves its own angle and nothing that lies before it in the chain."""
    anatomy = examined("cheetah-run", 1)
    assert anatomy.joints[3:6] == ("bthigh", "bshin", "bfoot")
    angles = anatomy.observations[2:8, 3:9]  # positions without the root
    assert np.array_equal(angles, np.eye(6, dtype=bool))


WALKER = "rootz,rootx,rooty;legs=right_hip,right_knee,right_ankle,left_hip,left_knee"


def test_groups_by_joint():
    groups = partition("walker-walk", 2, f"trunk={WALKER},left_ankle")
    assert [(group.name, len(group.entries)) for group in groups.states] == [
        ("trunk", 6),
        ("legs", 18),
    ]
    assert groups.actions == (Group("legs", (0, 1, 2, 3, 4, 5)),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"trunk={WALKER}", "joint left_ankle is in no group"),
        (f"trunk={WALKER},left_ankle,rootx", "joint rootx is in two groups, trunk and legs"),
        (f"trunk={WALKER},left_ancle", "no joint left_ancle. Did you mean left_ankle"),
        ("trunk;legs=left_knee", "is not NAME=JOINT,JOINT"),
    ],
)
def test_wrong_groups_are_one_sentence_on_the_command_line(refused, text, says):
    refused(["info", "walker-walk", "--method", "tree", "--groups", text], says)


def test_a_robot_that_cannot_be_looked_into(refused):
    options = ["--method", "tree", "--frame-skip", "1"]
    refused(["info", "gym:Pendulum-v1", *options], "no MuJoCo model")


def test_a_run_remembers_its_groups():
    config = grounded(preset("walker-walk", "tree", "laptop"))
    assert "right_thigh=2-7,18-20" in config.agent.representation.groups
    assert from_json(to_json(config)) == config
    assert grounded(config) == config
