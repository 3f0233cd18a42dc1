"""A policy as a safetensors file: arrays by name, and the steps that use them as JSON."""

import json
from typing import Any

import numpy as np
from safetensors.numpy import save

from fastr.export.program import Program

METADATA = "fastr_policy"


def safetensors_bytes(program: Program, facts: dict[str, Any]) -> bytes:
    """The content of policy.safetensors."""
    steps = [step._asdict() for step in program.steps]
    arrays = {name: np.ascontiguousarray(array) for name, array in program.arrays.items()}
    return save(arrays, {METADATA: json.dumps(facts | {"steps": steps})})
