"""A trained policy at work: loaded from its run, replayed, filmed."""

import contextlib
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path

import imageio_ffmpeg
import jax
import jax.numpy as jnp
import numpy as np

from fastr import envs
from fastr.checkpoints import Checkpoint
from fastr.config import TrainConfig
from fastr.errors import UserError
from fastr.learner import Cohort, Engine
from fastr.policies import compiled, snapshots
from fastr.spec import EnvSpec
from fastr.train import REPLAY, leaf_name

PICTURES_PER_SECOND = 25


def trained_policies(config: TrainConfig, checkpoint: Checkpoint) -> list[list[np.ndarray]]:
    """The arrays of each seed's greedy policy at a checkpoint."""
    engine, cohort = trained_cohort(config, checkpoint)
    return snapshots(engine.policies(cohort), len(config.seeds))


def trained_cohort(config: TrainConfig, checkpoint: Checkpoint) -> tuple[Engine, Cohort]:
    """All seeds as a checkpoint has them, with an empty replay; and their programs."""
    arrays = checkpoint.arrays()
    spec = saved_spec(arrays)
    engine = Engine(config.agent, spec, config.seeds, capacity=1, random_steps=0)
    shapes = jax.eval_shape(engine.init)
    cohort: Cohort = jax.tree_util.tree_map_with_path(
        lambda path, leaf: _array(arrays, leaf_name(path), leaf), shapes
    )
    return engine, cohort


def saved_spec(arrays: dict[str, np.ndarray]) -> EnvSpec:
    """The environment's sizes as the run saw them; no simulator is loaded to ask."""
    rows, states = arrays.get("pending_rows"), arrays.get("pending_states")
    if rows is None or states is None or rows.ndim != 2 or states.ndim != 2:
        raise UserError("The checkpoint does not hold the state of a training run.")
    state_dim = states.shape[1]
    action_dim = rows.shape[1] - 2 * state_dim - 2
    if state_dim < 1 or action_dim < 1:
        raise UserError("The checkpoint's transitions do not fit its states.")
    return EnvSpec(state_dim, action_dim)


def _array(
    arrays: dict[str, np.ndarray], name: str, leaf: jax.ShapeDtypeStruct
) -> jax.Array | np.ndarray:
    """The saved array of this name; the replay, which policies do not need, stays empty."""
    if name == REPLAY:
        return jnp.zeros(leaf.shape, leaf.dtype)
    if name not in arrays or arrays[name].shape != leaf.shape:
        raise UserError(f"The checkpoint's {name} does not fit this run's configuration.")
    return arrays[name]


def film(
    config: TrainConfig, leaves: Sequence[np.ndarray], seed: int, path: Path, size: tuple[int, int]
) -> float:
    """Write one greedy episode as a video, a picture per agent step; the episode's return."""
    height, width = size
    environment = envs.load(config.task, config.frame_skip, render_mode="rgb_array")
    act = compiled(config.agent, environment.spec)
    state = environment.reset(envs.episode_seed(seed, 0, "evaluate"))
    total, over = 0.0, False
    with contextlib.closing(environment), contextlib.closing(video(path, width, height)) as film:
        while not over:
            film.send(np.ascontiguousarray(environment.frame(height, width)))
            step = environment.step(np.asarray(act(leaves, state)))
            state, over = step.next_state, step.terminated or step.truncated
            total += step.reward
    return total


def video(path: Path, width: int, height: int) -> Generator[None, np.ndarray, None]:
    """An open video file that takes pictures by `send`."""
    writer = imageio_ffmpeg.write_frames(
        path, (width, height), fps=PICTURES_PER_SECOND, macro_block_size=2, quality=7
    )
    with warnings.catch_warnings():
        # Python warns of any fork beside JAX's threads; this one starts another program at once.
        warnings.filterwarnings("ignore", message=r"os\.fork", category=RuntimeWarning)
        writer.send(None)
    return writer
