"""Whether an exported file gives the actions of the policy it was made from."""

import contextlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Float64

from fastr import envs
from fastr.core import RunError, UserError
from fastr.export.numpy_policy import parsed
from fastr.training.trained import Trained

TOLERANCE = 1e-5
"""That any two ways of computing the same actions may differ by, in [-1, 1]."""
ROUNDINGS = 4
"""And as many times the policy's own rounding error, where that is more: the paper's actors,
trained for long, come to 1e-5 by themselves."""
MOST = 1e-3
"""Whatever the policy rounds: beyond this a file is another policy."""
STEPS = 100
"""Of one episode, whose states the two are compared in."""
Act = Callable[[Float32[np.ndarray, "batch state"]], np.ndarray]


def require_onnx() -> None:
    """Raise UserError unless the packages that ONNX needs are here."""
    if missing := [n for n in ("onnx", "onnxruntime") if importlib.util.find_spec(n) is None]:
        raise UserError(
            f"--format onnx needs {' and '.join(missing)}: pip install onnx onnxruntime, or choose "
            "--format safetensors."
        )


def onnx_actions(content: bytes) -> Act:
    """What an ONNX file does, in [-1, 1], by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda states: np.asarray(session.run(["normalized_action"], {"observation": states})[0])


def safetensors_actions(content: bytes) -> Act:
    """What a safetensors file does, in [-1, 1], by the loader that goes with it."""
    policy = parsed(content)
    return lambda states: policy(states, "normalized_action")


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


def exact_actions(
    trained: Trained, states: Float32[np.ndarray, "batch state"]
) -> Float64[np.ndarray, "batch action"]:
    """What the policy would do if nothing were rounded to float32."""
    with jax.enable_x64(new_val=True):
        policy = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), trained.policy)
        return np.asarray(jax.jit(jax.vmap(policy))(jnp.asarray(states, jnp.float64)))


def check_agreement(
    act: Act, trained: Trained, states: Float32[np.ndarray, "batch state"], file: Path
) -> float:
    """The largest difference in any action entry; RunError if it is more than rounding."""
    actions = trained.act(states)
    rounding = float(np.max(np.abs(actions - exact_actions(trained, states))))
    allowed = min(max(TOLERANCE, ROUNDINGS * rounding), MOST)
    difference = float(np.max(np.abs(act(states) - actions)))
    if not difference <= allowed:
        raise RunError(
            f"{file.name} is not written: its actions differ from the policy's by "
            f"{difference:.2g}, more than {allowed:.2g}. Please report this."
        )
    return difference
