"""What the tests of sweeps share: units, and what must be left of them."""

import os
import time
from pathlib import Path

from fastr.runs.directory import RunDirectory
from fastr.studies.units import Grid
from fastr.sweep import state

FAKE = (str(Path(__file__).parent / "fake_train.py"),)
FRAMES = 400


def grid(out, *tasks, **changes):
    options = {"methods": ("fastr",), "seeds": (0,), "frames": FRAMES} | changes
    return Grid(out=out, tasks=tasks, **options)


def units(out, *tasks, **changes):
    plan = grid(out, *tasks, **changes)
    return [plan.training(task, "fastr", plan.seeds) for task in tasks]


def attempts(out, unit):
    """The command lines in a unit's log."""
    lines = state.log_file(out, unit).read_text().splitlines()
    return [entry.split(": ", 1)[1].split()[1] for entry in lines if entry.startswith("# ")]


def assert_whole(unit):
    """Every row once, in order, and a sound checkpoint at the end."""
    run = RunDirectory.open(unit.run)
    assert [row["frames"] for row in run.rows()] == list(range(20, FRAMES + 1, 20))
    assert run.latest().frames == FRAMES
    assert run.finished()


def processes(out):
    """Live processes that have this directory on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(out).encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
