"""Train for long at the tiniest size and watch the memory, file handles and threads it holds.

    python tests/harness/soak.py --agent-steps 200000 --out soak.csv

The training is a process of its own, observed from outside: through /proc and the rows it writes.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
OPTIONS = (
    "--method td3 --preset quick --hidden-dim 8 --batch-size 16 --seeds 3 --frame-skip 1 "
    "--random-frames 100 --eval-frames 5000 --eval-episodes 2 --checkpoint-frames 10000 "
    "--replay-capacity 20000"
)
COLUMNS = ("agent_steps", "seconds", "rss_mib", "workers_rss_mib", "handles", "threads")


def start(steps: int, out: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "fastr.cli", "train", "fault_envs:Spring-v0"]
    command += [*OPTIONS.split(), "--frames", str(steps), "--out", str(out)]
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"JAX_PLATFORMS": "cpu"} | os.environ | {"PYTHONPATH": paths}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def resident(pid: int) -> float:
    """MiB of memory that a process holds; 0 once it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def last_episode(run: Path) -> tuple[int, float]:
    """Agent steps and seconds at the newest episode's end."""
    try:
        lines = (run / "rows.jsonl").read_bytes()[-20_000:].split(b"\n")[1:-1]
    except OSError:
        return 0, 0.0
    ends = [row for row in map(json.loads, lines) if row["kind"] == "episode"]
    return (ends[-1]["agent_steps"], ends[-1]["seconds"]) if ends else (0, 0.0)


def watched(pid: int, poll, run: Path, every: int) -> list[tuple]:
    """One sample each so many agent steps, until the training ends."""
    samples, before = [], 0
    while poll() is None:
        time.sleep(0.2)
        steps, seconds = last_episode(run)
        if steps - before < every:
            continue
        before, place = steps, Path(f"/proc/{pid}")
        workers = map(int, (place / f"task/{pid}/children").read_text().split())
        counts = (len(os.listdir(place / kind)) for kind in ("fd", "task"))
        held = resident(pid), round(sum(map(resident, workers)), 1)
        samples.append((steps, seconds, *held, *counts))
        print(samples[-1], file=sys.stderr, flush=True)
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agent-steps", type=int, default=200_000)
    parser.add_argument("--every", type=int, default=4_000, help="agent steps between two samples")
    parser.add_argument("--out", type=Path, required=True, help="a .csv file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fastr-soak-") as folder:
        process = start(options.agent_steps, Path(folder) / "run")
        try:
            samples = watched(process.pid, process.poll, Path(folder) / "run", options.every)
        finally:
            process.kill()
            process.wait()
    with options.out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *samples])
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
