"""Train for long at the tiniest size and watch what it holds: memory, file handles, step time.

    python tests/harness/soak.py --agent-steps 200000 --out results/cpu/soak

Writes OUT.csv and OUT.png. The training is a process of its own; it is only looked at from outside,
through /proc and through the rows that it writes.
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
OPTIONS = {
    "method": "td3",
    "preset": "quick",
    "hidden-dim": 8,
    "batch-size": 16,
    "seeds": 3,
    "frame-skip": 1,
    "random-frames": 100,
    "eval-frames": 5_000,
    "eval-episodes": 2,
    "checkpoint-frames": 10_000,
    "replay-capacity": 20_000,
}
COLUMNS = (
    *("agent_steps", "seconds", "rss_mib", "workers_rss_mib"),
    *("handles", "threads", "step_ms", "cpu_ms"),
)
MIB = 2**20


def start(steps: int, out: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "fastr.cli", "train", "fault_envs:Spring-v0"]
    for name, value in (OPTIONS | {"frames": steps, "out": out}).items():
        command += [f"--{name}", str(value)]
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"JAX_PLATFORMS": "cpu"} | os.environ | {"PYTHONPATH": paths}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 once it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, in all its threads: no matter who else was busy."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def last_episode(run: Path) -> tuple[int, float]:
    """Agent steps and seconds at the newest episode's end."""
    try:
        lines = (run / "rows.jsonl").read_bytes()[-20_000:].split(b"\n")[1:-1]
    except OSError:
        return 0, 0.0
    rows = [json.loads(line) for line in lines]
    ends = [(row["agent_steps"], row["seconds"]) for row in rows if row["kind"] == "episode"]
    return ends[-1] if ends else (0, 0.0)


def watched(process: subprocess.Popen, run: Path, every: int) -> list[dict[str, float]]:
    """One sample each so many agent steps, until the training ends."""
    samples: list[dict[str, float]] = []
    before, used = last_episode(run), 0.0
    while process.poll() is None:
        time.sleep(0.2)
        steps, seconds = last_episode(run)
        if steps - before[0] >= every:
            now, per = cpu_seconds(process.pid), 1_000 / (steps - before[0])
            times = {"step_ms": (seconds - before[1]) * per, "cpu_ms": (now - used) * per}
            rounded = {name: round(value, 4) for name, value in times.items()}
            samples.append(sample(process.pid, steps, seconds) | rounded)
            before, used = (steps, seconds), now
            print(samples[-1], file=sys.stderr, flush=True)
    return samples


def sample(pid: int, steps: int, seconds: float) -> dict[str, float]:
    return {
        "agent_steps": steps,
        "seconds": seconds,
        "rss_mib": round(resident(pid) / MIB, 1),
        "workers_rss_mib": round(sum(map(resident, children(pid))) / MIB, 1),
        "handles": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }


def draw(samples: list[dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = [entry["agent_steps"] / 1_000 for entry in samples]
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.4), layout="constrained")
    for name, label in (("rss_mib", "training"), ("workers_rss_mib", "workers")):
        axes[0].plot(steps, [entry[name] for entry in samples], label=label)
    axes[0].legend(fontsize=7)
    axes[1].plot(steps, [entry["handles"] for entry in samples])
    # The first sample holds the compilation.
    for name, label in (("step_ms", "wall-clock"), ("cpu_ms", "processor")):
        axes[2].plot(steps[1:], [entry[name] for entry in samples[1:]], label=label)
    axes[2].legend(fontsize=7)
    titles = "memory (MiB)", "open file handles", "time of an agent step (ms)"
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="thousand agent steps", ylim=(0, None))
    figure.savefig(path, dpi=100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agent-steps", type=int, default=200_000)
    parser.add_argument("--every", type=int, default=4_000, help="agent steps between two samples")
    parser.add_argument("--out", type=Path, required=True, help="OUT.csv and OUT.png")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fastr-soak-") as folder:
        process = start(options.agent_steps, Path(folder) / "run")
        try:
            samples = watched(process, Path(folder) / "run", options.every)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        return process.returncode
    with options.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(samples)
    draw(samples, options.out.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
