"""A run directory: its configuration, its rows, its checkpoints, and the one process that writes.

contract.json  what policies are fed and return, see contract.py
config.json    {"train": ..., "provenance": ...}; only the budget may grow
rows.jsonl     one JSON object per measurement
checkpoints/   see checkpoints.py
replay/        transitions, shared by the checkpoints
lock           held by the writer
"""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from io import FileIO
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from fastr.core import UserError, nearest, slug, write_errors
from fastr.runs import checkpoints
from fastr.runs.checkpoints import CONFIG, ROWS, STATE, Checkpoint, Snapshot
from fastr.runs.contract import CONTRACT
from fastr.runs.files import LOCK, TEMPORARY, locked, write_bytes
from fastr.runs.untrusted import json_object, require_own


def run_name(task: str, method: str) -> str:
    """The folder of a run that was given none."""
    return f"{slug(task)}-{method}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"


class RunDirectory:
    """A run on disk, for reading; another process may be writing to it."""

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Run at this path; UserError if there is none."""
        return RunDirectory(Path(path), read_config(Path(path)))

    def rows(self) -> list[dict[str, Any]]:
        """All measurements, oldest first, without a last line that a kill cut short."""
        lines = _rows_content(self.path).split(b"\n")[:-1]
        return [parsed_row(line, f"{self.path / ROWS} line {i}") for i, line in enumerate(lines, 1)]

    def latest(self) -> Checkpoint:
        """Newest checkpoint whose arrays verify; rows and replay are not read."""
        return checkpoints.newest(self.path, lambda found: found.verify_file(STATE))

    def latest_complete(self) -> Checkpoint:
        """Newest checkpoint of which everything verifies, replay and rows included."""
        return replace(checkpoints.newest(self.path, Checkpoint.verify), verified=True)

    def finished(self) -> bool:
        """Whether the newest sound checkpoint is at the end of the budget."""
        budget = self.config["train"].get("frames")
        try:
            return type(budget) is int and self.latest().frames >= budget
        except UserError:
            return False


class RunWriter(RunDirectory):
    """A run on disk that only this process writes to, until it is closed."""

    def __init__(self, path: Path, config: dict[str, Any], lock: FileIO):
        super().__init__(path, config)
        self.lock = lock
        self.last: Checkpoint | None = None
        self.rows_file = FileIO(path / ROWS, "a")
        self.background = ThreadPoolExecutor(1)
        self.saving: Future[None] | None = None

    @classmethod
    def create(
        cls, path: str | Path, config: dict[str, Any], contract: dict[str, Any] | None = None
    ) -> "RunWriter":
        """Start a run from {"train": ..., "provenance": ...}; UserError if one is there already."""
        path = Path(path)
        config = json.loads(json.dumps(config))
        refuse_taken(path)
        with write_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        with _lock_and_clean(path) as lock:
            if (path / CONFIG).exists():
                recorded = read_config(path)["train"]
                if different := first_difference(recorded, config["train"]):
                    raise UserError(f"{path} holds another run: {different}; choose another --out.")
                if checkpoints.saved_frames(path) or b"\n" in _rows_content(path):
                    again = f"`fastr resume {quote(str(path))}`"
                    raise UserError(f"{path} exists: use {again} or choose another --out.")
            if contract is not None:
                write_bytes(path / CONTRACT, json.dumps(contract, indent=2).encode())
            write_bytes(path / CONFIG, json.dumps(config, indent=2).encode())
            # It can only hold a line that a kill cut short.
            (path / ROWS).write_bytes(b"")
            return cls(path, config, lock)

    @classmethod
    def resume(
        cls, path: str | Path, frames: int | None = None
    ) -> tuple["RunWriter", Checkpoint | None]:
        """Continue from the newest sound checkpoint; everything written after it is deleted.

        A run stopped before its first checkpoint starts again: the second value is then None.
        With `frames`, the run's budget becomes that.
        """
        path = Path(path)
        config = read_config(path)
        with _lock_and_clean(path) as lock:
            saved = checkpoints.saved_frames(path)
            checkpoint = RunDirectory(path, config).latest_complete() if saved else None
            # In this order a kill in between leaves spare rows, which the next resume cuts.
            if checkpoint:
                if checkpoint.config_sha256 != checkpoints.config_sha256(path):
                    raise UserError(
                        f"{path / CONFIG} is not what it was at checkpoint {checkpoint.name}: "
                        "restore it, or start another run."
                    )
                kept = [frames for frames in saved if frames <= checkpoint.frames]
                checkpoints.keep_only(path, kept)
            if frames is not None:
                config["train"]["frames"] = frames
                write_bytes(path / CONFIG, json.dumps(config, indent=2).encode())
            writer = cls(path, config, lock)
            writer.rows_file.truncate(checkpoint.rows_bytes if checkpoint else 0)
            writer.last = checkpoint
            return writer, checkpoint

    def append(self, row: dict[str, Any]) -> None:
        """Record one measurement; numbers that are not finite become null."""
        line = json.dumps(json_value(row), allow_nan=False).encode() + b"\n"
        with write_errors(self.path / ROWS):
            size = os.fstat(self.rows_file.fileno()).st_size
            if self.rows_file.write(line) != len(line):
                # A full disk: the next line would continue the beginning of this one.
                self.rows_file.truncate(size)
                raise OSError("the disk took only part of a line")

    def begin_save(self, snapshot: Snapshot, *, keep: int) -> None:
        """Write a checkpoint in the background, once the one before is written.

        It includes the rows recorded until now; then all but the newest `keep` are deleted.
        """
        self.finish_save()
        rows_bytes = os.fstat(self.rows_file.fileno()).st_size
        self.saving = self.background.submit(self._save, snapshot, rows_bytes, keep)

    def finish_save(self) -> None:
        """Wait for the checkpoint being written, if any; UserError on a write error."""
        saving, self.saving = self.saving, None
        if saving is not None:
            saving.result()

    def _save(self, snapshot: Snapshot, rows_bytes: int, keep: int) -> None:
        self.last = checkpoints.save(self.path, snapshot, rows_bytes=rows_bytes, last=self.last)
        with write_errors(self.path):
            checkpoints.keep_only(self.path, checkpoints.saved_frames(self.path)[-keep:])

    def standing(self) -> str:
        """Describe the newest usable checkpoint, for the end of a sentence."""
        try:
            self.finish_save()
        except UserError as error:
            return str(error).removesuffix(".")
        if self.last is None:
            return f"there is no checkpoint yet in {self.path}"
        return f"the last good checkpoint is {self.last.name} in {self.path}"

    def close(self) -> None:
        """Let other processes write to this run."""
        self.background.shutdown()
        self.rows_file.close()
        self.lock.close()

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def _lock_and_clean(path: Path) -> Iterator[FileIO]:
    """Lock a run and delete leftovers; unlock it again only if the block fails."""
    lock = locked(path)
    try:
        with write_errors(path):
            checkpoints.discard_leftovers(path)
            yield lock
    except BaseException:
        lock.close()
        raise


# The configuration


def read_config(path: Path) -> dict[str, Any]:
    """Content of config.json in this directory; UserError if it is not a run's."""
    file = path / CONFIG
    require_own(_own_paths(path))
    if not file.exists():
        runs = [str(file.parent) for file in path.parent.glob(f"*/{CONFIG}")]
        why = f"it has no {CONFIG}." if path.exists() else "it does not exist."
        hint = nearest(str(path), (one for one in runs if one != str(path)))
        raise UserError(f"{path} is not a run directory: {why}{hint}")
    config = json_object(file)
    if not all(isinstance(config.get(part), dict) for part in ("train", "provenance")):
        raise UserError(f'{file} is not a run\'s: it needs "train" and "provenance".')
    return config


