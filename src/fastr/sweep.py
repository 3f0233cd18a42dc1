"""A grid of commands on Ray, on this machine or on a cluster. Nothing here loads JAX.

How far a unit is, is read from disk: a training is finished when its run directory is, any other
command when its product exists and `results/` records that this command has ended well. A Ray task
brings one unit to its end, again wherever a worker or a node is lost: it reads how far its unit is,
and does the rest. The nodes share the sweep's directory and nothing else.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fastr.core import UserError, write_errors
from fastr.envs import module_of
from fastr.runs import CONFIG, RunDirectory, checkpoints, user_of
from fastr.runs.files import discard
from fastr.studies.experiments import Unit, importing, parted

INTERNAL = ".sweep"
"""Folder in the sweep's directory for its lock, its claims and the request to stop."""
EVENT = re.compile(r"# \d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)")
"""A line that the sweep itself writes into a log."""

PROGRAM = ("-m", "fastr.cli")
"""What python runs with a unit's arguments."""
USER_ERROR = 2
"""Exit code of a command that was refused: another attempt would not help."""
POLL_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 60.0
SAVE_SECONDS = 600.0
"""For a training to write its checkpoint after SIGTERM."""
TAKE_OVER_SECONDS = 15.0
"""For a node that the cluster has lost to notice that its unit runs elsewhere."""
CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 80 * 2**20
"""Near Ray's minimum: nothing is stored, and containers have little shared memory."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""For Ray, before it is imported: report nothing home, and print nothing about lost nodes."""
TIED = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Becomes python with the arguments, and is killed with the process that started it: on another
node the run may be resumed at once, so nothing may write to it here."""


# How far units are


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
        discard(unit.product)


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


def tail(log: Path) -> list[str]:
    """The last twelve lines of a log, without events."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2**16))
        found = file.read().decode(errors="replace").rstrip().splitlines()
    return [line for line in found if not EVENT.fullmatch(line)][-12:]


# Units on Ray


class Outcome(NamedTuple):
    """How a unit ended in this sweep."""

    name: str
    state: Literal["done", "failed", "blocked", "stopped"]
    note: str = ""


