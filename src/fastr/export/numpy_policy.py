"""Run a policy exported by `fastr export --format safetensors`: this file and NumPy are enough.

policy = load("policy.safetensors")
action = policy(observation)  # in the environment's own units; (n, entries) works too

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
        self.arrays = arrays

    def __call__(self, observation, output="action"):
        """Actions in the environment's units, or in [-1, 1] if output="normalized_action"."""
        observation = np.asarray(observation, np.float32)
        entries = sum(part["size"] for part in self.facts["observation"])
        if observation.shape[-1:] != (entries,):  # one number would do for all, by broadcasting
            raise ValueError(
                f"The observation's shape is {observation.shape}; it must be ({entries},), or "
                f"(n, {entries}) for several."
            )
        values = {"observation": observation}
        for step in self.facts["steps"]:
            inputs = [values[name] for name in step["inputs"]]
            arrays = [self.arrays[name] for name in step["arrays"]]
            values[step["output"]] = OPERATIONS[step["op"]](*inputs, *arrays)
        return values[output]


def layer_norm(x, weight, bias):
    """Mean 0 and variance 1 over the last axis, then scale and bias."""
    centred = x - x.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(LAYER_NORM_EPSILON)) * weight + bias


def average_l1(x):
    """The vector over the mean of its absolute values."""
    return x / np.maximum(np.abs(x).mean(-1, keepdims=True), np.float32(1e-8))


OPERATIONS = {
    "standardize": lambda x, mean, std: (x - mean) / std,
    "linear": lambda x, weight, bias: x @ weight + bias,
    "layer_norm": layer_norm,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "average_l1": average_l1,
    "concatenate": lambda *parts: np.concatenate(parts, -1),
    "rescale": lambda x, centre, half, low, high: np.clip(centre + half * x, low, high),
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
