"""Write runs as results: per run a CSV of its evaluations, a sidecar, and the seeds' policies.

    python tools/cells.py RUNS OUT [--policies]

RUNS is a folder with run directories at any depth. OUT/TASK/METHOD.csv has frames, seed, return;
METHOD.json says how it was made, and whether it reached its end. --policies writes every seed's
actor for the NumPy loader, with its model card, into OUT/TASK/METHOD-seed-N.
"""

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import fastr
from fastr.core import slug
from fastr.runs import CONFIG, RunDirectory
from fastr.runs.summary import curve_csv


def sidecar(run: RunDirectory, seconds: float, frames: int) -> dict[str, Any]:
    """How the results of a run came about."""
    train, made = run.config["train"], run.config["provenance"]
    words = ["fastr", *made["command"][1:]]
    if "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    devices = made["devices"] if made["devices"] != ["cpu"] else []
    versions = [f"{name} {made['packages'][name]}" for name in ("jax", "mujoco")]
    note = f"{seconds:,.0f} s"
    if frames < train["frames"]:
        note += f"; not finished, ends at frame {frames:,}"
    return {
        "kind": "returns",
        "task": train["task"],
        "method": train["method"],
        **({} if train["preset"] == "paper" else {"variant": train["preset"]}),
        "command": shlex.join(words),
        "commit": made["commit"]["revision"][:7] if made.get("commit") else "not recorded",
        "hardware": ", ".join([*devices, f"{made['cores']} cores", str(made["cpu"]), *versions]),
        "seeds": train["seeds"],
        "frames": train["frames"],
        "note": note,
    }


def write(path: Path, out: Path, *, policies: bool) -> None:
    """Write one run."""
    run = RunDirectory.open(path)
    rows, train = run.rows(), run.config["train"]
    place = out / slug(train["task"]) / train["method"]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.with_suffix(".csv").write_text(curve_csv(rows, train["seeds"]), "utf-8")
    evaluated = [row for row in rows if row["kind"] == "evaluation"]
    last = max((row["frames"] for row in evaluated), default=0)
    about = sidecar(run, max((row["seconds"] for row in rows), default=0.0), last)
    place.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    for seed in train["seeds"] if policies else ():
        fastr.load(path).export(f"{place}-seed-{seed}", "safetensors", seed)
    print(f"{place}: {last:,} of {train['frames']:,} frames")


def main() -> None:
    """Write every run of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--policies", action="store_true")
    options = parser.parse_args()
    for config in sorted(options.runs.rglob(CONFIG)):
        write(config.parent, options.out, policies=options.policies)


if __name__ == "__main__":
    main()
