"""What a results file was made by: NAME.json beside NAME.csv or NAME.jsonl."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fastr.core import UserError, nearest
from fastr.envs.names import respelled
from fastr.report.tables import LARGEST, parsed, read_text
from fastr.report.text import shown

Kind = Literal["returns", "coverage"]
REQUIRED = ("kind", "command", "commit", "hardware", "seeds")
TEXTS = ("task", "method", "variant", "command", "commit", "hardware", "note")
OPTIONAL = ("task", "method", "variant", "note", "frames", "seconds")
LONGEST = 1_000
"""Characters of a text."""


@dataclass(frozen=True)
class Sidecar:
    """The provenance of one file of results; docs/report.md describes every key."""

    kind: Kind
    command: str
    commit: str
    hardware: str
    seeds: tuple[str, ...]
    """Seeds that every curve of the file should have."""
    task: str = ""
    """Of the whole file; empty where it has a column of that name."""
    method: str = ""
    variant: str = ""
    note: str = ""
    frames: int | None = None
    """Frame of the last evaluation that every curve should have."""
    seconds: float | None = None


def sidecar_path(path: Path) -> Path:
    """Where the provenance of a results file lies."""
    return path.with_suffix(".json")


def read_sidecar(path: Path) -> Sidecar:
    """The provenance in this file; UserError that names what is wrong with it."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object.")
    known = (*REQUIRED, *OPTIONAL)
    for name in content:
        if name not in known:
            raise UserError(
                f"{path}: {shown(name, 40)} is not a key of a sidecar.{nearest(name, known)}"
            )
    if absent := [name for name in REQUIRED if name not in content]:
        raise UserError(f"{path} lacks {', '.join(absent)}.")
    return checked(content, path)


def checked(content: dict[str, Any], path: Path) -> Sidecar:
    """The sidecar, if every value is of its kind."""
    if content["kind"] not in get_args(Kind):
        raise UserError(f"{path}: kind must be one of {', '.join(get_args(Kind))}.")
    texts = {name: text(content[name], name, path) for name in TEXTS if name in content}
    numbers = {
        name: number(content[name], name, path) for name in ("frames", "seconds") if name in content
    }
    if "task" in texts:
        texts["task"] = respelled(texts["task"])
    frames = numbers.get("frames")
    return Sidecar(
        kind=content["kind"],
        seeds=seeds(content["seeds"], path),
        frames=None if frames is None else int(frames),
        seconds=numbers.get("seconds"),
        **texts,
    )


def text(value: object, name: str, path: Path) -> str:
    """A line of text that says something."""
    if not isinstance(value, str) or not shown(value) or len(value) > LONGEST:
        raise UserError(f"{path}: {name} must be a text of 1 to {LONGEST} characters.")
    return shown(value, LONGEST)


def number(value: object, name: str, path: Path) -> float:
    """A number from zero; frames are whole."""
    found = parsed(value)
    whole = name != "frames" or found == found // 1
    if isinstance(value, str) or not (0 <= found <= LARGEST and whole):
        raise UserError(f"{path}: {name} is {shown(repr(value), 40)}; it must be a number from 0.")
    return found


def seeds(value: object, path: Path) -> tuple[str, ...]:
    """Different whole numbers."""
    sound = isinstance(value, list) and value and all(type(seed) is int for seed in value)
    if not isinstance(value, list) or not sound or len(set(value)) < len(value):
        raise UserError(f"{path}: seeds must be a list of different whole numbers.")
    return tuple(str(seed) for seed in value)
