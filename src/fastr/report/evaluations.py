"""Evaluations from text that others may have written: CSV tables and a run's rows.

Reading is bounded, executes nothing, and reports what is wrong in one sentence with its line.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastr.core import UserError, counted
from fastr.envs.names import respelled
from fastr.report.series import Curve
from fastr.report.table import shown
from fastr.runs.untrusted import bounded_bytes

LARGEST = 1e12
"""A frame number or return beyond this is a mistake."""
LARGEST_FILE = 2**26
"""Bytes of a table or of a copy of a run's rows."""
COLUMNS = ("frames", "seed", "return")


class Evaluations(NamedTuple):
    """Content of a file on one method on one task."""

    curves: Mapping[str, Curve]
    lost: int = 0
    """Evaluations without a finite return."""
    seconds: float | None = None


def read_text(path: Path) -> str:
    """A file's content; UserError if it is not a readable text of bounded size."""
    try:
        return bounded_bytes(path, LARGEST_FILE).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text.") from error


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object.")
    return content


def table_lines(path: Path, needed: Sequence[str] = ()) -> list[dict[str, str]]:
    """The lines of a CSV file by column; UserError unless it has those needed."""
    # Some versions of csv pass a NUL on, others refuse it.
    text = read_text(path).replace("\0", "\ufffd")
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        names = list(reader.fieldnames or ())
        lines = list(reader)
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file ({error}).") from error
    if absent := [name for name in needed if name not in names]:
        raise UserError(
            f"{path} has no column {' or '.join(absent)}; it needs {', '.join(needed)}."
        )
    if len(set(names)) < len(names):
        raise UserError(f"{path} has two columns of the same name.")
    for i, line in enumerate(lines, 2):
        if None in line or None in line.values():
            cells = counted(len(names), "cell")
            raise UserError(f"{path}, line {i}: it needs {cells}, one for each column.")
    return lines


def csv_evaluations(path: Path) -> dict[tuple[str, str], Evaluations]:
    """Every curve of a CSV file, by task and method, which are empty without such a column."""
    points: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for i, line in enumerate(table_lines(path, COLUMNS), 2):
        place = f"{path}, line {i}"
        key = respelled(shown(line.get("task", ""))), shown(line.get("method", ""))
        seed = shown(line["seed"], 40)
        if not seed:
            raise UserError(f"{place}: the seed is empty.")
        curve = points.setdefault(key, {}).setdefault(seed, {})
        add(curve, frame_number(line["frames"], place), finite(line["return"], place), place)
    if not points:
        raise UserError(f"{path} has no evaluation.")
    return {key: Evaluations(in_order(seeds)) for key, seeds in points.items()}


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
        if row.get("return") is None:
            lost += 1
        else:
            add(curve, frames, finite(row["return"], where), where)
    return Evaluations(in_order(points), lost, seconds)


def add(curve: dict[int, float], frames: int, value: float, place: str) -> None:
    """Add an evaluation to its curve; UserError if there is one at this frame."""
    if frames in curve:
        raise UserError(f"{place}: frame {frames} of this seed occurs twice.")
    curve[frames] = value


def in_order(points: Mapping[str, Mapping[int, float]]) -> dict[str, Curve]:
    """Each seed's points by frame."""
    return {seed: tuple(sorted(curve.items())) for seed, curve in points.items()}


def frame_number(cell: object, place: str, name: str = "frames") -> int:
    """A whole number from zero."""
    number = parsed(cell)
    if not (0 <= number <= LARGEST and number == int(number)):
        raise UserError(
            f"{place}: {name} is {shown(repr(cell), 40)}; it must be a whole number from 0."
        )
    return int(number)


def finite(cell: object, place: str, name: str = "return") -> float:
    """A finite number."""
    number = parsed(cell)
    if not abs(number) <= LARGEST:
        raise UserError(f"{place}: {name} is {shown(repr(cell), 40)}; it must be a finite number.")
    return number


def parsed(cell: object) -> float:
    """A number, or NaN for anything else."""
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return math.nan
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return math.nan
