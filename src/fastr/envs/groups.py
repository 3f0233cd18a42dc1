"""Groups of numbered entries as text: `torso=0-3,9;legs=4-8`, and every entry in exactly one."""

import re
from typing import NamedTuple

from fastr.core import UserError

KINEMATIC = "kinematic"
"""Stands for the groups that a task's own kinematic tree gives."""
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


class Group(NamedTuple):
    """Some entries of a vector, under a name."""

    name: str
    entries: tuple[int, ...]


class Partition(NamedTuple):
    """Observation entries and actuators, each in groups of their own."""

    states: tuple[Group, ...]
    actions: tuple[Group, ...]

    def __str__(self) -> str:
        return "|".join(";".join(map(written, side)) for side in self)


def parse(text: str, state_dim: int, action_dim: int) -> Partition:
    """The partition this text means: observation entries, `|`, actuators."""
    if text == KINEMATIC:
        raise UserError(
            "--groups kinematic stands for the task's own limbs, which are not known here: "
            "give them by number, as in 'torso=0-3;legs=4-8|legs=0-5'."
        )
    sides = text.split("|")
    if len(sides) != 2:
        raise UserError(
            f"--groups {text!r} needs observation entries and actuators with one | between them, "
            "as in 'torso=0-3;legs=4-8|legs=0-5'."
        )
    kinds = (("observation entry", state_dim), ("actuator", action_dim))
    states, actions = (
        _side(side, kind, size) for side, (kind, size) in zip(sides, kinds, strict=True)
    )
    return Partition(states, actions)


def named_members(text: str) -> dict[str, list[str]]:
    """Group names and the words each lists; names must be given and differ."""
    groups: dict[str, list[str]] = {}
    for part in text.split(";"):
        name, equals, members = (piece.strip() for piece in part.partition("="))
        if not (equals and name and members):
            raise UserError(
                f"--groups {text!r}: {part!r} is not NAME=JOINT,JOINT, as in "
                "'torso=root,waist;legs=hip,knee'."
            )
        if name in groups:
            raise UserError(f"--groups {text!r} has two groups called {name}.")
        groups[name] = [word.strip() for word in members.split(",")]
    return groups


def exactly_once(owners: list[list[str]], kind: str, names: list[str]) -> None:
    """Raise UserError unless each of these things has one owner."""
    for name, groups in zip(names, owners, strict=True):
        if len(groups) > 1:
            raise UserError(
                f"--groups: {kind} {name} is in two groups, {groups[0]} and {groups[1]}."
            )
        if not groups:
            raise UserError(f"--groups: {kind} {name} is in no group; every one must be in one.")


def _side(text: str, kind: str, size: int) -> tuple[Group, ...]:
    groups = tuple(_group(part, f"group {i}", kind, size) for i, part in enumerate(text.split(";")))
    owners: list[list[str]] = [[] for _ in range(size)]
    for group in groups:
        for entry in group.entries:
            owners[entry].append(group.name)
    exactly_once(owners, kind, [str(i) for i in range(size)])
    return groups


def _group(text: str, default: str, kind: str, size: int) -> Group:
    name, equals, members = (piece.strip() for piece in text.rpartition("="))
    entries: list[int] = []
    for word in members.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise UserError(
                f"--groups: {word.strip()!r} is not a number or a range such as 4-8 of {kind}s."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < size:
            raise UserError(
                f"--groups: there is no {kind} {word.strip()}; they are numbered 0 to {size - 1}."
            )
        entries.extend(range(first, last + 1))
        if len(entries) > size:
            raise UserError(f"--groups: {text.strip()[:40]!r} names a {kind} twice.")
    return Group(name if equals and name else default, tuple(entries))


def runs(entries: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and last of each stretch of consecutive entries."""
    found: list[tuple[int, int]] = []
    for entry in entries:
        if found and entry == found[-1][1] + 1:
            found[-1] = (found[-1][0], entry)
        else:
            found.append((entry, entry))
    return found


def written(group: Group) -> str:
    """One group as text."""
    spans = (
        str(first) if first == last else f"{first}-{last}" for first, last in runs(group.entries)
    )
    return f"{group.name}={','.join(spans)}"
