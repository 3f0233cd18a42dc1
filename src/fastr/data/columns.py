"""The names under which tables hold transitions, and the sentences for tables that do not fit."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fastr.core import UserError, counted

NAMES: dict[str, tuple[str, ...]] = {
    "state": ("state", "states", "observation", "observations", "obs"),
    "action": ("action", "actions"),
    "next_state": (
        "next_state",
        "next_states",
        "next_observation",
        "next_observations",
        "next_obs",
    ),
    "episode": ("episode", "episodes", "episode_id", "episode_index"),
}
"""Each column by any one of these names."""
ACTION_LOW, ACTION_HIGH = "action_low", "action_high"
"""Optional: the bounds of each action coordinate."""
WHOLE = "whole numbers, the same for all rows of an episode (0, 0, ..., 1, 1, ...), as integers"
"""What the episodes must be."""


def column_names(path: Path, names: Iterable[str], spread: Iterable[str] = ()) -> dict[str, str]:
    """The name of each column in this file; UserError for the first that is missing or double.

    Those that are spread over several columns have a name that no column has.
    """
    listed = set(names)
    present = listed | set(spread)
    chosen = {}
    for column, known in NAMES.items():
        matches = [name for name in known if name in present]
        if len(matches) > 1:
            raise UserError(f"{path} has both {matches[0]} and {matches[1]}; keep one of them.")
        if not matches:
            raise UserError(f"{path} has no column {column}: {advice(column, listed)}.")
        chosen[column] = matches[0]
    return chosen


def advice(column: str, present: set[str]) -> str:
    """What to do about a missing column."""
    listed = ", ".join(sorted(present)[:12]) or "nothing"
    what = {
        "state": "one row of numbers per transition, in .parquet also state_0, state_1, ...",
        "action": "one row of numbers per transition, in .parquet also action_0, action_1, ...",
        "next_state": "what the state was one step later",
        "episode": "a whole number per transition that says which episode it belongs to; "
        "docs/misfit.md makes it from marks of the ends",
    }[column]
    return f"add it ({what}; also read as {', '.join(NAMES[column][1:])}); the file has {listed}"


def numbered(path: Path, names: Iterable[str], prefix: str) -> list[str]:
    """The columns prefix_0, prefix_1, ... in order; UserError if one is missing between them."""
    pattern = re.compile(rf"{re.escape(prefix)}_(0|[1-9][0-9]{{0,5}})")
    indices = sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
    for place, index in enumerate(indices):
        if place != index:
            raise UserError(
                f"{path} has a column {prefix}_{index} but none {prefix}_{place}: number the "
                "coordinates from 0 without a gap."
            )
    return [f"{prefix}_{index}" for index in indices]


def check_shapes(
    path: Path, columns: dict[str, str], shapes: Mapping[str, Sequence[int]]
) -> tuple[int, int, int]:
    """Rows, state and action coordinates; UserError unless the columns fit together."""
    rows = shapes["state"][0] if shapes["state"] else 0
    for column in ("state", "action", "next_state"):
        if len(shapes[column]) != 2 or shapes[column][1] < 1:
            one = f"; one coordinate is ({rows}, 1)" if len(shapes[column]) == 1 else ""
            raise UserError(
                f"{path}: column {columns[column]} has shape {tuple(shapes[column])}; it must be "
                f"(transitions, coordinates){one}."
            )
    if len(shapes["episode"]) != 1:
        raise UserError(
            f"{path}: column {columns['episode']} has shape {tuple(shapes['episode'])}; it must be "
            "one number per transition."
        )
    for column, shape in shapes.items():
        if shape[0] != rows:
            raise UserError(
                f"{path}: column {columns[column]} has {counted(shape[0], 'row')} and "
                f"{columns['state']} has {rows:,}; all columns must be equally long."
            )
    if shapes["next_state"][1] != shapes["state"][1]:
        raise UserError(
            f"{path}: column {columns['next_state']} has "
            f"{counted(shapes['next_state'][1], 'coordinate')} and "
            f"{columns['state']} has {shapes['state'][1]}; they must be equal."
        )
    if rows == 0:
        raise UserError(f"{path} is empty: it holds no transition.")
    return rows, shapes["state"][1], shapes["action"][1]
