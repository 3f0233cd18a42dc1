"""A greedy policy as a short list of steps over named arrays: what every exported file holds.

All methods' policies are made of nine operations. Writing them down once gives every file format
the same function, and lets a reader in any language be a loop over the steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from fastr.agents.base import AbstractPolicy
from fastr.envs import Bounds
from fastr.nn.activations import elu
from fastr.nn.networks import MLP, LayerNorm, Linear

OBSERVATION, NORMALIZED, ACTION = "observation", "normalized_action", "action"
ACTIVATIONS: dict[Callable, str] = {elu: "elu", jax.nn.relu: "relu"}


class Step(NamedTuple):
    """One operation on values and arrays that have names, and the name of its result."""

    op: str
    inputs: tuple[str, ...]
    arrays: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Program:
    """Steps from `observation` to `normalized_action` in [-1, 1] and `action` in real units."""

    steps: list[Step] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, policy: AbstractPolicy, bounds: Bounds) -> "Program":
        """The program of a policy on raw observations, for actuators with these bounds."""
        program = cls()
        value = policy.write(program, OBSERVATION, bounds.low.size)
        program.add("tanh", (value,), "", {}, output=NORMALIZED)
        program.add("rescale", (NORMALIZED,), "bounds", scaling(bounds), output=ACTION)
        return program

    def add(
        self,
        op: str,
        inputs: tuple[str, ...],
        name: str,
        arrays: dict[str, Any],
        output: str | None = None,
    ) -> str:
        """One more step, its arrays named under `name`; the name of its result."""
        named = {f"{name}.{key}": np.asarray(value, np.float32) for key, value in arrays.items()}
        self.arrays.update(named)
        output = output or f"value{len(self.steps)}"
        self.steps.append(Step(op, inputs, tuple(named), output))
        return output

    def mlp(self, net: MLP, value: str, name: str, outputs: int | None = None) -> str:
        """A network's output, or its first `outputs` entries."""
        for i, (layer, norm) in enumerate(zip(net.layers, net.norms, strict=False)):
            value = self.linear(layer, value, f"{name}.{i}")
            if norm is not None:
                value = self.layer_norm(norm, value, f"{name}.{i}.norm")
            value = self.add(ACTIVATIONS[net.activation], (value,), "", {})
        return self.linear(net.layers[-1], value, f"{name}.{len(net.layers) - 1}", outputs)

    def linear(self, layer: Linear, value: str, name: str, outputs: int | None = None) -> str:
        """x W + b, with W stored (inputs, outputs)."""
        parameters = {"weight": layer.weight[:, :outputs], "bias": layer.bias[:outputs]}
        return self.add("linear", (value,), name, parameters)

    def layer_norm(self, norm: LayerNorm, value: str, name: str) -> str:
        """Mean 0 and variance 1 over the entries, then scale and bias."""
        return self.add("layer_norm", (value,), name, {"weight": norm.weight, "bias": norm.bias})


def scaling(bounds: Bounds) -> dict[str, np.ndarray]:
    """How [-1, 1] maps onto the bounds, in float32 that never leaves them."""
    low, high = bounds.low.astype(np.float32), bounds.high.astype(np.float32)
    return {
        "centre": (bounds.low + bounds.high) / 2,
        "half": (bounds.high - bounds.low) / 2,
        "low": np.where(low < bounds.low, np.nextafter(low, np.float32(np.inf)), low),
        "high": np.where(high > bounds.high, np.nextafter(high, np.float32(-np.inf)), high),
    }
