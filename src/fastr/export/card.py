"""MODEL_CARD.md: what the policy is, how good, for what, and how to call it."""

from typing import Any

from fastr.core import counted
from fastr.report.table import markdown

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
comes out. Each action is held for {frames}, i.e. steps of the simulator{seconds}.{shift}

Entries of `observation`, in order:

| entries | part | shape | unit |
|---|---|---|---|
{observation}

Entries of `action`, in order:

| entry | actuator | low | high | unit |
|---|---|---|---|---|
{action}

## Files

{files}

## Intended use

Research: reproducing, comparing and studying the policy in the simulator it was trained in. It has
seen nothing else. It was neither built nor tested for controlling physical machines, and says
nothing about observations unlike those of its training.
"""

FILES = {
    "contract.json": "names, order, shapes and ranges of what goes in and out",
    "policy.onnx": "the policy for any ONNX runtime (opset 17); facts of this card in its metadata",
    "policy.safetensors": "arrays, and in the header the steps that use them and these facts",
    "numpy_policy.py": "a loader for policy.safetensors that needs NumPy alone",
}


def model_card(facts: dict[str, Any], files: tuple[str, ...]) -> str:
    """The card of an exported policy."""
    shifted = "@" in facts["task"]
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
        f"| {i} | {markdown(entry['name'])} | {entry['low']:g} | {entry['high']:g} "
        f"| {unit(entry)} |"
        for i, entry in enumerate(facts["action"])
    )
    return TEMPLATE.format(
        title=f"{markdown(facts['task'])}, {markdown(facts['method'])}, seed {facts['seed']}",
        table="\n".join(f"| {name} | {markdown(value)} |" for name, value in origin.items()),
        returns="\n".join(return_lines(facts)),
        states=sum(part["size"] for part in facts["observation"]),
        actions=len(facts["action"]),
        frames=counted(facts["frame_skip"], "frame"),
        seconds=held(facts["action_seconds"]),
        shift=" The shift after the @\nin the task happens after the policy." if shifted else "",
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


def held(seconds: float | None) -> str:
    """How long an action is held, where the environment tells."""
    return "" if seconds is None else f"; {seconds:g} s"


def observation_row(part: dict[str, Any]) -> str:
    """One part of an observation."""
    first, last = part["first"], part["first"] + part["size"] - 1
    entries = str(first) if first == last else f"{first} to {last}"
    shape = " x ".join(map(str, part["shape"])) or "one number"
    place = entries if part["size"] else "none"
    return f"| {place} | {markdown(part['name'])} | {shape} | {unit(part)} |"


def unit(entry: dict[str, Any]) -> str:
    """The unit that the environment names, or that there is none."""
    return markdown(entry["unit"] or "not stated")
