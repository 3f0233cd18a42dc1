"""Compare what every method learns, to the bit, with what another version of the code learned.

    python tools/same_numbers.py build/numbers.json

The first call records, later ones compare. Two versions are compared by recording with one
(PYTHONPATH=OTHER/src) and comparing with the other, on one machine: numbers differ between CPUs.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors.numpy import load_file

TASK = "walker-walk"
METHODS = (
    *("fastr", "ctrl-sr", "diff-sr", "sac", "sac-2layer", "td7", "td3", "concat", "tucker"),
    *("tucker-22", "block", "low-rank", "tree", "ctrl-sr-matched", "tucker-matched"),
)
PAPER = ("fastr", "ctrl-sr", "diff-sr", "sac", "td7", "td3")
SMALL = {"frames": 700, "random-frames": 100, "eval-frames": 350, "eval-episodes": 1}
LARGE = {"frames": 120, "random-frames": 100, "eval-frames": 120, "eval-episodes": 1}
KILLED = ("fastr", "td7")


def options(values: dict[str, int]) -> list[str]:
    """Values as arguments."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def cases() -> dict[str, list[str]]:
    """Arguments of `fastr train` by the name of the case."""
    found = {}
    for method in METHODS:
        for seeds in (["0"], ["0", "1"]):
            name = f"{method}, {len(seeds)} seed(s)"
            found[name] = [
                "--method",
                method,
                "--preset",
                "laptop",
                *options(SMALL),
                "--seeds",
                *seeds,
            ]
    for method in PAPER:
        words = ["--method", method, "--preset", "paper", *options(LARGE), "--seeds", "0"]
        found[f"{method}, paper"] = words
    for method in KILLED:
        found[f"{method}, killed"] = found[f"{method}, 2 seed(s)"]
    return found


def main() -> None:
    """Run all cases; record their digests, or name those that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    given = parser.parse_args()
    chosen = {name: words for name, words in cases().items() if given.only in name}
    with ThreadPoolExecutor(given.jobs) as pool:
        digests = dict(zip(chosen, pool.map(digest, chosen, chosen.values()), strict=True))
    for method in KILLED:
        if f"{method}, killed" in digests:
            whole = digests.get(f"{method}, 2 seed(s)")
            assert whole in (None, digests[f"{method}, killed"]), f"{method}: a resumed run differs"
    if not given.record.exists():
        given.record.parent.mkdir(parents=True, exist_ok=True)
        given.record.write_text(json.dumps(digests, indent=1))
        print(f"recorded {len(digests)} cases in {given.record}")
        return
    known = json.loads(given.record.read_text())
    different = [name for name in chosen if digests[name] != known[name]]
    print(f"{len(chosen) - len(different)} of {len(chosen)} cases have the same numbers")
    sys.exit(f"different: {'; '.join(different)}" if different else 0)


def digest(name: str, words: list[str]) -> str:
    """SHA-256 of a run's rows and of the arrays in its last checkpoint."""
    run = Path(tempfile.mkdtemp()) / "run"
    command = [sys.executable, "-m", "fastr.cli"]
    train = [*command, "train", TASK, *words, "--out", str(run)]
    if name.endswith("killed"):
        kill(train, run)
        train = [*command, "resume", str(run)]
    subprocess.run(train, check=True, capture_output=True)
    print(".", end="", flush=True)
    rows = [json.loads(line) for line in (run / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"]
    rows.sort(key=lambda row: (row["kind"], row["seed"], row["frames"]))
    newest = max((run / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
    arrays = {}
    for file in newest.glob("*.safetensors"):
        arrays |= load_file(file)
    # By content: what an array is called, and where, may change.
    contents = sorted(
        hashlib.sha256(f"{a.dtype}{a.shape}".encode() + a.tobytes()).hexdigest()
        for a in arrays.values()
    )
    shutil.rmtree(run.parent)
    return hashlib.sha256(json.dumps([rows, contents]).encode()).hexdigest()


def kill(train: list[str], run: Path) -> None:
    """End a run by SIGKILL after its first checkpoint."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*train, "--checkpoint-frames", "350"], env=os.environ, **quiet)
    while process.poll() is None and not list((run / "checkpoints").glob("[0-9]*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main()
