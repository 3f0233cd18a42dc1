"""Break real trainings in the ways a machine breaks them, and see what is left of them.

    python tests/harness/faults.py --faults 200 --out faults.md

A run lives through several faults drawn at random, and is then trained to its end, which is
compared with that of an undisturbed run: rows but for their seconds, every array, every transition.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastr.runs import RunDirectory

FRAMES, EVERY = 900, 45
"""The budget, and the frames between checkpoints."""
TASK = "fault_envs:Spring-v0"
TRAIN = (
    f"train {TASK} --method td3 --preset laptop --hidden-dim 8 --batch-size 16 --frame-skip 1 "
    f"--random-frames 50 --frames {FRAMES} --eval-frames 300 --eval-episodes 1 "
    f"--checkpoint-frames {EVERY} --seeds 3"
).split()
PATIENCE_SECONDS = 8.0
WORKERS = 2
"""Processes of a training: its simulator and its evaluation."""
START_SECONDS = 240.0
"""A machine with much else to do starts processes slowly; nothing that takes longer is alive."""
PER_RUN = 10
"""Faults in the life of one run."""
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "OPENBLAS_NUM_THREADS": "1",
}


class Missed(Exception):  # noqa: N818
    """The run ended before the fault struck: it does not count."""


def expect(condition: object, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)


def wait_for(condition, pause: float = 0.01) -> None:
    """Wait until the condition is true, or as long as a process may take to start."""
    deadline = time.monotonic() + START_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(pause)


class Run:
    """One run directory, from its beginning to its end, and the process that trains it."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.path, self.log = folder / "run", folder / "log"

    def launch(self, fault: dict | None = None, file_bytes: int | None = None) -> None:
        """Begin the run or resume it, with a fault for its environment or a limit on its files."""
        command = [*TRAIN, "--out", str(self.path)]
        if (self.path / "config.json").exists():
            command = ["--import", TASK.partition(":")[0], "resume", str(self.path)]
        if fault:
            command += ["--patience", str(PATIENCE_SECONDS)]
        paths = [str(Path(__file__).parent), *sys.path[1:]]
        given = {"PYTHONPATH": os.pathsep.join(paths), "FASTR_FAULT": json.dumps(fault or {})}

        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fastr.cli", *command],
                stdout=log,
                stderr=log,
                env=ENVIRONMENT | os.environ | given,
                start_new_session=True,
            )
        if file_bytes is not None:
            limits = (file_bytes, file_bytes)
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)

    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self, seconds: float = START_SECONDS) -> int | None:
        """The exit code; None if it has not ended within this time, and is killed."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def members(self) -> dict[int, bytes]:
        """Living processes of the training's group, with their command lines."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.process.pid and fields[0] != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes()
        return found

    def expect_nothing_left(self) -> None:
        """The processes it has started end soon after it."""
        deadline = time.monotonic() + 20
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.05)
        left = self.members()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        expect(not left, "processes left behind")

    def expect_ended(self, code: int, says: str) -> None:
        """It ends by itself, with this exit code and one sentence, and leaves nothing behind."""
        found, said = self.wait(), self.said()
        if found == 0 and self.ended():
            raise Missed
        expect(found == code, f"exit code {found} in place of {code}: {said}")
        expect("Traceback" not in said, f"a traceback: {said}")
        sentences = [line for line in said.splitlines() if line.startswith("fastr: ")]
        expect(any(re.search(says, line) for line in sentences), f"not {says!r}: {said}")
        self.expect_nothing_left()

    def checkpoints(self) -> list[Path]:
        return sorted(self.path.glob("checkpoints/0*"))

    def frames(self) -> int:
        """Frames at the newest checkpoint."""
        return int(self.checkpoints()[-1].name) if self.checkpoints() else 0

    def ended(self) -> bool:
        return self.frames() >= FRAMES

    def under_way(self, rng: random.Random) -> None:
        """Wait until the run has come some way further; Missed if it ends on that way."""
        now = self.frames()
        goal = max(now + EVERY, min(now + EVERY * rng.randint(1, 5), FRAMES - EVERY))
        wait_for(lambda: self.frames() >= goal or not self.running())
        time.sleep(rng.uniform(0.0, 0.15))
        if not self.running():
            expect(self.ended(), f"ended by itself: {self.said()}")
            raise Missed


# Faults: what is done to a run, and what it must do then. Each returns a detail for the record.


def sigkill(run: Run, rng: random.Random) -> str:
    run.launch()
    starting = rng.random() < 0.3
    if starting:
        time.sleep(rng.uniform(0.0, 6.0))
    else:
        run.under_way(rng)
    if not run.running():
        raise Missed
    run.kill()
    run.expect_nothing_left()
    return "while it starts" if starting else "under way"


