"""Real trainings at the tiniest size, in processes that can be broken, and what they must lead to.

A training is the command line's own, in a process forked from one that has already imported it: a
start then costs what starts JAX and the workers, which are spawned as always.
"""

import contextlib
import hashlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fastr import cli
from fastr.runs import RunDirectory

SEEDS = (3,)
FRAMES, EVERY = 900, 45
PROTOCOL = {
    "method": "td3",
    "preset": "quick",
    "hidden-dim": 8,
    "batch-size": 16,
    "frame-skip": 1,
    "random-frames": 50,
    "frames": FRAMES,
    "eval-frames": 300,
    "eval-episodes": 1,
    "checkpoint-frames": EVERY,
}
TASK = "fault_envs:Spring-v0"
PATIENCE_SECONDS = 8.0
TRAIN = [
    "train",
    TASK,
    *(word for name, value in PROTOCOL.items() for word in (f"--{name}", str(value))),
    "--seeds",
    *map(str, SEEDS),
]
START_SECONDS = 240.0
"""A machine with much else to do starts processes slowly; nothing that takes longer is alive."""
STOPPED = (0, 143)
"""Exit codes of a run that was asked to stop: at its end, or before."""
CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Setting:
    """What is wrong with the surroundings of a process from its start."""

    fault: dict | None = None
    """For the environment: see fault_envs."""
    file_bytes: int | None = None
    """No file can grow beyond this."""


WELL = Setting()


class Child:
    """One command in a process of its own, which leads a process group of its own."""

    def __init__(self, arguments: list[str], log: Path, setting: Setting):
        self.log = log
        self.started = time.monotonic()
        self.process = CONTEXT.Process(target=_main, args=(arguments, log, setting))
        with warnings.catch_warnings():
            # JAX warns of forks; it has not started anything in this process.
            warnings.simplefilter("ignore")
            self.process.start()

    def running(self) -> bool:
        return self.process.is_alive()

    def wait(self, seconds: float = START_SECONDS) -> int | None:
        """The exit code, or None if it has not ended within this time."""
        self.process.join(seconds)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def ask_to_stop(self, *, group: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.process.pid, signal.SIGTERM)

    def workers(self) -> list[int]:
        """The processes it has spawned for simulators and evaluations."""
        return [pid for pid in group_members(self.process.pid) if b"spawn_main" in cmdline(pid)]

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def left_behind(self) -> list[int]:
        """Processes of its group that outlive it by more than a little; they are ended."""
        deadline = time.monotonic() + 20
        while (left := group_members(self.process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


def _main(arguments: list[str], log: Path, setting: Setting) -> None:
    os.setpgid(0, 0)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    if setting.fault:
        os.environ["FASTR_FAULT"] = json.dumps(setting.fault)
    if setting.file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (setting.file_bytes, setting.file_bytes))
    sys.exit(cli.run(arguments))


def group_members(leader: int) -> list[int]:
    """Living processes of this process group."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == leader and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Victim:
    """One run directory, from its beginning to its end, through everything that happens to it."""

    def __init__(self, path: Path, logs: Path):
        self.path, self.logs = path, logs
        self.launches = 0
        self.damage: str | None = None
        """What the next launch must say about a damaged checkpoint."""

    def launch(self, setting: Setting = WELL) -> Child:
        """Begin the run, or resume it."""
        self.launches += 1
        patience = ["--patience", str(PATIENCE_SECONDS)] if setting.fault else []
        log = self.logs / f"{self.path.name}-{self.launches:02d}.log"
        child = Child([*self.command(), *patience], log, setting)
        if self.damage is not None:
            wait_for(lambda: self.damage in child.said() or not child.running())
            if self.damage not in child.said():
                child.kill()
                raise AssertionError(f"{log}: nothing about {self.damage!r}: {child.said()}")
            self.damage = None
        return child

    def command(self) -> list[str]:
        if (self.path / "config.json").exists():
            return ["--import", TASK.partition(":")[0], "resume", str(self.path)]
        return [*TRAIN, "--out", str(self.path)]

    def checkpoints(self) -> list[Path]:
        return sorted(self.path.glob("checkpoints/0*"))

    def frames(self) -> int:
        """Frames at the newest checkpoint."""
        return int(self.checkpoints()[-1].name) if self.checkpoints() else 0

    def ended(self) -> bool:
        return self.frames() >= FRAMES


@dataclass(frozen=True)
class Result:
    """What a finished run amounts to: its rows but for their seconds, and a hash of its arrays."""

    rows: Counter
    weights: str

    @classmethod
    def of(cls, path: Path) -> "Result":
        run = RunDirectory.open(path)
        checkpoint = run.latest()
        digest = hashlib.sha256(str(checkpoint.frames).encode())
        for name, array in sorted(checkpoint.arrays().items()):
            digest.update(name.encode() + array.tobytes())
        for _, part in checkpoint.replay_slices(1000):
            digest.update(part.tobytes())
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in run.rows()]
        return cls(Counter(json.dumps(row, sort_keys=True) for row in rows), digest.hexdigest())


def rising_seconds(path: Path) -> bool:
    """Whether the rows' wall-clock never goes back and is never negative."""
    seconds = [row["seconds"] for row in RunDirectory.open(path).rows()]
    return all(a <= b for a, b in zip([0.0, *seconds], seconds, strict=False))


def wait_for(condition, pause: float = 0.01) -> bool:
    """Whether the condition comes true within the time that a process has to start."""
    deadline = time.monotonic() + START_SECONDS
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
    return true
