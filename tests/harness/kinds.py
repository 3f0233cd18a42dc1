"""The faults: what is done to a run, and what it must do then."""

import contextlib
import json
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from victims import (
    EVERY,
    FRAMES,
    PATIENCE_SECONDS,
    SEEDS,
    STOPPED,
    Child,
    Setting,
    Victim,
    wait_for,
)


class Missed(Exception):  # noqa: N818
    """The run ended before the fault struck: it does not count."""


@dataclass
class Try:
    """One fault and what came of it."""

    fault: str
    detail: str = ""
    problem: str = ""
    """Which promise was broken."""
    lost: int = 0
    doubled: int = 0
    resumed: bool = False
    equal: bool = False
    seconds: float = 0.0
    """Until it was reported, where that is promised in time."""


Fault = Callable[[Victim, random.Random, Try], None]
FAULTS: dict[str, Fault] = {}
SHARES: dict[str, int] = {}
"""How often each is injected, out of 200; those that cost no start of a process, more often."""


def fault(name: str, share: int) -> Callable[[Fault], Fault]:
    def enter(function: Fault) -> Fault:
        FAULTS[name], SHARES[name] = function, share
        return function

    return enter


def expect(condition: object, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)


def under_way(victim: Victim, child: Child, rng: random.Random) -> None:
    """Wait until the run has come some way further; Missed if it ends on that way."""
    now = victim.frames()
    # One checkpoint more than before at least: until then it may not have begun.
    goal = max(now + EVERY, min(now + EVERY * rng.randint(1, 5), FRAMES - EVERY))
    wait_for(lambda: victim.frames() >= goal or not child.running())
    time.sleep(rng.uniform(0.0, 0.15))
    if not child.running():
        expect(victim.ended(), f"ended by itself: {child.said()}")
        raise Missed


def check_ended(child: Child, code: int, says: str) -> None:
    """It ends by itself, with this exit code and one sentence, and leaves no process behind."""
    found = child.wait()
    said = child.said()
    if found is None:
        child.kill()
    expect(found == code, f"exit code {found} in place of {code}: {said}")
    expect("Traceback" not in said, f"a traceback: {said}")
    sentences = [line for line in said.splitlines() if line.startswith("fastr: ")]
    expect(any(re.search(says, line) for line in sentences), f"not {says!r}: {said}")
    expect(not child.left_behind(), "processes left behind")


def ended_first(victim: Victim, child: Child) -> None:
    """Missed if the run got to its end although a fault lay in its way."""
    if child.wait() == 0 and victim.ended():
        raise Missed


@fault("SIGKILL at a random moment", 24)
def sigkill(victim, rng, entry):
    child = victim.launch()
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0.0, 6.0))
        entry.detail = "while it starts"
        if not child.running():
            raise Missed
    else:
        under_way(victim, child, rng)
        entry.detail = "under way"
    child.kill()
    expect(not child.left_behind(), "processes left behind")


@fault("SIGKILL during a checkpoint", 18)
def sigkill_in_checkpoint(victim, rng, entry):
    child = victim.launch()
    goal = min(victim.frames() + EVERY * rng.randint(1, 4), FRAMES - 2 * EVERY)
    wait_for(lambda: victim.frames() >= goal or not child.running())
    folders = victim.path / "checkpoints", victim.path / "replay"
    temporary = lambda: [f for d in folders if d.exists() for f in os.listdir(d) if f[0] == "."]  # noqa: E731
    wait_for(lambda: temporary() or not child.running(), pause=0.0)
    time.sleep(rng.uniform(0.0, 0.002))
    alive = child.running()
    child.kill()
    expect(not child.left_behind(), "processes left behind")
    if not alive:
        raise Missed
    entry.detail = "half written" if temporary() else "just written"


@fault("SIGTERM", 16)
def sigterm(victim, rng, entry):
    child = victim.launch()
    under_way(victim, child, rng)
    group = rng.random() < 0.5
    entry.detail = "to the process group" if group else "to the process"
    before = victim.frames()
    child.ask_to_stop(group=group)
    code = child.wait()
    expect(not child.left_behind(), "processes left behind")
    if victim.ended():
        expect(code == 0, f"exit code {code} at the end: {child.said()}")
        raise Missed
    expect(code == 143, f"exit code {code}: {child.said()}")
    expect("continue with `fastr --import fault_envs resume" in child.said(), child.said())
    expect(victim.frames() >= before, "no checkpoint at the stop")