def sigkill_in_checkpoint(run: Run, rng: random.Random) -> str:
    run.launch()
    goal = min(run.frames() + EVERY * rng.randint(1, 4), FRAMES - 2 * EVERY)
    wait_for(lambda: run.frames() >= goal or not run.running())
    folders = run.path / "checkpoints", run.path / "replay"
    half = lambda: [f for d in folders if d.exists() for f in os.listdir(d) if f[0] == "."]  # noqa: E731
    wait_for(lambda: half() or not run.running(), pause=0.0)
    time.sleep(rng.uniform(0.0, 0.002))
    if not run.running():
        raise Missed
    run.kill()
    run.expect_nothing_left()
    return "half written" if half() else "just written"


def sigterm(run: Run, rng: random.Random) -> str:
    run.launch()
    run.under_way(rng)
    before, group = run.frames(), rng.random() < 0.5
    (os.killpg if group else os.kill)(run.process.pid, signal.SIGTERM)
    run.expect_ended(143, "continue with `fastr --import fault_envs resume")
    expect(run.frames() >= before, "no checkpoint at the stop")
    return "to the process group" if group else "to the process"


def full_disk(run: Run, rng: random.Random) -> str:
    size = (run.path / "rows.jsonl").stat().st_size if run.checkpoints() else 0
    run.launch(file_bytes=size + rng.randint(200, 4_000))
    run.expect_ended(2, "cannot be written|could not be written")
    return "a limit on the size of files"


def damaged_file(run: Run, rng: random.Random) -> str:
    """A file of the newest checkpoint is cut or changed: the one before is used, and it is said."""
    while len(run.checkpoints()) < 2:
        run.launch()
        wait_for(lambda: len(run.checkpoints()) >= 2 or not run.running())
        run.process.terminate()
        expect(run.wait() in (0, 143), run.said())
    if run.ended():
        raise Missed
    older, newest = run.checkpoints()[-2:]
    index = [json.loads((path / "index.json").read_bytes()) for path in (older, newest)]
    first, last = (content["rows_bytes"] for content in index)
    own = index[1]["files"].keys() - index[0]["files"].keys() - {"state.safetensors"}
    choices = [newest / "index.json", newest / "state.safetensors"]
    choices += [run.path / "replay" / name for name in sorted(own)]
    choices += [run.path / "rows.jsonl"] * (first < last)
    path = rng.choice(choices)
    content = bytearray(path.read_bytes())
    at = rng.randrange(first, last) if path.name == "rows.jsonl" else rng.randrange(len(content))
    if rng.random() < 0.5:
        content[at] ^= 1 << rng.randrange(8)
    else:
        del content[at:]
    path.write_bytes(content)
    run.launch()
    named = f"{newest.name} is damaged"
    wait_for(lambda: named in run.said() or not run.running())
    run.kill()
    run.expect_nothing_left()
    expect(named in run.said(), f"nothing about {named!r}: {run.said()}")
    return path.name if path.parent.name != "replay" else "replay segment"


def worker_killed(run: Run, rng: random.Random) -> str:
    run.launch()
    run.under_way(rng)
    workers = [pid for pid, line in run.members().items() if b"spawn_main" in line]
    expect(len(workers) == WORKERS or run.ended(), f"{len(workers)} workers")
    with contextlib.suppress(ProcessLookupError, IndexError):
        os.kill(rng.choice(workers), signal.SIGKILL)
    reported_in_time(run, "died.*killed by SIGKILL")
    return ""


MISBEHAVIOURS = {
    "exit": "died.*exit code 7",
    "raise": "failed at agent step .*wheel came off",
    "hang": r"silent for \d+\.\d seconds.* taken to be stuck",
    "large reward": r"failed at agent step \d+ of episode \d+: .*the reward is 1e[+]300",
    "state": r"failed at agent step \d+ of episode \d+: .*number 1 is nan",
}


def misbehaving(run: Run, rng: random.Random) -> str:
    kind, stream = rng.choice(list(MISBEHAVIOURS)), rng.choice(["train", "evaluate"])
    # An evaluation is an episode of 40 steps, at least two of them in a run's rest.
    most = max(1, FRAMES - run.frames() - EVERY) if stream == "train" else 60
    run.launch(fault={"kind": kind, "stream": stream, "step": rng.randint(1, most)})
    reported_in_time(run, MISBEHAVIOURS[kind])
    return f"{kind}, {stream}"


def reported_in_time(run: Run, says: str) -> None:
    """From the last sign of progress, a report takes no longer than is promised."""
    seen, since = None, time.monotonic()
    while run.running():
        rows = run.path / "rows.jsonl"
        now = rows.exists() and rows.stat().st_size, run.frames(), len(run.members())
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - since > PATIENCE_SECONDS + 120:
            run.kill()
            raise AssertionError("silent for too long")
        time.sleep(0.05)
    run.expect_ended(1, says)
    expect("checkpoint" in run.said(), f"nothing on where to go on: {run.said()}")


