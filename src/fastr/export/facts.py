"""Everything a file says about the policy in it: where it comes from, what goes in and out."""

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import numpy as np

import fastr
from fastr import envs
from fastr.envs import shifts
from fastr.export.play import require_body
from fastr.runs.directory import RunDirectory
from fastr.runs.summary import number, summary
from fastr.training.trained import Trained

FORMAT = "fastr-policy"
VERSION = 1


def policy_facts(trained: Trained, directory: RunDirectory, licence: str) -> dict[str, Any]:
    """What is known without playing; every value is plain JSON."""
    config, name = trained.config, envs.parse(trained.config.task)
    gym = {"gymnasium_id": name.name} if isinstance(name, envs.GymTask) else {}
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "task": config.task,
        **gym,
        "frame_skip": config.frame_skip,
        "method": config.method,
        "seed": trained.seed,
        "frames": trained.frames,
        **origin(directory.config["provenance"]),
        "training_evaluation": training_evaluation(trained, directory),
        "license": licence,
        "exported": datetime.now(UTC).isoformat(timespec="seconds"),
        "exported_by": f"fastr {fastr.__version__}",
        **entries(trained),
    }


def origin(provenance: dict[str, Any]) -> dict[str, str]:
    """Commit and hardware of the training, as the run's record has them."""
    commit = provenance.get("commit")
    revision = "not recorded"
    if isinstance(commit, dict) and isinstance(commit.get("revision"), str):
        revision = commit["revision"] + (" with local changes" if commit.get("dirty") else "")
    devices = provenance.get("devices")
    kinds = sorted({str(kind) for kind in devices}) if isinstance(devices, list) else []
    parts = [*kinds, *([str(provenance["cpu"])] if provenance.get("cpu") else [])]
    return {
        "commit": revision,
        "trained_by": f"fastr {provenance.get('fastr', '(version not recorded)')}",
        "hardware": ", ".join(parts) or "not recorded",
    }


def training_evaluation(trained: Trained, directory: RunDirectory) -> dict[str, Any]:
    """The seed's last evaluation in training, and the mean over all seeds of the run."""
    # Those of this checkpoint and earlier ones.
    known = [row for row in directory.rows() if number(row.get("frames"))]
    rows = [row for row in known if row["frames"] <= trained.frames]
    result = summary(rows, trained.config.seeds)
    own = next(entry for entry in result["seeds"] if entry["seed"] == trained.seed)
    return {
        "frames": own["frames"],
        "episodes": trained.config.eval_episodes,
        "return_mean": own["last_evaluation_return"],
        "all_seeds": list(trained.config.seeds),
        "all_seeds_return_mean": result["last_evaluation_return_mean"],
    }


def entries(trained: Trained) -> dict[str, list[dict[str, Any]]]:
    """What observations and actions are made of, in order, by the simulator's own names."""
    config = trained.config
    # A shift stands between the policy and the actuators: the names behind it are the robot's.
    task, _ = shifts.split(config.task)
    with contextlib.closing(envs.load(task, config.frame_skip)) as environment:
        require_body(trained, task, environment.spec)
        return {"observation": parts_of(environment), "action": actuators_of(environment)}


def parts_of(environment: envs.Environment) -> list[dict[str, Any]]:
    """The parts of an observation."""
    ends = np.cumsum([part.size for part in environment.parts]).tolist()
    return [
        {"name": part.name, "first": end - part.size, "size": part.size}
        for part, end in zip(environment.parts, ends, strict=True)
    ]


def actuators_of(environment: envs.Environment) -> list[dict[str, Any]]:
    """The actuators with their bounds."""
    size, robot = environment.spec.action_dim, environment.robot()
    names = [f"actuator {i}" for i in range(size)]
    if robot is not None and robot.model.nu == size:
        names = [robot.model.actuator(i).name or names[i] for i in range(size)]
    return [
        {"name": name, "low": float(low), "high": float(high)}
        for name, low, high in zip(names, *environment.bounds, strict=True)
    ]


def action_bounds(facts: dict[str, Any]) -> envs.Bounds:
    """The bounds of all actuators."""
    low, high = ([entry[end] for entry in facts["action"]] for end in ("low", "high"))
    return envs.Bounds(np.array(low), np.array(high))


def returns_facts(returns: np.ndarray, seed: int, episodes: range) -> dict[str, Any]:
    """Greedy episodes: their returns, and the numbers the simulator was reset with."""
    return {
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "returns": [round(float(value), 4) for value in returns],
        "reset_seeds": [envs.episode_seed(seed, i, "evaluate") for i in episodes],
    }


def text_values(facts: dict[str, Any]) -> dict[str, str]:
    """Facts as strings: text as it is, everything else as JSON."""
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()
    }
