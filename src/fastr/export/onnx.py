"""A policy as an ONNX file: float32, opset 17, any number of observations at once.

The graph is built node by node rather than traced from JAX: nine operations need no converter, and
the oldest opset that has LayerNormalization runs nearly everywhere.
"""

import json
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fastr
from fastr.core import EnvSpec
from fastr.export.program import ACTION, NORMALIZED, OBSERVATION, Program, Step
from fastr.nn.activations import LAYER_NORM_EPSILON

OPSET = 17
IR_VERSION = 8
"""The file format that came with this opset: older runtimes read it too."""
TINY = "average_l1.floor"


def onnx_bytes(program: Program, spec: EnvSpec, facts: dict[str, Any]) -> bytes:
    """The content of policy.onnx, checked."""
    arrays = dict(program.arrays)
    if any(step.op == "average_l1" for step in program.steps):
        arrays[TINY] = np.asarray(1e-8, np.float32)
    graph = helper.make_graph(
        [node for step in program.steps for node in nodes(step)],
        "policy",
        [vector(OBSERVATION, spec.state_dim)],
        [vector(ACTION, spec.action_dim), vector(NORMALIZED, spec.action_dim)],
        [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in arrays.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="fastr",
        producer_version=fastr.__version__,
    )
    helper.set_model_props(
        model, {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def vector(name: str, size: int) -> onnx.ValueInfoProto:
    """A batch of vectors of this size."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])


def nodes(step: Step) -> list[onnx.NodeProto]:
    """The ONNX operations of one step."""
    values, output = [*step.inputs, *step.arrays], step.output
    single = {
        "linear": ("Gemm", {}),
        "layer_norm": ("LayerNormalization", {"axis": -1, "epsilon": LAYER_NORM_EPSILON}),
        "elu": ("Elu", {}),
        "relu": ("Relu", {}),
        "tanh": ("Tanh", {}),
        "concatenate": ("Concat", {"axis": -1}),
    }
    if step.op in single:
        kind, attributes = single[step.op]
        return [helper.make_node(kind, values, [output], **attributes)]
    return {"standardize": standardize, "average_l1": average_l1, "rescale": rescale}[step.op](
        values, output
    )


def standardize(values: list[str], output: str) -> list[onnx.NodeProto]:
    """(x - mean) / std."""
    x, mean, std = values
    return [
        helper.make_node("Sub", [x, mean], [f"{output}.centred"]),
        helper.make_node("Div", [f"{output}.centred", std], [output]),
    ]


def average_l1(values: list[str], output: str) -> list[onnx.NodeProto]:
    """x / max(mean |x|, 1e-8)."""
    size, mean, floored = (f"{output}.{part}" for part in ("size", "mean", "floored"))
    return [
        helper.make_node("Abs", values, [size]),
        helper.make_node("ReduceMean", [size], [mean], axes=[-1], keepdims=1),
        helper.make_node("Max", [mean, TINY], [floored]),
        helper.make_node("Div", [*values, floored], [output]),
    ]


def rescale(values: list[str], output: str) -> list[onnx.NodeProto]:
    """centre + half x, within the bounds."""
    x, centre, half, low, high = values
    scaled, shifted, raised = (f"{output}.{part}" for part in ("scaled", "shifted", "raised"))
    return [
        helper.make_node("Mul", [x, half], [scaled]),
        helper.make_node("Add", [scaled, centre], [shifted]),
        helper.make_node("Max", [shifted, low], [raised]),
        helper.make_node("Min", [raised, high], [output]),
    ]
