"""A trained policy as a file: its facts, its content, and the check that both act alike."""

import contextlib
import importlib.util
import json
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Float64

import fastr
from fastr import envs
from fastr.core import RunError, UserError, write_errors
from fastr.envs import shifts
from fastr.export.card import model_card
from fastr.export.numpy_policy import parsed
from fastr.export.play import greedy_returns, require_body, unseen_episodes
from fastr.export.program import (
    NORMALIZED,
    OBSERVATION,
    Program,
    onnx_bytes,
    safetensors_bytes,
)
from fastr.runs import made, refuse_used
from fastr.runs.contract import CONTRACT, Contract
from fastr.runs.directory import RunDirectory
from fastr.runs.summary import summary
from fastr.runs.untrusted import number
from fastr.training.trained import Trained

Format = Literal["onnx", "safetensors"]
Act = Callable[[Float32[np.ndarray, "batch state"]], np.ndarray]
CARD = "MODEL_CARD.md"
LOADER = "numpy_policy.py"

TOLERANCE = 1e-5
"""Allowed difference between two ways of computing the same actions, in [-1, 1]."""
ROUNDINGS = 4
"""The same as a multiple of the policy's own rounding error, where that is more: the paper's
actors, trained for long, round to 1e-5 by themselves."""
MOST = 1e-3
"""A difference beyond this is another policy, however much it rounds."""
STEPS = 100
"""Length of the episode whose states the two are compared in."""


# The file and what it does


def require_onnx() -> None:
    """Raise UserError unless the packages that ONNX needs are installed."""
    if missing := [n for n in ("onnx", "onnxruntime") if importlib.util.find_spec(n) is None]:
        raise UserError(
            f"--format onnx needs {' and '.join(missing)}: pip install onnx onnxruntime, or choose "
            "--format safetensors."
        )


def built(trained: Trained, facts: dict[str, Any], kind: Format) -> tuple[bytes, Act]:
    """The content of policy.onnx or policy.safetensors, and the actions it gives, in [-1, 1]."""
    low, high = (np.array([entry[end] for entry in facts["action"]]) for end in ("low", "high"))
    program = Program.of(trained.policy, envs.Bounds(low, high))
    if kind == "safetensors":
        content = safetensors_bytes(program, facts)
        policy = parsed(content)
        return content, lambda states: policy(states, NORMALIZED)
    import onnxruntime

    content = onnx_bytes(program, trained.spec, facts)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda states: np.asarray(session.run([NORMALIZED], {OBSERVATION: states})[0])


def write(out: Path, kind: Format, content: bytes, facts: dict[str, Any]) -> None:
    """The policy, its loader where it needs one, and the card; all of them or none."""
    contents = {f"policy.{kind}": content}
    if kind == "safetensors":
        contents[LOADER] = (files("fastr.export") / LOADER).read_bytes()
    names = [field.name for field in fields(Contract)]
    agreed = {name: facts[name] for name in (*names, "statistics")}
    contents[CONTRACT] = json.dumps(agreed, indent=1).encode()
    contents[CARD] = model_card(facts, tuple(contents)).encode()
    try:
        with write_errors(out):
            for name, data in contents.items():
                (out / name).write_bytes(data)
    except UserError:
        for name in contents:
            (out / name).unlink(missing_ok=True)
        raise


# Agreement with the policy in JAX


def visited_states(trained: Trained) -> Float32[np.ndarray, "batch state"]:
    """The first states of a greedy episode; without an environment, states like the log's."""
    config = trained.config
    if not config.task:
        noise = np.random.default_rng(0).standard_normal((STEPS, trained.spec.state_dim))
        return (trained.mean + trained.std * noise).astype(np.float32)
    with contextlib.closing(envs.load(config.task, config.frame_skip)) as environment:
        states = [environment.reset(envs.episode_seed(trained.seed, 0, "evaluate"))]
        for _ in range(STEPS - 1):
            step = environment.step(trained.act(states[-1]))
            if step.terminated or step.truncated:
                break
            states.append(step.next_state)
    return np.stack(states)


def exact_actions(
    trained: Trained, states: Float32[np.ndarray, "batch state"]
) -> Float64[np.ndarray, "batch action"]:
    """The policy's actions without rounding to float32."""
    with jax.enable_x64(new_val=True):
        policy = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), trained.policy)
        return np.asarray(jax.jit(jax.vmap(policy))(jnp.asarray(states, jnp.float64)))


