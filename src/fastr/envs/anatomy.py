"""A robot's limbs, from its MuJoCo model: which observations and actuators belong to which."""

import contextlib
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from fastr import envs
from fastr.core import UserError, nearest
from fastr.envs.groups import KINEMATIC, Group, Partition, exactly_once, named_members

_NUDGE = 0.05
"""How far a joint is moved to see what follows: radians or metres, and per second."""
_MOVED = 1e-6
_POSES = 2
"""Poses to look from: what one hides, another shows."""


class Anatomy(NamedTuple):
    """Joints by name, and what each of them moves."""

    joints: tuple[str, ...]
    limbs: dict[str, list[int]]
    """Joints of the trunk, then of each limb; one entry for a body without branches."""
    observations: Bool[np.ndarray, "state joint"]
    actuators: Bool[np.ndarray, "action joint"]


def partition(task: str, frame_skip: int, text: str) -> Partition:
    """The groups of a task: its limbs, or those that list joints by name, as entries."""
    anatomy = examined(task, frame_skip)
    limbs = anatomy.limbs if text == KINEMATIC else _listed(anatomy, text)
    return Partition(_assigned(limbs, anatomy.observations), _assigned(limbs, anatomy.actuators))


def examined(task: str, frame_skip: int) -> Anatomy:
    """Nudge every joint of the task's robot and see what moves."""
    import mujoco

    with contextlib.closing(envs.load(task, frame_skip)) as environment:
        robot = environment.robot()
        if robot is None:
            raise UserError(
                f"{task} has no MuJoCo model that can be looked into: give --groups by number, "
                "as in 'torso=0-3;legs=4-8|legs=0-5'."
            )
        observations = np.zeros((environment.spec.state_dim, robot.model.njnt), bool)
        actuators = np.zeros((environment.spec.action_dim, robot.model.njnt), bool)
        for pose in range(_POSES):
            environment.reset(pose)
            for dof in range(robot.model.nv):
                moved, stretched = _followers(mujoco, robot, dof)
                joint = robot.model.dof_jntid[dof]
                observations[:, joint] |= moved
                actuators[:, joint] |= stretched
        joints = (robot.model.joint(i).name or f"joint{i}" for i in range(robot.model.njnt))
        return Anatomy(tuple(joints), _limbs(robot.model), observations, actuators)


def _followers(mujoco: Any, robot: envs.Robot, dof: int) -> tuple[np.ndarray, np.ndarray]:
    """Which observation entries and actuator lengths change with one degree of freedom."""
    model, data = robot.model, robot.data
    position, velocity = data.qpos.copy(), data.qvel.copy()
    direction = np.zeros(model.nv)
    direction[dof] = 1.0
    before, length = _seen(mujoco, robot)
    data.qvel[:] = velocity + _NUDGE * direction
    faster, _ = _seen(mujoco, robot)
    data.qvel[:] = velocity
    mujoco.mj_integratePos(model, data.qpos, direction, _NUDGE)
    elsewhere, stretched = _seen(mujoco, robot)
    data.qpos[:] = position
    mujoco.mj_forward(model, data)
    moved = np.maximum(np.abs(faster - before), np.abs(elsewhere - before)) > _MOVED
    return moved, np.abs(stretched - length) > _MOVED


def _seen(mujoco: Any, robot: envs.Robot) -> tuple[np.ndarray, np.ndarray]:
    mujoco.mj_forward(robot.model, robot.data)
    return robot.observe().astype(np.float64), robot.data.actuator_length.copy()


def _limbs(model: Any) -> dict[str, list[int]]:
    """Joints of the trunk and of each maximal part without branches, by the part's first body."""
    parent = model.body_parentid
    joints = np.bincount(model.jnt_bodyid, minlength=model.nbody)
    below = joints.astype(int)
    branches = np.zeros(model.nbody, int)
    branching = np.zeros(model.nbody, bool)
    for body in range(model.nbody - 1, 0, -1):  # children come after their parents
        branching[body] |= branches[body] > 1
        branching[parent[body]] |= branching[body]
        below[parent[body]] += below[body]
        branches[parent[body]] += below[body] > 0
    branching[0] |= branches[0] > 1
    if not branching[0]:
        return {"body": list(range(model.njnt))}
    part = np.zeros(model.nbody, int)  # 0 is the trunk
    for body in range(1, model.nbody):
        if not branching[body]:
            part[body] = part[parent[body]] or body
    of_joints = part[model.jnt_bodyid]
    first_bodies = [0, *(body for body in np.unique(of_joints) if body)]
    return {
        model.body(body).name or f"body{body}" if body else "trunk": np.flatnonzero(
            of_joints == body
        ).tolist()
        for body in first_bodies
    }


def _listed(anatomy: Anatomy, text: str) -> dict[str, list[int]]:
    """The groups of joints that a user has named."""
    groups = named_members(text)
    owners: list[list[str]] = [[] for _ in anatomy.joints]
    for name, words in groups.items():
        for word in words:
            if word not in anatomy.joints:
                hint = nearest(word, anatomy.joints) or f" They are {', '.join(anatomy.joints)}."
                raise UserError(f"--groups: this robot has no joint {word}.{hint}")
            owners[anatomy.joints.index(word)].append(name)
    exactly_once(owners, "joint", list(anatomy.joints))
    return {name: [anatomy.joints.index(word) for word in words] for name, words in groups.items()}


def _assigned(
    limbs: dict[str, list[int]], moved: Bool[np.ndarray, "entry joint"]
) -> tuple[Group, ...]:
    """Each entry with the one limb that moves it; what several move, or none, with the first."""
    names = list(limbs)
    by_limb = np.stack([moved[:, limbs[name]].any(axis=1) for name in names[1:]] or [moved[:, 0]])
    alone = by_limb.sum(axis=0) == 1
    owner = np.where(alone & (len(names) > 1), 1 + by_limb.argmax(axis=0), 0)
    groups = (
        Group(name, tuple(np.flatnonzero(owner == i).tolist())) for i, name in enumerate(names)
    )
    return tuple(group for group in groups if group.entries)