def _own_paths(run: Path) -> Iterator[Path]:
    """Every path in a run that is read or written, each folder before its content."""
    for name in (CONFIG, CONTRACT, ROWS, LOCK, "curve.png", "curve.csv"):
        yield run / name
    for folder in (run / "checkpoints", run / "replay"):
        yield folder
        yield from folder.glob("*")
    yield from (run / "checkpoints").glob("*/*")


def refuse_taken(path: Path) -> None:
    """Raise UserError if no run can be started or continued here; nothing is created."""
    with write_errors(path):
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; choose another --out.")
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    # A writer that is killed before it has written config.json leaves only these.
    others = {name for name in names - {LOCK, CONTRACT} if not name.startswith(TEMPORARY)}
    if others and CONFIG not in names:
        raise UserError(f"{path} is neither empty nor a run directory; choose another --out.")


def first_difference(recorded: Any, wanted: Any, field: str = "") -> str | None:
    """First field in which two JSON values differ, with both of its values."""
    if not (isinstance(recorded, dict) and isinstance(wanted, dict)):
        there, here = json.dumps(recorded), json.dumps(wanted)
        return None if there == here else f"{field} is {there} there and {here} here"
    for key in recorded | wanted:
        inner = f"{field}.{key}" if field else key
        if key not in recorded or key not in wanted:
            return f"{inner} is only {'here' if key in wanted else 'there'}"
        if different := first_difference(recorded[key], wanted[key], inner):
            return different
    return None


# Rows


def _rows_content(path: Path) -> bytes:
    """Content of rows.jsonl; empty if it does not exist yet."""
    try:
        return (path / ROWS).read_bytes() if (path / ROWS).exists() else b""
    except OSError as error:
        raise UserError(f"{path / ROWS} cannot be read ({error.strerror}).") from error


def parsed_row(line: bytes, place: str) -> dict[str, Any]:
    """JSON object of one line; UserError that names its place if there is none."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(row := json.loads(line), dict):
            return row
    raise UserError(f"{place} is not a JSON object; the file is damaged.")


def json_value(value: Any) -> Any:
    """Value with numpy's numbers as Python's, and null for numbers that JSON lacks."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