def check_agreement(
    act: Act, trained: Trained, states: Float32[np.ndarray, "batch state"], name: str
) -> float:
    """The largest difference in any action entry; RunError if it is more than rounding."""
    actions = trained.act(states)
    rounding = float(np.max(np.abs(actions - exact_actions(trained, states))))
    allowed = min(max(TOLERANCE, ROUNDINGS * rounding), MOST)
    difference = float(np.max(np.abs(act(states) - actions)))
    if not difference <= allowed:
        raise RunError(
            f"{name} is not written: its actions differ from the policy's by {difference:.2g}, "
            f"more than {allowed:.2g}. Please report this."
        )
    return difference


# Facts: where a policy comes from, what goes in and out


def write_policy(
    trained: Trained,
    directory: RunDirectory,
    out: Path,
    kind: Format,
    *,
    licence: str = "not stated",
    episodes: int = 0,
) -> tuple[dict[str, Any], float]:
    """Write a policy into a new folder, its return over new episodes in the card.

    Its facts, and the largest difference of its actions from the policy's in JAX.
    """
    if kind == "onnx":
        require_onnx()
    refuse_used(out)
    facts = policy_facts(trained, directory, licence)
    content, act = built(trained, facts, kind)
    difference = check_agreement(act, trained, visited_states(trained), f"policy.{kind}")
    # Made before episodes are played for a policy that could then not be written.
    with made(out):
        if episodes:
            unseen = unseen_episodes(trained, episodes)
            returns = greedy_returns([trained], trained.config.task, unseen)
            facts["evaluation"] = returns_facts(returns[0], trained.seed, unseen)
            content, _ = built(trained, facts, kind)
        write(out, kind, content, facts)
    return facts, difference


def policy_facts(trained: Trained, directory: RunDirectory, licence: str) -> dict[str, Any]:
    """What is known of a policy without playing; every value is plain JSON."""
    config = trained.config
    name = envs.parse(config.task) if config.task else None
    gym = {"gymnasium_id": name.name} if isinstance(name, envs.GymTask) else {}
    return {
        "format": "fastr-policy",
        "format_version": 1,
        "task": config.title,
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
        **contract(trained, directory).to_json(),
        "statistics": statistics(trained),
    }


def origin(provenance: dict[str, Any]) -> dict[str, str]:
    """Commit and hardware of the training, from the run's record, which may hold anything."""
    commit, devices = provenance.get("commit"), provenance.get("devices")
    revision = "not recorded"
    if isinstance(commit, dict) and isinstance(commit.get("revision"), str):
        revision = commit["revision"] + (" with local changes" if commit.get("dirty") else "")
    parts = sorted({str(kind) for kind in devices}) if isinstance(devices, list) else []
    if cpu := provenance.get("cpu"):
        parts.append(str(cpu))
    return {
        "commit": revision,
        "trained_by": f"fastr {provenance.get('fastr', '(version not recorded)')}",
        "hardware": ", ".join(parts) or "not recorded",
    }


def training_evaluation(trained: Trained, directory: RunDirectory) -> dict[str, Any]:
    """The seed's last evaluation up to its checkpoint, and the mean over all seeds of the run."""
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


def returns_facts(returns: np.ndarray, seed: int, episodes: range) -> dict[str, Any]:
    """Greedy episodes: their returns, and the numbers the simulator was reset with."""
    return {
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "returns": [round(float(value), 4) for value in returns],
        "reset_seeds": [envs.episode_seed(seed, i, "evaluate") for i in episodes],
    }


def contract(trained: Trained, directory: RunDirectory) -> Contract:
    """What the policy is fed and returns, by the simulator's own names, if there is one."""
    config = trained.config
    if not config.task:
        return Contract.read(directory.path / CONTRACT)
    # An actuator shift happens between the policy and the robot: the names are the robot's.
    task, _ = shifts.split(config.task)
    with contextlib.closing(envs.load(task, config.frame_skip)) as environment:
        require_body(trained, task, environment.spec)
        return Contract.of(environment, config.frame_skip)


def statistics(trained: Trained) -> dict[str, list[float]]:
    """Mean and standard deviation of every observation entry during training."""
    return {"mean": trained.mean.tolist(), "std": trained.std.tolist()}
