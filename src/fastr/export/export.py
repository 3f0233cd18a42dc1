"""A trained policy as a file: its facts, its content, the check that both act alike, its card."""

import contextlib
import importlib.util
import re
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32

import fastr
from fastr import envs
from fastr.core import RunError, UserError, counted, write_errors
from fastr.envs import shifts
from fastr.export.numpy_policy import parsed
from fastr.export.play import require_body
from fastr.export.program import NORMALIZED, OBSERVATION, Program, onnx_bytes, safetensors_bytes
from fastr.report.reading import run_origin
from fastr.runs.directory import RunDirectory
from fastr.runs.summary import number, summary
from fastr.training.trained import Trained

Format = Literal["onnx", "safetensors"]
Act = Callable[[Float32[np.ndarray, "batch state"]], np.ndarray]
CARD = "MODEL_CARD.md"
LOADER = "numpy_policy.py"

TOLERANCE = 1e-3
"""Allowed difference between two ways of computing the same actions, in [-1, 1]: rounding of
float32 stays far below it, 1e-5 for the paper's actors after a long training."""
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
    """Write the policy, its loader if it needs one, and the card."""
    contents = {f"policy.{kind}": content}
    if kind == "safetensors":
        contents[LOADER] = (files("fastr.export") / LOADER).read_bytes()
    contents[CARD] = model_card(facts, tuple(contents)).encode()
    with write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            (out / name).write_bytes(data)


# Agreement with the policy in JAX


def visited_states(trained: Trained) -> Float32[np.ndarray, "batch state"]:
    """The first states of a greedy episode."""
    config = trained.config
    with contextlib.closing(envs.load(config.task, config.frame_skip)) as environment:
        states = [environment.reset(envs.episode_seed(trained.seed, 0, "evaluate"))]
        for _ in range(STEPS - 1):
            step = environment.step(trained.act(states[-1]))
            if step.terminated or step.truncated:
                break
            states.append(step.next_state)
    return np.stack(states)


def check_agreement(
    act: Act, trained: Trained, states: Float32[np.ndarray, "batch state"], name: str
) -> float:
    """The largest difference in any action entry; RunError if it is more than rounding."""
    difference = float(np.max(np.abs(act(states) - trained.act(states))))
    if not difference <= TOLERANCE:
        raise RunError(
            f"{name} is not written: its actions differ from the policy's by {difference:.2g}. "
            "Please report this."
        )
    return difference


# Facts: where a policy comes from, what goes in and out


