"""Small corpora to begin with, one folder per fuzzing program, into build/fuzz/seeds.

A file whose name begins with "sound" must be read without an error, or a program will not start.
"""

import io
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SEEDS = ROOT / "build" / "fuzz" / "seeds"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np

from fastr.training.config import METHODS, preset, to_json
from transitions import (
    walk,
    write_lerobot,
    write_minari,
    write_npz,
    write_parquet,
    write_run,
)

SMALL = walk(episodes=2, steps=2)
BOUNDS = {"action_low": -np.ones(2), "action_high": np.ones(2)}


def texts() -> dict[str, dict[str, bytes]]:
    """Tasks, groups and command lines."""
    return {
        "shifts": {
            "sound-suite": b"walker-walk@permutation:7+latency=2",
            "sound-gym": b"gym:a.b:ns/Robot-v0@dead=2:3+dead-band=0.25+quantization=9",
            "sound-own": b"my_package:MyRobot-v0@degradation:1",
            "wrong": b"humanoid_CMU-run@quantization=1+dead=9",
        },
        "groups": {
            "sound": b"torso=0-3,9;legs=4-8|legs=0-5",
            "sound-unnamed": b"0-9|0;1;2;3-5",
            "wrong": b"a=0-3|kinematic",
        },
        "command": {
            "sound-train": b"train\nwalker-walk\n--method\ntd7\n--seeds\n0\n1\n--frames\n1000",
            "sound-sweep": b"sweep\ntable1\n--dry-run\n--\n--batch-size\n8",
            "sound-misfit": b"misfit\nlog.npz\n--preset\nquick\n--json",
            "sound-play": b"play\nruns/gait\n--video\na.mp4\n--overlay\nreturn\nfactors",
            "sound-transfer": b"transfer\nruns/gait\n--shift\npermutation:7\n--figure",
            "help": b"eval\n--help",
            "wrong": b"export\nruns/gait\n--format\ntorch",
        },
    }


def runs() -> dict[str, dict[str, bytes]]:
    """The files of a run directory."""
    configs = {
        f"sound-{method}": json.dumps(
            {"train": to_json(preset("walker-walk", method, "laptop")), "provenance": {"cores": 2}}
        ).encode()
        for method in METHODS
    }
    row = {"kind": "evaluation", "seed": 0, "frames": 0, "agent_steps": 1, "return": 1.5}
    rows = [row | {"seconds": 1.0}, row | {"seed": 1, "return": None, "seconds": 2}]
    rows.append({"kind": "episode", "seed": 0, "frames": 20, "seconds": 3.5})
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = write_run(Path(folder) / "run", walk())
        checkpoint = path / "checkpoints" / "000000040"
        state = (checkpoint / "state.safetensors").read_bytes()
        segment = sorted((path / "replay").iterdir())[-1].read_bytes()
        index = json.loads((checkpoint / "index.json").read_text())
    host = {"next_step": 21, "seconds": 1.5, "episodes": [3], "returns": [0.5], "evaluated": 1}
    index["host"] = host | {"evaluating": False}
    return {
        "config": configs | {f"edits-{i}": bytes([i, 3, 3]) for i in range(7)},
        "rows": {"sound": lines, "torn": lines + b'{"kind": "eval'},
        "index": {"sound": json.dumps(index).encode(), "edits": bytes([1, 3, 3])},
        "tensors": {"sound-state": b"\0" + state, "sound-segment": b"\1" + segment},
    }


def datasets() -> dict[str, dict[str, bytes]]:
    """Datasets in every format."""
    arrays = io.BytesIO()
    for name in ("state", "action", "next_state", "episode"):
        np.save(arrays, SMALL[name])
    for bound in BOUNDS.values():
        np.save(arrays, bound)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {
            "plain": write_npz(folder / "a.npz", SMALL),
            "packed": write_npz(folder / "b.npz", SMALL | BOUNDS, compressed=True),
            "lists": write_parquet(folder / "a.parquet", SMALL),
            "wide": write_parquet(folder / "b.parquet", SMALL, wide=True),
            "bounds": write_parquet(
                folder / "c.parquet", SMALL, bounds={"low": [-1, -1], "high": [1, 1]}
            ),
        }
        content = {key: file.read_bytes() for key, file in files.items()}
        data = write_minari(folder / "log-v0", SMALL) / "data"
        frames = write_lerobot(folder / "log", SMALL) / "data" / "chunk-000" / "file-000.parquet"
        lerobot = frames.read_bytes()
        minari = (data / "main_data.hdf5").read_bytes(), (data / "metadata.json").read_bytes()
    return {
        "npz": {
            "sound-plain": b"\0" + content["plain"],
            "sound-packed": b"\0" + content["packed"],
            "sound-arrays": b"\1" + arrays.getvalue(),
            "sound-deflated": b"\3" + arrays.getvalue(),
        },
        "parquet": {f"sound-{name}": content[name] for name in ("lists", "wide", "bounds")},
        "lerobot": {"sound": b"\1" + lerobot, "sound-info": b"\0", "edits": bytes([0, 3, 3])},
        "minari": {"sound-hdf5": b"\1" + minari[0], "sound-metadata": b"\0" + minari[1]},
    }


def tables() -> dict[str, dict[str, bytes]]:
    """What a report is made from; the first byte names the reader in fuzz_tables.py."""
    sidecar = {"kind": "returns", "command": "x", "commit": "y", "hardware": "z", "seeds": [0]}
    misfit = {"value": 0.1, "low": 0.0, "high": 0.2}
    entry = {"name": "a", "action_dim": 2, "nce_misfit": misfit, "moment_misfit": misfit}
    rows = b'{"kind": "evaluation", "seed": 0, "frames": 5, "return": 1.0, "seconds": 1}\n'
    coverage = b"method,batch_size,dimension,bound,rank,effective\nfastr,8,8,8,8,8\n"
    ablation = b"method,parameters,multiply_adds_per_update,nce_dimension,return_mean\na,1,2,3,4\n"
    return {
        "tables": {
            "sound-curve": b"\0task,method,frames,seed,return\na,b,0,0,1.5\na,b,10,0,2.5\n",
            "sound-rows": b"\1" + rows,
            "sound-sidecar": b"\2" + json.dumps(sidecar).encode(),
            "sound-coverage": b"\3" + coverage,
            "sound-table": b"\3" + ablation,
            "sound-report": b"\4" + json.dumps({"datasets": [entry]}).encode(),
        }
    }


def main() -> None:
    """Write all of them."""
    for target, files in (texts() | runs() | datasets() | tables()).items():
        (SEEDS / target).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (SEEDS / target / name).write_bytes(content)


if __name__ == "__main__":
    main()
