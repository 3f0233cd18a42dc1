"""Runs and files for the tests of fastr report, written as fastr train would have."""

import json

from fastr.training.config import METHODS, preset, to_json

HOSTILE = '<img src=x onerror="window.broken=1">=cmd()|$x$%&_../../../etc'
EVALUATIONS = tuple(range(0, 12_000, 1_000))


def write_run(path, task, method, seeds, value=100.0, evaluations=EVALUATIONS, **changes):
    """A run directory in which seed s ends at value + s, rising in a straight line."""
    known = method if method in METHODS else "td3"
    config = json.loads(json.dumps(to_json(preset(task, known, "paper"))))
    protocol = {"seeds": list(seeds), "eval_frames": 1_000, "frames": 11_000}
    train = config | protocol | {"method": method}
    provenance = {
        "command": ["fastr", "train", task],
        "commit": {"revision": "0123456789abcdef", "dirty": True},
        "devices": ["cpu"],
        "cores": 2,
    }
    rows = [
        {
            "kind": "evaluation",
            "seed": seed,
            "frames": frames,
            "seconds": frames / 100,
            "return": (value + seed) * frames / 11_000,
        }
        for seed in seeds
        for frames in evaluations
    ]
    path.mkdir(parents=True)
    record = {"train": train | changes, "provenance": provenance}
    (path / "config.json").write_text(json.dumps(record))
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def misfit_report(path, task):
    """What fastr misfit leaves, as far as a report reads it."""
    misfit = {"value": 0.1, "low": 0.05, "high": 0.2}
    entry = {"name": f"{task}-v0", "task": task, "action_dim": 6}
    path.mkdir(parents=True)
    datasets = [entry | {"nce_misfit": misfit, "moment_misfit": misfit}]
    (path / "report.json").write_text(json.dumps({"datasets": datasets}))


def grid_of_runs(path):
    """Two methods on a task, one of them once more under another name, and a hostile one."""
    write_run(path / "fastr", "walker-walk", "fastr", (0, 1), 600.0)
    write_run(path / "joint", "walker-walk", "ctrl-sr", (0, 1), 400.0)
    write_run(path / "odd", "walker-walk", HOSTILE, (0,), 300.0, EVALUATIONS[:6])
    write_run(path / "task", HOSTILE, "td3", (0,), 50.0)
    misfit_report(path / "misfit", "walker-walk")
    return path