def policy_facts(trained: Trained, directory: RunDirectory, licence: str) -> dict[str, Any]:
    """What is known of a policy without playing; every value is plain JSON."""
    config, name = trained.config, envs.parse(trained.config.task)
    provenance = directory.config["provenance"]
    origin = run_origin(directory.path, provenance)
    gym = {"gymnasium_id": name.name} if isinstance(name, envs.GymTask) else {}
    return {
        "format": "fastr-policy",
        "format_version": 1,
        "task": config.task,
        **gym,
        "frame_skip": config.frame_skip,
        "method": config.method,
        "seed": trained.seed,
        "frames": trained.frames,
        "commit": origin.commit or "not recorded",
        "trained_by": f"fastr {provenance.get('fastr', '(version not recorded)')}",
        "hardware": origin.hardware or "not recorded",
        "training_evaluation": training_evaluation(trained, directory),
        "license": licence,
        "exported": datetime.now(UTC).isoformat(timespec="seconds"),
        "exported_by": f"fastr {fastr.__version__}",
        **entries(trained),
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


def entries(trained: Trained) -> dict[str, list[dict[str, Any]]]:
    """The entries of observations and actions in order, by the simulator's own names."""
    config = trained.config
    # An actuator shift happens between the policy and the robot: the names are the robot's.
    task, _ = shifts.split(config.task)
    with contextlib.closing(envs.load(task, config.frame_skip)) as environment:
        require_body(trained, task, environment.spec)
        ends = np.cumsum([part.size for part in environment.parts]).tolist()
        size, robot = environment.spec.action_dim, environment.robot()
        names = [f"actuator {i}" for i in range(size)]
        if robot is not None and robot.model.nu == size:
            names = [robot.model.actuator(i).name or names[i] for i in range(size)]
        return {
            "observation": [
                {"name": part.name, "first": end - part.size, "size": part.size}
                for part, end in zip(environment.parts, ends, strict=True)
            ],
            "action": [
                {"name": name, "low": float(low), "high": float(high)}
                for name, low, high in zip(names, *environment.bounds, strict=True)
            ],
        }


# The model card


SPECIAL = re.compile(r"([\\`*\[\]<>|~&$]|(?<!\w)_|_(?!\w))")

TEMPLATE = """\
# {title}

A deterministic control policy, exported from a training run of fastr (factorized spectral
representations for reinforcement learning).

| | |
|---|---|
{table}

## Return

{returns}

The return is the undiscounted sum of rewards of one episode under the greedy policy.

## Input and output

| name | type | shape | what |
|---|---|---|---|
| `observation` | float32 | (batch, {states}) | raw observations, in the simulator's own units |
| `action` | float32 | (batch, {actions}) | commands in the actuators' own units and bounds |
| `normalized_action` | float32 | (batch, {actions}) | the same before scaling, in [-1, 1] |

Observation statistics and action scaling are inside: feed what the simulator gives, apply what
comes out. Each action is held for {frames}, i.e. steps of the simulator. A shift after
an @ in the task's name belongs to the robot: it happens after the policy.

Entries of `observation`, in order:

| entries | part |
|---|---|
{observation}

Entries of `action`, in order:

| entry | actuator | low | high |
|---|---|---|---|
{action}

## Files

{files}

## Intended use

Research: reproducing, comparing and studying the policy in the simulator it was trained in. It has
seen nothing else. It was neither built nor tested for controlling physical machines, and says
nothing about observations unlike those of its training.
"""

FILES = {
    "policy.onnx": "the policy for any ONNX runtime (opset 17); facts of this card in its metadata",
    "policy.safetensors": "arrays, and in the header the steps that use them and these facts",
    "numpy_policy.py": "a loader for policy.safetensors that needs NumPy alone",
}


def model_card(facts: dict[str, Any], files: tuple[str, ...]) -> str:
    """The card of an exported policy."""
    origin = {
        "task": facts["task"],
        "method": facts["method"],
        "seed": facts["seed"],
        "trained for": f"{counted(facts['frames'], 'frame')} (simulator steps, not agent steps)",
        "trained by": f"{facts['trained_by']}, commit {facts['commit']}",
        "hardware of the training": facts["hardware"],
        "exported": f"{facts['exported']} by {facts['exported_by']}",
        "licence": facts["license"],
    }
    actuators = (
        f"| {i} | {plain(entry['name'])} | {entry['low']:g} | {entry['high']:g} |"
        for i, entry in enumerate(facts["action"])
    )
    return TEMPLATE.format(
        title=f"{plain(facts['task'])}, {plain(facts['method'])}, seed {facts['seed']}",
        table="\n".join(f"| {name} | {plain(value)} |" for name, value in origin.items()),
        returns="\n".join(return_lines(facts)),
        states=sum(part["size"] for part in facts["observation"]),
        actions=len(facts["action"]),
        frames=counted(facts["frame_skip"], "frame"),
        observation="\n".join(map(observation_row, facts["observation"])),
        action="\n".join(actuators),
        files="\n".join(f"- `{name}`: {FILES[name]}" for name in files),
    )


def return_lines(facts: dict[str, Any]) -> list[str]:
    """Measured returns, each with its episodes and seeds."""
    lines = []
    if "evaluation" in facts:
        played = facts["evaluation"]
        seeds = ", ".join(map(str, played["reset_seeds"]))
        lines.append(
            f"- This policy: mean {played['return_mean']:.1f}, standard deviation "
            f"{played['return_std']:.1f} over {counted(len(played['returns']), 'episode')}, played "
            f"at export with the JAX policy that the file was made from. The simulator was reset "
            f"with the seeds {seeds}."
        )
    trained = facts["training_evaluation"]
    if trained["return_mean"] is not None:
        seeds = ", ".join(map(str, trained["all_seeds"]))
        lines.append(
            f"- Last evaluation in training, at {counted(trained['frames'], 'frame')}: mean "
            f"{trained['return_mean']:.1f} over {counted(trained['episodes'], 'episode')} for this "
            f"seed; {trained['all_seeds_return_mean']:.1f} over the run's training seeds {seeds}."
        )
    return lines or ["Not measured."]


def observation_row(part: dict[str, Any]) -> str:
    """One part of an observation."""
    first, last = part["first"], part["first"] + part["size"] - 1
    entries = str(first) if first == last else f"{first} to {last}"
    return f"| {entries} | {plain(part['name'])} |"


def plain(value: object) -> str:
    """Text on one line, escaped for Markdown: names come from simulators and run files."""
    return SPECIAL.sub(r"\\\1", " ".join(str(value).split()))