@dataclass(frozen=True)
class Task:
    """Brings one unit to its end; plain values, which travel to another node."""

    unit: Unit
    out: Path
    retries: int
    """Attempts after the first that may fail in a row without a new checkpoint."""
    program: tuple[str, ...]
    """What python runs with the unit's arguments."""
    threads: str | None
    """OMP_NUM_THREADS where the sweep was started; Ray sets its own."""

    def __call__(self, *needed: Outcome) -> Outcome:
        """Outcome of the unit, after those that it needs."""
        name, host = self.unit.name, socket.gethostname()
        for need in needed:
            if need.state == "stopped":
                return Outcome(name, "stopped")
            if need.state != "done":
                return Outcome(name, "blocked", f"needs {need.name}")
        if not (self.out / INTERNAL).is_dir():
            return Outcome(name, "failed", f"{self.out} is not on {host}: --out must be shared")
        claim = Claim(self.out, self.unit, f"{host} {uuid.uuid4().hex}")
        try:
            before = claim.take()
            if before and before.split()[0] != host:
                time.sleep(TAKE_OVER_SECONDS)
            return self.finish(claim)
        except UserError as error:
            return Outcome(name, "failed", str(error))
        finally:
            claim.release()

    def finish(self, claim: Claim) -> Outcome:
        """Start or resume the unit's command until its result is complete."""
        unit, failures = self.unit, 0
        while not finished(self.out, unit):
            while unit.trains and user_of(unit.product) and not self.ending(claim):
                time.sleep(POLL_SECONDS)
            if self.ending(claim):
                return Outcome(unit.name, "stopped")
            saved = saved_frames(unit)
            code = self.attempt(claim, saved)
            if code == 0 and not unit.trains:
                record(self.out, unit)
            if self.ending(claim) or finished(self.out, unit):
                continue
            failures = 1 if saved_frames(unit) > saved else failures + 1
            problem = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            if code == USER_ERROR or failures > self.retries:
                return Outcome(unit.name, "failed", problem)
            # Some troubles pass.
            seconds = min(LONGEST_PAUSE_SECONDS, 2.0 ** (failures - 1))
            note(self.out, unit, f"{problem}, next attempt in {seconds:g} s")
            end = time.monotonic() + seconds
            while time.monotonic() < end and not self.ending(claim):
                time.sleep(POLL_SECONDS)
        return Outcome(unit.name, "done")

    def attempt(self, claim: Claim, saved: int) -> int:
        """Exit code of the unit's command, run once; negative for the signal that killed it."""
        clear(self.out, self.unit)
        arguments = next_arguments(self.unit)
        verb = f"resumed from frame {saved:,}" if saved else "started"
        line = shlex.join(("fastr", *arguments))
        note(self.out, self.unit, f"{verb} on {socket.gethostname()}: {line}")
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        if self.threads is not None:
            environment["OMP_NUM_THREADS"] = self.threads
        with log_file(self.out, self.unit).open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", TIED, str(os.getpid()), *self.program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        try:
            number = None
            while process.poll() is None and not number:
                time.sleep(POLL_SECONDS)
                number = self.ending(claim)
            if number:
                process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(SAVE_SECONDS)
        finally:
            # Also the simulators of a training that was killed.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        return code

    def ending(self, claim: Claim) -> signal.Signals | None:
        """The signal for a command that is to end, if it is."""
        if claim.lost():
            return signal.SIGKILL
        return signal.SIGTERM if stop_file(self.out).exists() else None


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray on this machine, started for this process alone, or the cluster at an address."""
    os.environ.update(QUIET)
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        quiet |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        quiet |= {"num_cpus": len(os.sched_getaffinity(0))}
        quiet |= {"num_gpus": 0} if os.environ.get("JAX_PLATFORMS") == "cpu" else {}
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():
            # Where nothing listens, Ray itself would try for minutes.
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        ray.init(address=address or "local", **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        place = "starts here" if address is None else f"answers at {address}"
        raise UserError(f"No Ray cluster {place} ({_first_line(error)}).") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def resources(ray: Any, gpus: float | None, cpus: float) -> dict[str, float]:
    """What a unit asks of Ray; UserError if no node has that much, since it would wait forever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = {kind: max(node.get(kind, 0.0) for node in nodes) for kind in ("GPU", "CPU")}
    gpus = min(1.0, most["GPU"]) if gpus is None else gpus
    for kind, wanted in (("GPU", gpus), ("CPU", cpus)):
        option = f"--{kind.lower()}s-per-run"
        if wanted < 0 or (wanted > 1 and wanted != int(wanted)):
            raise UserError(f"{option} is {wanted:g}; it must be a whole number or below 1.")
        if wanted > most[kind]:
            raise UserError(f"{option} is {wanted:g}, and no node has more than {most[kind]:g}.")
    return {"num_gpus": gpus, "num_cpus": cpus}


def run(
    ray: Any,
    tasks: Sequence[Task],
    share: dict[str, float],
    show: Callable[[str, str], None],
    requests: Callable[[], int],
) -> list[Outcome]:
    """Outcomes of all units, in their order; a finished one is not touched.

    `show` gets the name of a unit and what has happened to it. `requests` counts how often a stop
    was asked for: at the first, commands save and end; at the second, they are killed.
    """
    stop = stop_file(tasks[0].out)
    stop.unlink(missing_ok=True)
    # Ray may lose a task's worker or node any number of times: it has done no wrong.
    remote = ray.remote(max_retries=-1, **share)(Task.__call__)
    found, references, events = {}, {}, {}
    for task in tasks:
        name = task.unit.name
        if finished(task.out, task.unit):
            found[name] = Outcome(name, "done", "finished before")
        else:
            needed = [references[need.name] for need in task.unit.needs if need.name in references]
            references[name] = remote.remote(task, *needed)
            events[name] = Events(task.out, task.unit)
    pending, obeyed = {reference: name for name, reference in references.items()}, 0
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=POLL_SECONDS)
        for name in pending.values():
            for event in events[name].new():
                show(name, event)
        for reference in ready:
            name = pending.pop(reference)
            outcome = found[name] = _result(ray, reference, name, stopping=stop.exists())
            show(name, f"{outcome.state}: {outcome.note}".removesuffix(": "))
        if requests() > obeyed:
            obeyed = requests()
            stop.touch()
            for reference, name in pending.items():
                # A task that runs sees the file; one that waits for a place is taken back.
                if obeyed > 1 or not events[name].started:
                    ray.cancel(reference, force=obeyed > 1)
    stop.unlink(missing_ok=True)
    return [found[task.unit.name] for task in tasks]


def _result(ray: Any, reference: Any, name: str, *, stopping: bool) -> Outcome:
    """Outcome of a unit, also where Ray has cancelled or lost it."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        if stopping:
            return Outcome(name, "stopped")
        return Outcome(name, "failed", _first_line(getattr(error, "cause", None) or error))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