@fault("full disk", 10)
def full_disk(victim, rng, entry):
    size = (victim.path / "rows.jsonl").stat().st_size if victim.checkpoints() else 0
    child = victim.launch(Setting(file_bytes=size + rng.randint(200, 4_000)))
    entry.detail = "a limit on the size of files"
    ended_first(victim, child)
    check_ended(child, 2, "cannot be written|could not be written")


@fault("damaged checkpoint file", 44)
def damaged_file(victim, rng, entry):
    flips = rng.random() < 0.5
    change = lambda content, at: with_flip(content, at, rng) if flips else content[:at]  # noqa: E731
    damaged(victim, rng, entry, change)


def with_flip(content: bytes, at: int, rng: random.Random) -> bytes:
    """One bit of one byte the other way round."""
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def damaged(victim, rng, entry, change) -> None:
    """Change a file of the newest checkpoint of a run at rest: the one before is used and named."""
    older, newest = at_rest(victim)
    index = {path: json.loads((path / "index.json").read_bytes()) for path in (older, newest)}
    own = [name for name in index[newest]["files"] if name not in index[older]["files"]]
    rows_from = index[older]["rows_bytes"], index[newest]["rows_bytes"]
    choices = [newest / "index.json", newest / "state.safetensors"]
    choices += [victim.path / "replay" / name for name in own]
    if rows_from[0] < rows_from[1]:
        choices.append(victim.path / "rows.jsonl")
    path = rng.choice(choices)
    content = path.read_bytes()
    first, last = rows_from if path.name == "rows.jsonl" else (0, len(content))
    path.write_bytes(change(content, rng.randrange(first, last)))
    entry.detail = path.name if path.parent.name != "replay" else "replay segment"
    victim.damage = f"{newest.name} is damaged"


def at_rest(victim: Victim) -> list[Path]:
    """The newest two checkpoints of a run that nobody writes to."""
    if len(victim.checkpoints()) < 2 or victim.damage:
        child = victim.launch()
        wait_for(lambda: len(victim.checkpoints()) >= 2 or not child.running())
        child.ask_to_stop(group=False)
        expect(child.wait() in STOPPED, child.said())
    if victim.ended():
        raise Missed
    return victim.checkpoints()[-2:]


@fault("worker killed", 8)
def worker_killed(victim, rng, entry):
    child = victim.launch()
    under_way(victim, child, rng)
    workers = child.workers()
    if len(workers) < len(SEEDS) + 1:
        ended_first(victim, child)
    expect(len(workers) == len(SEEDS) + 1, f"{len(workers)} workers")
    with contextlib.suppress(ProcessLookupError):
        os.kill(rng.choice(workers), 9)
    reported_in_time(victim, child, entry, "died.*killed by SIGKILL")


MISBEHAVIOURS = {
    "exit": "died.*exit code 7",
    "raise": "failed at agent step .*wheel came off",
    "hang": r"silent for \d+\.\d seconds.* taken to be stuck",
    "large reward": r"failed at agent step \d+ of episode \d+: .*the reward is 1e[+]300",
    "state": r"failed at agent step \d+ of episode \d+: .*number 1 is nan",
}


@fault("simulator crashes, raises, hangs, or is not finite", 26)
def misbehaving(victim, rng, entry):
    kind = rng.choice(list(MISBEHAVIOURS))
    stream = rng.choice(["train", "evaluate"])
    left = FRAMES - victim.frames()
    # An evaluation is an episode of 40 steps of each seed, at least two of them in a run's rest.
    step = rng.randint(1, max(1, left - EVERY) if stream == "train" else 60)
    entry.detail = f"{kind}, {stream}"
    child = victim.launch(Setting(fault={"kind": kind, "stream": stream, "step": step}))
    reported_in_time(victim, child, entry, MISBEHAVIOURS[kind])


def reported_in_time(victim, child, entry, says) -> None:
    """From the last sign of progress, a report takes no longer than is promised."""
    seen, since = None, time.monotonic()
    while child.running():
        sizes = [p.stat().st_size for p in (victim.path / "rows.jsonl",) if p.exists()]
        if (now := (sizes, victim.frames(), len(child.workers()))) != seen:
            seen, since = now, time.monotonic()
        entry.seconds = round(time.monotonic() - since, 1)
        if entry.seconds > PATIENCE_SECONDS + 120:
            child.kill()
            raise AssertionError(f"silent for {entry.seconds} seconds")
        time.sleep(0.05)
    ended_first(victim, child)
    check_ended(child, 1, says)
    expect("checkpoint" in child.said(), f"nothing on where to go on: {child.said()}")
