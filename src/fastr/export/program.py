"""A greedy policy as a short list of steps over named arrays, and its two file formats.

All methods' policies consist of nine operations. Writing them down once gives every file format
the same function, and lets a reader in any language be a loop over the steps. The ONNX graph is
built node by node rather than traced from JAX: nine operations need no converter.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors.numpy import save

import fastr
from fastr.agents.base import AbstractPolicy
from fastr.core import EnvSpec
from fastr.envs import Bounds
from fastr.nn.activations import LAYER_NORM_EPSILON, elu
from fastr.nn.networks import MLP, LayerNorm, Linear

OBSERVATION, NORMALIZED, ACTION = "observation", "normalized_action", "action"
ACTIVATIONS: dict[Callable, str] = {elu: "elu", jax.nn.relu: "relu"}
OPSET = 17
"""The oldest that has LayerNormalization: it runs nearly everywhere."""
IR_VERSION = 8
"""The file format that came with this opset: older runtimes read it too."""
TINY = "average_l1.floor"
NODES: dict[str, list[tuple]] = {
    "linear": [("Gemm", "all", "", {})],
    "layer_norm": [("LayerNormalization", "all", "", {"axis": -1, "epsilon": LAYER_NORM_EPSILON})],
    "elu": [("Elu", "all", "", {})],
    "relu": [("Relu", "all", "", {})],
    "tanh": [("Tanh", "all", "", {})],
    "concatenate": [("Concat", "all", "", {"axis": -1})],
    "standardize": [("Sub", (0, 1), "centred", {}), ("Div", ("centred", 2), "", {})],
    "average_l1": [
        ("Abs", "all", "size", {}),
        ("ReduceMean", ("size",), "mean", {"axes": [-1], "keepdims": 1}),
        ("Max", ("mean", TINY), "floored", {}),
        ("Div", (0, "floored"), "", {}),
    ],
    "rescale": [
        ("Mul", (0, 2), "scaled", {}),
        ("Add", ("scaled", 1), "shifted", {}),
        ("Max", ("shifted", 3), "raised", {}),
        ("Min", ("raised", 4), "", {}),
    ],
}
"""Each step in ONNX: operation, inputs (the step's own by number), result, attributes."""


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
        self, op: str, inputs: tuple[str, ...], name: str, arrays: dict[str, Any], output: str = ""
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


def safetensors_bytes(program: Program, facts: dict[str, Any]) -> bytes:
    """Arrays by name, and in the header the steps that use them and the facts, as JSON."""
    steps = [step._asdict() for step in program.steps]
    arrays = {name: np.ascontiguousarray(array) for name, array in program.arrays.items()}
    return save(arrays, {"fastr_policy": json.dumps(facts | {"steps": steps})})


def onnx_bytes(program: Program, spec: EnvSpec, facts: dict[str, Any]) -> bytes:
    """The content of policy.onnx, checked: float32, any number of observations at once."""
    import onnx
    from onnx import helper

    def vector(name: str, size: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", size])

    arrays = dict(program.arrays)
    if any(step.op == "average_l1" for step in program.steps):
        arrays[TINY] = np.asarray(1e-8, np.float32)
    graph = helper.make_graph(
        [
            helper.make_node(kind, inputs, [output], **attributes)
            for step in program.steps
            for kind, inputs, output, attributes in nodes(step)
        ],
        "policy",
        [vector(OBSERVATION, spec.state_dim)],
        [vector(ACTION, spec.action_dim), vector(NORMALIZED, spec.action_dim)],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in arrays.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="fastr",
        producer_version=fastr.__version__,
    )
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
    helper.set_model_props(model, texts)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def nodes(step: Step) -> Iterator[tuple[str, list[str], str, dict[str, Any]]]:
    """The ONNX operations of one step, each with its inputs, output and attributes."""
    values = [*step.inputs, *step.arrays]
    names = {TINY: TINY, "": step.output}
    for kind, inputs, result, attributes in NODES[step.op]:
        chosen = range(len(values)) if inputs == "all" else inputs
        taken = [values[i] if isinstance(i, int) else names[i] for i in chosen]
        names.setdefault(result, f"{step.output}.{result}")
        yield kind, taken, names[result], attributes
