"""Groups of observations and actuators: a user's, or the limbs of a robot from its MuJoCo model.

As text: `torso=0-3,9;legs=4-8|legs=0-5`, observation entries, then actuators, each in exactly one
group; or groups of joints, `torso=root;legs=hip,knee`; or `kinematic` for the limbs.
"""

import contextlib
import itertools
import re
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from fastr import envs
from fastr.core import UserError, nearest

KINEMATIC = "kinematic"
_EXAMPLE = "'torso=0-3;legs=4-8|legs=0-5'"
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_NUDGE = 0.05
"""How far a joint is moved to find what depends on it: radians or metres, and per second."""
_MOVED = 1e-6
_POSES = 2
"""Number of poses: what depends on a joint may not show in one of them."""


class Group(NamedTuple):
    """Some entries of a vector, under a name."""

    name: str
    entries: tuple[int, ...]

    def __str__(self) -> str:
        spans = (str(a) if a == b else f"{a}-{b}" for a, b in runs(self.entries))
        return f"{self.name}={','.join(spans)}"


class Partition(NamedTuple):
    """Groups of observation entries and of actuators."""

    states: tuple[Group, ...]
    actions: tuple[Group, ...]

    def __str__(self) -> str:
        return "|".join(";".join(map(str, side)) for side in self)


class Anatomy(NamedTuple):
    """Joints by name, and what each of them moves."""

    joints: tuple[str, ...]
    limbs: dict[str, list[int]]
    """Joints of the trunk, then of each limb; one entry for a body without branches."""
    observations: Bool[np.ndarray, "state joint"]
    actuators: Bool[np.ndarray, "action joint"]


# Groups as text


def parse(text: str, state_dim: int, action_dim: int) -> Partition:
    """The partition that is written by number."""
    sides = text.split("|")
    if len(sides) != 2:
        raise UserError(
            f"--groups {text!r} needs observation entries and actuators with one | between them, "
            f"as in {_EXAMPLE}."
        )
    return Partition(
        _side(sides[0], "observation entry", state_dim), _side(sides[1], "actuator", action_dim)
    )


def runs(entries: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and last of each stretch of consecutive entries."""
    found: list[tuple[int, int]] = []
    for entry in entries:
        if found and entry == found[-1][1] + 1:
            found[-1] = (found[-1][0], entry)
        else:
            found.append((entry, entry))
    return found


def _side(text: str, kind: str, size: int) -> tuple[Group, ...]:
    groups = tuple(_group(part, f"group {i}", kind, size) for i, part in enumerate(text.split(";")))
    _require_partition(groups, kind, [str(i) for i in range(size)])
    return groups


def _group(text: str, default: str, kind: str, size: int) -> Group:
    name, equals, members = (piece.strip() for piece in text.rpartition("="))
    entries: list[int] = []
    for word in members.split(","):
        match = _RANGE.fullmatch(word.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, size)
        if not first <= last < size:
            raise UserError(
                f"--groups: there is no {kind} {word.strip()!r}; give numbers from 0 to "
                f"{size - 1}, or ranges such as 4-8."
            )
        entries.extend(range(first, last + 1))
        if len(entries) > size:
            raise UserError(f"--groups: {text.strip()[:40]!r} names a {kind} twice.")
    return Group(name if equals and name else default, tuple(entries))


def _require_partition(groups: tuple[Group, ...], kind: str, names: list[str]) -> None:
    """Raise UserError unless each entry, of these names, is in one group."""
    owner: dict[int, str] = {}
    for group in groups:
        for entry in group.entries:
            if entry in owner:
                both = f"{owner[entry]} and {group.name}"
                raise UserError(f"--groups: {kind} {names[entry]} is in two groups, {both}.")
            owner[entry] = group.name
    for entry, name in enumerate(names):
        if entry not in owner:
            raise UserError(f"--groups: {kind} {name} is in no group; every one must be in one.")


# A robot's limbs


def partition(task: str, frame_skip: int, text: str) -> Partition:
    """The groups of a task's entries: by limb, or by groups of joints."""
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
                f"{task} has no MuJoCo model to find limbs in: give --groups by number, as in "
                f"{_EXAMPLE}."
            )
        model = robot.model
        observations = np.zeros((environment.spec.state_dim, model.njnt), bool)
        actuators = np.zeros((environment.spec.action_dim, model.njnt), bool)
        for pose, dof in itertools.product(range(_POSES), range(model.nv)):
            if dof == 0:
                environment.reset(pose)
            moved, stretched = _followers(mujoco, robot, dof)
            observations[:, model.dof_jntid[dof]] |= moved
            actuators[:, model.dof_jntid[dof]] |= stretched
        joints = (model.joint(i).name or f"joint{i}" for i in range(model.njnt))
        return Anatomy(tuple(joints), _limbs(model), observations, actuators)


def _followers(mujoco: Any, robot: envs.Robot, dof: int) -> tuple[np.ndarray, np.ndarray]:
    """Which observation entries and actuator lengths change with one degree of freedom."""
    model, data = robot.model, robot.data

    def seen() -> tuple[np.ndarray, np.ndarray]:
        mujoco.mj_forward(model, data)
        return robot.observe().astype(np.float64), data.actuator_length.copy()

    position, velocity = data.qpos.copy(), data.qvel.copy()
    direction = np.zeros(model.nv)
    direction[dof] = 1.0
    before, length = seen()
    data.qvel[:] = velocity + _NUDGE * direction
    faster, _ = seen()
    data.qvel[:] = velocity
    mujoco.mj_integratePos(model, data.qpos, direction, _NUDGE)
    elsewhere, stretched = seen()
    data.qpos[:] = position
    mujoco.mj_forward(model, data)
    moved = np.maximum(np.abs(faster - before), np.abs(elsewhere - before)) > _MOVED
    return moved, np.abs(stretched - length) > _MOVED


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
    limbs = {"trunk": np.flatnonzero(of_joints == 0).tolist()}
    for body in np.unique(of_joints[of_joints > 0]):
        name = model.body(body).name or f"body{body}"
        limbs[name] = np.flatnonzero(of_joints == body).tolist()
    return limbs


def _listed(anatomy: Anatomy, text: str) -> dict[str, list[int]]:
    """Groups of joints that are listed by name."""
    groups: dict[str, list[int]] = {}
    for part in text.split(";"):
        name, _, members = (piece.strip() for piece in part.partition("="))
        if not (name and members):
            raise UserError(
                f"--groups {text!r}: {part!r} is not NAME=JOINT,JOINT, as in "
                "'torso=root,waist;legs=hip,knee'."
            )
        words = [word.strip() for word in members.split(",")]
        if unknown := [word for word in words if word not in anatomy.joints]:
            hint = nearest(unknown[0], anatomy.joints) or f" They are {', '.join(anatomy.joints)}."
            raise UserError(f"--groups: this robot has no joint {unknown[0]}.{hint}")
        groups[name] = [anatomy.joints.index(word) for word in words]
    given = tuple(Group(name, tuple(joints)) for name, joints in groups.items())
    _require_partition(given, "joint", list(anatomy.joints))
    return groups


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
