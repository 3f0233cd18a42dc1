"""Break real trainings in every way a machine knows, and see what is left of them.

    python tests/harness/faults.py --faults 200 --out faults.md

Runs live through several faults each, drawn at random, and are then trained to their end, which is
compared with that of an undisturbed run: rows but for their seconds, every array, every transition.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path[1:]])

from kinds import FAULTS, QUICK, SHARES, Missed, Try, expect  # noqa: E402
from victims import Result, Victim, rising_seconds  # noqa: E402

PER_RUN = 10
"""Faults in the life of one run."""


@dataclass
class Lane:
    """A process that breaks runs one after the other."""

    number: int
    work: Path
    reference: Result
    rng: random.Random
    tries: list[Try] = field(default_factory=list)

    def work_off(self, names: list[str]) -> None:
        names = list(names)
        while names:
            names = self.one_life(names)

    def one_life(self, names: list[str]) -> list[str]:
        """Begin a run, break it a few times, end it, judge it; the faults that are left to do."""
        folder = Path(tempfile.mkdtemp(prefix=f"lane{self.number}-", dir=self.work))
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "fastr-faults", str(folder)],
            capture_output=True,
            check=False,
        )
        victim, life = Victim(folder / "run", self.work / "logs"), []
        victim.logs = self.work / "logs" / folder.name
        victim.logs.mkdir(parents=True)
        try:
            while names and len(life) < PER_RUN and not victim.ended():
                self.strike(victim, names, life)
            self.judge(victim, life)
        finally:
            if mounted.returncode == 0:
                subprocess.run(["umount", "-l", str(folder)], check=True)
            shutil.rmtree(folder, ignore_errors=True)
        return names

    def strike(self, victim: Victim, names: list[str], life: list[Try]) -> None:
        """Inject the next fault."""
        entry = Try(names[0])
        try:
            FAULTS[names[0]](victim, self.rng, entry)
        except Missed:
            return
        except Exception as error:
            entry.problem = str(error) or traceback.format_exc()
        names.pop(0)
        life.append(entry)
        self.record(entry)

    def judge(self, victim: Victim, life: list[Try]) -> None:
        """Train to the end without a fault, and compare."""
        problem = ""
        try:
            if victim.running or not victim.ended():
                child = victim.launch()
                expect(child.wait(600) == 0, f"not resumed: {child.said()}")
            expect(rising_seconds(victim.path), "seconds went backwards")
            found = Result.of(victim.path)
        except Exception as error:
            found, problem = Result(Counter(), ""), str(error)
        for entry in life:
            entry.resumed = bool(found.weights)
            entry.equal = found.weights == self.reference.weights
            entry.lost = (self.reference.rows - found.rows).total()
            entry.doubled = (found.rows - self.reference.rows).total()
            entry.problem = entry.problem or problem
        self.tries += life

    def record(self, entry: Try) -> None:
        line = f"{entry.fault} ({entry.detail}): {entry.problem or 'as promised'}"
        with (self.work / "log").open("a") as log:
            log.write(line + "\n")
        print(line[:400], file=sys.stderr, flush=True)


def run_lane(number, work, reference, names, seed, answer):
    lane = Lane(number, work, reference, random.Random(f"{seed} {number}"))
    try:
        lane.work_off(names)
    finally:
        answer.put([asdict(entry) for entry in lane.tries])


def undisturbed(work: Path) -> Result:
    """What every run must come to; its programs are compiled for all others."""
    victim = Victim(work / "reference", work / "logs")
    victim.logs.mkdir(parents=True)
    child = victim.launch()
    expect(child.wait(600) == 0, f"the undisturbed run failed: {child.said()}")
    return Result.of(victim.path)


def table(tries: list[Try]) -> str:
    """One line for each kind of fault, and one for all."""
    head = "fault", "tries", "as promised", "lost rows", "doubled rows", "resumed", "weights equal"
    lines = [head, ("---",) * len(head)]
    for name in [*FAULTS, "all"]:
        those = [entry for entry in tries if name in ("all", entry.fault)]
        if those:
            lines.append((
                name,
                len(those),
                sum(not entry.problem for entry in those),
                sum(entry.lost for entry in those),
                sum(entry.doubled for entry in those),
                sum(entry.resumed for entry in those),
                sum(entry.equal for entry in those),
            ))  # fmt: skip
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200, help="how many faults to inject")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), help="these kinds alone")
    parser.add_argument("--lanes", type=int, default=2, help="runs at the same time")
    parser.add_argument("--seed", type=int, default=0, help="of the faults' order and moments")
    parser.add_argument("--out", type=Path, help="where the table goes")
    parser.add_argument("--keep", type=Path, help="directory for logs (default: a temporary one)")
    options = parser.parse_args()
    names = arranged(options.only or list(FAULTS), options.faults, random.Random(options.seed))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fastr-faults-") as temporary:
        work = options.keep or Path(temporary)
        work.mkdir(exist_ok=True, parents=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(work / "compiled"))
        reference = undisturbed(work)
        tries = side_by_side(work, reference, names, options)
    text = table(tries)
    print(text)
    print(f"{len(tries)} faults in {time.monotonic() - begun:,.0f} s")
    if options.out:
        options.out.write_text(text)
    bad = [entry for entry in tries if entry.problem or not entry.equal or entry.lost]
    for entry in bad:
        print(f"BROKEN: {entry}", file=sys.stderr)
    return 1 if bad or len(tries) < options.faults else 0


def share(names: list[str], i: int, lanes: int) -> list[str]:
    """One lane's part, in order."""
    return names[i * len(names) // lanes : (i + 1) * len(names) // lanes]


def arranged(kinds: list[str], count: int, rng: random.Random) -> list[str]:
    """So many faults of these kinds in their shares, the quick ones between the others."""
    total = sum(SHARES[kind] for kind in kinds)
    names = [kind for kind in kinds for _ in range(-(-SHARES[kind] * count // total))]
    while len(names) > count:
        names.remove(max(names, key=names.count))
    rng.shuffle(names)
    slow, quick = ([n for n in names if (n in QUICK) == wanted] for wanted in (False, True))
    mixed = []
    for i, name in enumerate(slow or [""]):
        here = quick[i :: len(slow) or 1]
        mixed += [*filter(None, [name]), *here]
    return mixed


def side_by_side(work, reference, names, options) -> list[Try]:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    lanes = [
        context.Process(
            target=run_lane,
            args=(
                i,
                work,
                reference,
                share(names, i, options.lanes),
                f"{options.seed} {i}",
                answers,
            ),
        )
        for i in range(options.lanes)
    ]
    for lane in lanes:
        lane.start()
    tries = [Try(**entry) for _ in lanes for entry in answers.get()]
    for lane in lanes:
        lane.join()
    return tries


if __name__ == "__main__":
    sys.exit(main())
