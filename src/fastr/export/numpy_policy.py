"""Run a policy exported by `fastr export --format safetensors`: this file and NumPy are enough.

policy = load("policy.safetensors")
action, _ = policy.predict(observation)  # one or several, in the environment's own units
print(policy.check(observations))  # entries of a recording that do not look like training

The layout is in fastr's docs/export.md. Nothing in the file is executed.
"""

import json
import math
import struct

import numpy as np

LAYER_NORM_EPSILON = 1e-6


class Policy:
    """A deterministic policy: observations in, actions out."""

    def __init__(self, facts, arrays):
        self.facts = facts  # task, method, seed, frames, inputs and outputs, ...
        self.entries = sum(part["size"] for part in facts["observation"])
        self.steps = [  # looked up once, not for every observation
            (OPERATIONS[step["op"]], step["inputs"], [arrays[name] for name in step["arrays"]])
            for step in facts["steps"]
        ]
        self.outputs = [step["output"] for step in facts["steps"]]

    def predict(self, observation, state=None, episode_start=None, deterministic=True):  # noqa: ARG002, FBT002
        """The action, and None; as in Stable-Baselines3. Of a dict, the parts are taken by name."""
        action = self(flat(observation, self.facts["observation"]))
        return action.reshape(action.shape[:-1] + tuple(self.facts["action_shape"])), None

    def check(self, observations):
        """One line for each entry of a recording (100 steps, say) that is unlike training."""
        return unlike(flat(observations, self.facts["observation"]), self.facts)

    def __call__(self, observation, output="action"):
        """Actions in the environment's units, or in [-1, 1] if output="normalized_action"."""
        observation = np.asarray(observation, np.float32)
        # One number would do for all, by broadcasting.
        if observation.shape[-1:] != (self.entries,):
            raise ValueError(
                f"The observation's shape is {observation.shape}; it must be ({self.entries},), or "
                f"(n, {self.entries}) for several."
            )
        values = {"observation": observation}
        for (operation, inputs, arrays), name in zip(self.steps, self.outputs, strict=True):
            values[name] = operation(*[values[one] for one in inputs], *arrays)
        return values[output]


def flat(observation, parts):
    """The entries of an observation in order, from an array of them or from a dict by name."""
    if not isinstance(observation, dict):
        return np.asarray(observation, np.float32)
    if set(observation) != {part["name"] for part in parts}:
        wanted = ", ".join(part["name"] for part in parts)
        raise ValueError(f"The observation has {', '.join(observation)}; it must have {wanted}.")
    entries = []
    for part in parts:
        values = np.asarray(observation[part["name"]], np.float32)
        batch = values.shape[: values.ndim - len(part["shape"])]
        if values.shape[len(batch) :] != tuple(part["shape"]):
            raise ValueError(
                f"{part['name']} has shape {values.shape}; it must be {tuple(part['shape'])}, or "
                "(n, ...) for several."
            )
        entries.append(values.reshape(*batch, part["size"]))
    return np.concatenate(entries, -1)


def unlike(observations, facts, far=4.0):
    """One line for each entry that is far from training: in its mean, or in its spread.

    Far is in units of the entry's standard deviation in training. What is found may be in another
    unit or in another's place. Two entries that look alike can be exchanged without being found.
    """
    rows = np.asarray(observations, np.float64).reshape(-1, np.shape(observations)[-1])
    names = [
        part["name"] if part["size"] == 1 else f"{part['name']}[{i}]"
        for part in facts["observation"]
        for i in range(part["size"])
    ]
    if rows.shape[1] != len(names):
        raise ValueError(f"The observations have {rows.shape[1]} entries, not {len(names)}.")
    lines = []
    statistics = facts["statistics"]["mean"], facts["statistics"]["std"]
    for name, row, mean, std in zip(names, rows.T, *statistics, strict=True):
        usual = max(std, 1e-3)
        if abs(row.mean() - mean) > far * usual or row.std() > far * usual:
            here = f"{row.mean():.3g} +- {row.std():.3g}"
            lines.append(f"{name}: {here} here, {mean:.3g} +- {std:.3g} in training")
    return lines


def mean(x):
    """Over the last axis; in half the time of x.mean, which most of a policy's would go into."""
    return np.add.reduce(x, -1, keepdims=True) / np.float32(x.shape[-1])


def layer_norm(x, weight, bias):
    """Mean 0 and variance 1 over the last axis, then scale and bias."""
    centred = x - mean(x)
    variance = mean(np.square(centred))
    return centred / np.sqrt(variance + np.float32(LAYER_NORM_EPSILON)) * weight + bias


def average_l1(x):
    """The vector over the mean of its absolute values."""
    return x / np.maximum(mean(np.abs(x)), np.float32(1e-8))


OPERATIONS = {
    "standardize": lambda x, mean, std: (x - mean) / std,
    "linear": lambda x, weight, bias: x @ weight + bias,
    "layer_norm": layer_norm,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "average_l1": average_l1,
    "concatenate": lambda *parts: np.concatenate(parts, -1),
    "rescale": lambda x, centre, half, low, high: np.minimum(
        np.maximum(centre + half * x, low), high
    ),
}


def load(path):
    """The policy in a safetensors file."""
    with open(path, "rb") as file:
        return parsed(file.read())


def parsed(content):
    """The policy in a file's content: a length, a JSON header, then the arrays end to end."""
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    facts = json.loads(header.pop("__metadata__")["fastr_policy"])
    arrays = {}
    for name, entry in header.items():
        begin = 8 + length + entry["data_offsets"][0]
        flat = np.frombuffer(content, "<f4", math.prod(entry["shape"]), begin)
        arrays[name] = flat.reshape(entry["shape"])
    return Policy(facts, arrays)
