"""How far every unit is, read from what the commands themselves leave on disk.

A training is finished when its run directory says so. A command that makes something else prints
one JSON object; the sweep keeps that, with the command line, under results/ once the command has
ended well. There is no other record.
"""

import json
import os
import shlex
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastr.core import UserError, write_errors
from fastr.envs import module_of
from fastr.runs import checkpoints
from fastr.runs.checkpoints import ROWS
from fastr.runs.directory import CONFIG, RunDirectory
from fastr.runs.summary import number
from fastr.studies.units import Unit, importing, parted

TAIL_BYTES = 2**18
"""Of rows.jsonl that are read to see how a run is doing."""


def log_file(out: Path, unit: Unit) -> Path:
    """What all attempts at a unit have printed."""
    return out / "logs" / f"{unit.name}.log"


def result_file(out: Path, unit: Unit) -> Path:
    """The JSON object of a unit that has no run directory."""
    return out / "results" / f"{unit.name}.json"


def output_file(out: Path, unit: Unit) -> Path:
    """Where its stdout goes before it is a result."""
    return checkpoints.temporary(result_file(out, unit))


def begun(unit: Unit) -> bool:
    """Whether its run directory holds a run."""
    return unit.run is not None and (unit.run / CONFIG).exists()


def finished(out: Path, unit: Unit) -> bool:
    """Whether there is nothing left to do; UserError if its place holds something else."""
    if unit.run is not None:
        return begun(unit) and recorded_run(unit, unit.run).finished()
    try:
        recorded = json.loads(result_file(out, unit).read_bytes())
        arguments = tuple(map(str, recorded["arguments"]))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{result_file(out, unit)} is not a result of a sweep.") from error
    refuse_other(unit, arguments)
    return unit.product.exists()


def recorded_run(unit: Unit, path: Path) -> RunDirectory:
    """The run in a unit's directory; UserError if another command has made it."""
    run = RunDirectory.open(path)
    command = run.config["provenance"].get("command")
    arguments = command[1:] if isinstance(command, list) else []
    while arguments[:1] == ["--import"]:
        arguments = arguments[2:]
    refuse_other(unit, parted(list(map(str, arguments)))[0])
    return run


def refuse_other(unit: Unit, arguments: tuple[str, ...]) -> None:
    """Raise UserError if these are not the unit's arguments, wherever the sweep's folder is now."""
    if moved(arguments) != moved(unit.arguments):
        theirs = shlex.join(("fastr", *arguments))
        raise UserError(
            f"{unit.product} was made by `{theirs}`, not by `{unit.line}`; choose another --out."
        )


def moved(arguments: tuple[str, ...]) -> list[str]:
    """Arguments with absolute paths shortened to their last part."""
    return [Path(word).name if os.path.isabs(word) else word for word in arguments]


def next_arguments(unit: Unit) -> tuple[str, ...]:
    """The command that begins a unit, or goes on with it."""
    if unit.arguments[0] == "train" and not begun(unit):
        return unit.command[1:]
    again = unit.arguments[0] == "train"
    arguments = ("resume", str(unit.run), *unit.watching) if again else unit.arguments
    return (*importing(modules(unit)), *arguments)


def modules(unit: Unit) -> dict[str, None]:
    """The modules that a unit's methods and tasks need: whoever named the tasks trusts them."""
    found: dict[str, None] = dict.fromkeys(unit.imports)
    if unit.arguments[0] == "train":
        found |= {module_of(unit.arguments[1]): None}
    for needed in unit.needs:
        found |= modules(needed)
    return {module: None for module in found if module}


def clear(out: Path, unit: Unit) -> None:
    """Make room for the product of a command that cannot go on from half of it.

    UserError for one that no attempt of a sweep has begun: it is somebody's.
    """
    if unit.run is not None or not unit.product.exists():
        return
    if not log_file(out, unit).exists():
        raise UserError(f"{unit.product} is not of this sweep; move it or choose another --out.")
    with write_errors(unit.product):
        result_file(out, unit).unlink(missing_ok=True)
        if unit.product.is_dir():
            shutil.rmtree(unit.product)
        else:
            unit.product.unlink()


def keep_result(out: Path, unit: Unit) -> None:
    """Record that a command without a run directory has ended well."""
    try:
        printed = output_file(out, unit).read_text().strip()
        result = json.loads(printed.rpartition("\n")[2])
    except (OSError, ValueError) as error:
        raise UserError(f"{unit.line} did not print a JSON object.") from error
    content = {"arguments": list(unit.arguments), "result": result}
    with write_errors(result_file(out, unit)):
        checkpoints.write_bytes(result_file(out, unit), json.dumps(content, indent=1).encode())


def saved_frames(unit: Unit) -> int:
    """Frames of the newest checkpoint: what a retry will not do again."""
    saved = checkpoints.saved_frames(unit.run) if unit.run is not None else []
    return saved[-1] if saved else 0


class Progress(NamedTuple):
    """What the newest rows of a run say."""

    frames: int
    budget: int
    mean_return: float | None
    """Of the newest evaluation, over the seeds that have it."""
    seconds: float
    """Of training so far, stops left out."""
    agent_steps: int

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None before there is one."""
        if not self.frames or not self.seconds:
            return None
        return self.seconds * (self.budget / self.frames - 1.0)


def progress(unit: Unit) -> Progress | None:
    """How a run is doing; None while it has no rows, or for a unit that is no run."""
    if unit.run is None:
        return None
    rows = newest_rows(unit.run / ROWS)
    if not rows:
        return None
    evaluations = [row for row in rows if row.get("kind") == "evaluation"]
    last = max((row["frames"] for row in evaluations), default=None)
    returns = [row["return"] for row in evaluations if row["frames"] == last]
    known = [value for value in returns if value is not None]
    return Progress(
        frames=min(unit.frames, max(row["frames"] for row in rows)),
        budget=unit.frames,
        mean_return=float(np.mean(known)) if known else None,
        seconds=max(row["seconds"] for row in rows),
        agent_steps=max(row["agent_steps"] for row in rows),
    )


def newest_rows(path: Path) -> tuple[dict[str, Any], ...]:
    """Rows at the end of a file that somebody may be writing to; what is not a row is left out."""
    try:
        known = path.stat()
        return rows_in_tail(path, known.st_size, known.st_mtime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=1024)
def rows_in_tail(path: Path, size: int, _: int) -> tuple[dict[str, Any], ...]:
    """The same for a file that had this size at that time: most do not change between two looks."""
    with path.open("rb") as file:
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).split(b"\n")
    # The first may be the end of a line, the last the beginning of one.
    whole = lines[:-1] if size <= TAIL_BYTES else lines[1:-1]
    return tuple(row for line in whole if (row := sound_row(line)) is not None)


def sound_row(line: bytes) -> dict[str, Any] | None:
    """The row in this line, if it has what progress is read from."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    counts = all(type(row.get(name)) is int for name in ("frames", "agent_steps"))
    sound = number(row.get("seconds")) and (row.get("return") is None or number(row["return"]))
    return row if counts and sound else None
