"""Break real trainings in every way a machine knows, and see what is left of them.

    python tests/harness/faults.py --faults 200 --out faults.md

Runs live through several faults each, drawn at random, and are then trained to their end, which is
compared with that of an undisturbed run: rows but for their seconds, every array, every transition.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path[1:]])

from kinds import FAULTS, SHARES, Missed, Try, expect  # noqa: E402
from victims import Result, Victim, rising_seconds  # noqa: E402

PER_RUN = 10
"""Faults in the life of one run."""


def one_life(work: Path, names: list[str], reference: Result, rng: random.Random) -> list[Try]:
    """Start a run, inject the first faults of the list, train it to its end, compare."""
    folder = Path(tempfile.mkdtemp(prefix="life-", dir=work))
    victim, life = Victim(folder / "run", work / "logs" / folder.name), []
    victim.logs.mkdir(parents=True)
    while names and len(life) < PER_RUN and not victim.ended():
        entry = Try(names[0])
        try:
            FAULTS[names[0]](victim, rng, entry)
        except Missed:
            continue
        except Exception as error:
            entry.problem = str(error) or traceback.format_exc()
        names.pop(0)
        life.append(entry)
        line = f"{entry.fault} ({entry.detail}): {entry.problem or 'as promised'}"
        print(line[:400], file=sys.stderr, flush=True)
    judge(victim, life, reference)
    shutil.rmtree(folder)
    return life


def judge(victim: Victim, life: list[Try], reference: Result) -> None:
    """Train to the end without a fault, and compare."""
    problem = ""
    try:
        if not victim.ended():
            child = victim.launch()
            expect(child.wait(600) == 0, f"not resumed: {child.said()}")
        expect(rising_seconds(victim.path), "seconds went backwards")
        found = Result.of(victim.path)
    except Exception as error:
        found, problem = Result(Counter(), ""), str(error)
    for entry in life:
        entry.resumed = bool(found.weights)
        entry.equal = found.weights == reference.weights
        entry.lost = (reference.rows - found.rows).total()
        entry.doubled = (found.rows - reference.rows).total()
        entry.problem = entry.problem or problem


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
    parser.add_argument("--seed", type=int, default=0, help="of the faults' order and moments")
    parser.add_argument("--out", type=Path, help="where the table goes")
    parser.add_argument("--keep", type=Path, help="directory for logs (default: a temporary one)")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    names = arranged(options.only or list(FAULTS), options.faults, rng)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fastr-faults-") as temporary:
        work = options.keep or Path(temporary)
        work.mkdir(exist_ok=True, parents=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(work / "compiled"))
        reference = undisturbed(work)
        tries: list[Try] = []
        while names:
            tries += one_life(work, names, reference, rng)
    text = table(tries)
    print(text)
    print(f"{len(tries)} faults in {time.monotonic() - begun:,.0f} s")
    if options.out:
        options.out.write_text(text)
    bad = [entry for entry in tries if entry.problem or not entry.equal or entry.lost]
    for entry in bad:
        print(f"BROKEN: {entry}", file=sys.stderr)
    return 1 if bad or len(tries) < options.faults else 0


def arranged(kinds: list[str], count: int, rng: random.Random) -> list[str]:
    """So many faults of these kinds, in their shares."""
    total = sum(SHARES[kind] for kind in kinds)
    names = [kind for kind in kinds for _ in range(-(-SHARES[kind] * count // total))]
    while len(names) > count:
        names.remove(max(names, key=names.count))
    rng.shuffle(names)
    return names


if __name__ == "__main__":
    sys.exit(main())
