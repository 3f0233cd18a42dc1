"""A trained policy at work: loaded from its run, replayed, filmed."""

import contextlib
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path

import imageio_ffmpeg
import jax
import numpy as np

from fastr import envs
from fastr.arrays import saved_cohort
from fastr.checkpoints import Checkpoint
from fastr.config import TrainConfig
from fastr.learner import Learner
from fastr.policies import compiled, snapshots

PICTURES_PER_SECOND = 25


def trained_policies(config: TrainConfig, checkpoint: Checkpoint) -> list[list[np.ndarray]]:
    """The arrays of each seed's greedy policy at a checkpoint."""
    cohort, _ = saved_cohort(config, checkpoint)
    return snapshots(jax.vmap(Learner.policy)(cohort.learners), len(config.seeds))


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