FAULTS: dict[str, tuple[Callable[[Run, random.Random], str], int]] = {
    "SIGKILL at a random moment": (sigkill, 24),
    "SIGKILL during a checkpoint": (sigkill_in_checkpoint, 18),
    "SIGTERM": (sigterm, 16),
    "full disk": (full_disk, 10),
    "damaged checkpoint file": (damaged_file, 44),
    "worker killed": (worker_killed, 8),
    "simulator crashes, raises, hangs, or is not finite": (misbehaving, 26),
}
"""Each with its share among all."""


# Lives


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


def finish(run: Run) -> tuple[Counter[str], str]:
    """Train to the end without a fault: rows but for their seconds, and a hash of all arrays."""
    while not run.ended():
        run.launch()
        expect(run.wait(600) == 0, f"not resumed: {run.said()}")
    directory, digest = RunDirectory.open(run.path), hashlib.sha256()
    checkpoint = directory.latest()
    for name, array in sorted(checkpoint.arrays().items()):
        digest.update(name.encode() + array.tobytes())
    for _, part in checkpoint.replay_slices(1000):
        digest.update(part.tobytes())
    seconds = [row["seconds"] for row in directory.rows()]
    expect([0.0, *seconds] == sorted([0.0, *seconds]), "seconds went backwards")
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in directory.rows()]
    return Counter(json.dumps(row, sort_keys=True) for row in rows), digest.hexdigest()


def one_life(work: Path, names: list[str], reference: tuple, rng: random.Random) -> list[Try]:
    """Start a run, inject the first faults of the list, train it to its end, compare."""
    folder = Path(tempfile.mkdtemp(prefix="life-", dir=work))
    run, life = Run(folder / "one"), []
    while names and len(life) < PER_RUN and not run.ended():
        entry = Try(names[0])
        try:
            entry.detail = FAULTS[entry.fault][0](run, rng)
        except Missed:
            continue
        except Exception as error:
            entry.problem = repr(error)
        names.pop(0)
        life.append(entry)
        print(f"{entry.fault}: {entry.problem or 'as promised'}"[:400], file=sys.stderr, flush=True)
    problem, rows, weights = "", Counter(), ""
    try:
        rows, weights = finish(run)
    except Exception as error:
        problem = repr(error)
    for entry in life:
        entry.resumed, entry.equal = bool(weights), weights == reference[1]
        entry.lost, entry.doubled = (reference[0] - rows).total(), (rows - reference[0]).total()
        entry.problem = entry.problem or problem
    shutil.rmtree(folder)
    return life


def table(tries: list[Try]) -> str:
    """One line for each kind of fault, and one for all."""
    head = "fault", "tries", "as promised", "lost rows", "doubled rows", "resumed", "weights equal"
    lines = [head, ("---",) * len(head)]
    for name in [*FAULTS, "all"]:
        those = [entry for entry in tries if name in ("all", entry.fault)]
        promised = sum(not entry.problem for entry in those)
        counts = (
            sum(getattr(entry, kind) for entry in those)
            for kind in ("lost", "doubled", "resumed", "equal")
        )
        if those:
            lines.append((name, len(those), promised, *counts))
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def arranged(kinds: list[str], count: int, rng: random.Random) -> list[str]:
    """So many faults of these kinds, in their shares."""
    total = sum(FAULTS[kind][1] for kind in kinds)
    names = [kind for kind in kinds for _ in range(-(-FAULTS[kind][1] * count // total))]
    while len(names) > count:
        names.remove(max(names, key=names.count))
    rng.shuffle(names)
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200, help="how many faults to inject")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), help="these kinds alone")
    parser.add_argument("--seed", type=int, default=0, help="of the faults' order and moments")
    parser.add_argument("--out", type=Path, help="where the table goes")
    options = parser.parse_args()
    rng, tries = random.Random(options.seed), []
    names = arranged(options.only or list(FAULTS), options.faults, rng)
    with tempfile.TemporaryDirectory(prefix="fastr-faults-") as temporary:
        work = Path(temporary)
        ENVIRONMENT["JAX_COMPILATION_CACHE_DIR"] = str(work / "compiled")
        reference = finish(Run(work / "reference"))
        while names:
            tries += one_life(work, names, reference, rng)
    print(text := table(tries))
    if options.out:
        options.out.write_text(text)
    bad = [entry for entry in tries if entry.problem or not entry.equal or entry.lost]
    for entry in bad:
        print(f"BROKEN: {entry}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
