"""Evaluations from text: CSV files (frames, seed, return) and a run's rows."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastr.core import UserError, counted
from fastr.envs.names import respelled
from fastr.report.series import Curve
from fastr.report.text import shown

LARGEST = 1e12
"""A frame number or return beyond this is a mistake."""
COLUMNS = ("frames", "seed", "return")
Key = tuple[str, str]
"""Task and method; empty where a table does not name them."""


class Evaluations(NamedTuple):
    """What a file says of one method on one task."""

    curves: Mapping[str, Curve]
    lost: int = 0
    """Evaluations without a finite return."""
    seconds: float | None = None


def read_text(path: Path) -> str:
    """A file's content; UserError if there is none or it is not text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise UserError(f"{path} is not UTF-8 text.") from error


def table_lines(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """The lines of a CSV file by column; UserError unless it has those needed."""
    # A NUL is a mistake that csv in some versions passes on and in others refuses.
    text = read_text(path).replace("\0", "\ufffd")
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        names = list(reader.fieldnames or ())
        lines = list(reader)
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file ({error}).") from error
    absent = [name for name in needed if name not in names]
    if absent:
        raise UserError(f"{path} has no column {' or '.join(absent)}; it needs {named(needed)}.")
    if len(set(names)) < len(names):
        raise UserError(f"{path} has two columns of the same name.")
    for i, line in enumerate(lines, 2):
        if None in line or None in line.values():
            raise UserError(
                f"{path}, line {i}: it has not {counted(len(names), 'cell')} like the header."
            )
    return lines


def named(columns: Sequence[str]) -> str:
    """Columns in words."""
    return f"{', '.join(columns[:-1])} and {columns[-1]}"


def csv_evaluations(path: Path) -> dict[Key, Evaluations]:
    """Every curve of a CSV file, by task and method where it has these columns."""
    points: dict[Key, dict[str, dict[int, float]]] = {}
    for i, line in enumerate(table_lines(path, COLUMNS), 2):
        place = f"{path}, line {i}"
        key = respelled(shown(line.get("task", ""))), shown(line.get("method", ""))
        frames, value = frame_number(line["frames"], place), finite(line["return"], place)
        seed = shown(line["seed"], 40)
        if not seed:
            raise UserError(f"{place}: the seed is empty.")
        curve = points.setdefault(key, {}).setdefault(seed, {})
        if frames in curve:
            raise UserError(f"{place}: frame {frames} of seed {seed} is there twice.")
        curve[frames] = value
    if not points:
        raise UserError(f"{path} has no evaluation.")
    return {key: Evaluations(in_order(seeds)) for key, seeds in points.items()}


def in_order(points: Mapping[str, Mapping[int, float]]) -> dict[str, Curve]:
    """Each seed's points by frame."""
    return {seed: tuple(sorted(curve.items())) for seed, curve in points.items()}


def frame_number(cell: object, place: str) -> int:
    """A whole number of frames; UserError with its place otherwise."""
    number = parsed(cell)
    if not (0 <= number <= LARGEST and number == int(number)):
        raise UserError(
            f"{place}: frames is {shown(repr(cell), 40)}; it must be a whole number from 0."
        )
    return int(number)


def finite(cell: object, place: str, name: str = "return") -> float:
    """A return; UserError with its place otherwise."""
    number = parsed(cell)
    if not abs(number) <= LARGEST:
        raise UserError(f"{place}: {name} is {shown(repr(cell), 40)}; it must be a finite number.")
    return number


def parsed(cell: object) -> float:
    """A number, or not a number."""
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return math.nan
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return math.nan


def row_evaluations(rows: Sequence[Mapping[str, Any]], place: str) -> Evaluations:
    """Every curve of a run's rows; an evaluation whose return is null counts as lost."""
    points: dict[str, dict[int, float]] = {}
    lost, seconds = 0, None
    for i, row in enumerate(rows, 1):
        where = f"{place}, row {i}"
        clock = parsed(row.get("seconds"))
        if 0 <= clock <= LARGEST:
            seconds = max(seconds or 0.0, clock)
        if row.get("kind") != "evaluation":
            continue
        seed, frames = row.get("seed"), frame_number(row.get("frames"), where)
        if type(seed) is not int:
            raise UserError(f"{where}: seed is {shown(repr(seed), 40)}; it must be a whole number.")
        curve = points.setdefault(str(seed), {})
        if frames in curve:
            raise UserError(f"{where}: frame {frames} of seed {seed} is there twice.")
        if row.get("return") is None:
            lost += 1
        else:
            curve[frames] = finite(row["return"], where)
    return Evaluations(in_order(points), lost, seconds)
