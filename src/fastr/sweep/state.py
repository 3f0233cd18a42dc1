"""How far every unit is, read from disk.

A training is finished when its run directory is. Any other command is finished when its product
exists and `results/` records that this command has ended well. There is no other record.
"""

import json
import os
import re
import shlex
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from fastr.core import UserError, write_errors
from fastr.envs import module_of
from fastr.runs import checkpoints
from fastr.runs.directory import CONFIG, RunDirectory
from fastr.studies.experiments import Unit, importing, parted

INTERNAL = ".sweep"
"""Folder in the sweep's directory for its lock, its claims and the request to stop."""
EVENT = re.compile(r"# \d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)")
"""A line that the sweep itself writes into a log."""


def log_file(out: Path, unit: Unit) -> Path:
    """Output of all attempts at a unit."""
    return out / "logs" / f"{unit.name}.log"


def record_file(out: Path, unit: Unit) -> Path:
    """Record of a finished command that is no training."""
    return out / "results" / f"{unit.name}.json"


def stop_file(out: Path) -> Path:
    """Request to save and end, to all nodes."""
    return out / INTERNAL / "stop"


def finished(out: Path, unit: Unit) -> bool:
    """Whether nothing is left to do; UserError if another command has trained the run."""
    if unit.trains:
        return _started(unit) and _recorded_run(unit).finished()
    try:
        recorded = json.loads(record_file(out, unit).read_bytes())["arguments"]
        return unit.product.exists() and _moved(recorded) == _moved(unit.arguments)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _started(unit: Unit) -> bool:
    return unit.trains and (unit.product / CONFIG).exists()


def _recorded_run(unit: Unit) -> RunDirectory:
    """The run in a unit's directory; UserError if another command has trained it."""
    run = RunDirectory.open(unit.product)
    command = run.config["provenance"].get("command")
    arguments = [str(word) for word in command[1:]] if isinstance(command, list) else []
    while arguments[:1] == ["--import"]:
        arguments = arguments[2:]
    if _moved(parted(arguments)[0]) != _moved(unit.arguments):
        theirs = shlex.join(("fastr", *arguments))
        raise UserError(
            f"{unit.product} was trained by `{theirs}`, not by `{unit.line}`; choose another --out."
        )
    return run


def _moved(arguments: Any) -> list[str]:
    # Absolute paths shortened to their last part: a sweep's folder may be moved.
    return [Path(word).name if os.path.isabs(word) else word for word in arguments]


def next_arguments(unit: Unit) -> tuple[str, ...]:
    """The command that starts a unit or resumes it."""
    words = unit.arguments
    if unit.trains and not _started(unit):
        return unit.command[1:]
    if unit.trains:
        words = ("resume", str(unit.product), *unit.watching)
    return (*importing(_modules(unit)), *words)


def _modules(unit: Unit) -> dict[str, None]:
    """Modules of a unit's methods and tasks, all of which the user has named."""
    found: dict[str, None] = dict.fromkeys(unit.imports)
    if unit.trains and (module := module_of(unit.arguments[1])):
        found[module] = None
    for needed in unit.needs:
        found |= _modules(needed)
    return found


def saved_frames(unit: Unit) -> int:
    """Frames of the newest checkpoint."""
    saved = checkpoints.saved_frames(unit.product) if unit.trains else []
    return saved[-1] if saved else 0


def clear(out: Path, unit: Unit) -> None:
    """Delete what an earlier attempt left of a product that cannot be resumed.

    UserError if no attempt of a sweep has written it.
    """
    if unit.trains or not unit.product.exists():
        return
    if not log_file(out, unit).exists():
        raise UserError(f"{unit.product} is not of this sweep; move it or choose another --out.")
    with write_errors(unit.product):
        record_file(out, unit).unlink(missing_ok=True)
        if unit.product.is_dir():
            shutil.rmtree(unit.product)
        else:
            unit.product.unlink()


def record(out: Path, unit: Unit) -> None:
    """Note that a command other than a training has ended well."""
    path = record_file(out, unit)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"arguments": unit.arguments}, indent=1))


class Claim:
    """The right to work on a unit, as a file: the newest claim counts.

    Locks of run directories hold on one machine only. A node that has lost its connection to the
    cluster, but not to the storage, learns here that another node works on the unit.
    """

    def __init__(self, out: Path, unit: Unit, holder: str):
        self.path = out / INTERNAL / "claims" / unit.name
        self.holder = holder

    def take(self) -> str:
        """Take over the unit; returns the last holder, or an empty string."""
        before = self._read()
        with write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self.holder)
        return before

    def lost(self) -> bool:
        """Whether another process has taken over."""
        return self._read() not in ("", self.holder)

    def release(self) -> None:
        """Give up the claim, unless it is lost."""
        if not self.lost():
            self.path.unlink(missing_ok=True)

    def _read(self) -> str:
        try:
            return self.path.read_text()
        except OSError:
            return ""


def note(out: Path, unit: Unit, text: str) -> None:
    """Write an event into a unit's log."""
    log = log_file(out, unit)
    with write_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(f"# {datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")


class Events:
    """Reads the events that are appended to a unit's log."""

    def __init__(self, out: Path, unit: Unit):
        self.log = log_file(out, unit)
        self.read_bytes = self.log.stat().st_size if self.log.exists() else 0
        self.started = False

    def new(self) -> list[str]:
        """Events since the last call."""
        if not self.log.exists() or self.log.stat().st_size == self.read_bytes:
            return []
        self.started = True
        with self.log.open("rb") as file:
            file.seek(self.read_bytes)
            whole = [line for line in file if line.endswith(b"\n")]
        self.read_bytes += sum(map(len, whole))
        found = (EVENT.fullmatch(line.decode(errors="replace").rstrip()) for line in whole)
        return [event[1] for event in found if event]


def tail(log: Path, lines: int = 12) -> list[str]:
    """The last lines of a log, without events."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2**16))
        found = file.read().decode(errors="replace").rstrip().splitlines()
    return [line for line in found if not EVENT.fullmatch(line)][-lines:]
