"""Run directories without a training: NumPy weights, and statistics far from 0 and 1."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fastr.agents.spectral import SpectralConfig
from fastr.agents.td7 import TD7Config
from fastr.core import EnvSpec
from fastr.representations.interactions import BlockConfig
from fastr.representations.tree import TreeConfig
from fastr.runs.checkpoints import Snapshot
from fastr.runs.directory import RunWriter
from fastr.training.config import METHODS, preset, to_json
from fastr.training.learner import Cohort
from fastr.training.state import leaf_name

CAPACITY = 300
FRAMES = 4_000
SEEDS = (5, 7)
PENDULUM = EnvSpec(3, 1)
WIDE = 96
"""Wide enough for matrices that are not packed with the small parameters."""


def tiny_agent(method):
    """The method at sizes that cost nothing."""
    agent = METHODS[method]
    if isinstance(agent, TD7Config):
        return replace(agent, embedding_dim=WIDE, hidden_dim=8)
    if not isinstance(agent, SpectralConfig):
        return replace(agent, hidden_dim=WIDE)
    sizes = {"feature_dim": 12, "hidden_dim": 8, "blocks": 1, "fourier_dim": 8, "head_dim": 8}
    if isinstance(agent.representation, BlockConfig):
        sizes |= {"factor_dim": 6, "block_dim": 2}
    if isinstance(agent.representation, TreeConfig):
        sizes |= {"groups": "a=0-1;b=2|a=0"}
    return replace(agent, representation=replace(agent.representation, **sizes), actor_dim=WIDE)


def weights(shape, rng):
    """Packed small parameters, or a matrix per seed, that keep tanh in its curved part."""
    scale = 0.2 if len(shape) == 2 else shape[-2] ** -0.5
    return (scale * rng.normal(size=shape)).astype(np.float32)


def save_run(path, method="fastr", task="gym:Pendulum-v1", spec=PENDULUM, **changes):
    """A run at a checkpoint, as training would have left it; its configuration."""
    config = replace(preset(task, method, "laptop"), agent=tiny_agent(method), seeds=SEEDS)
    config = replace(config, **({"frame_skip": 1, "frames": FRAMES} | changes))
    shapes = jax.eval_shape(
        lambda seeds: Cohort.init(config.agent, spec, CAPACITY, seeds),
        jax.ShapeDtypeStruct((len(config.seeds),), jnp.int32),
    )
    rng = np.random.default_rng(0)

    def leaf(shape):
        floating = np.issubdtype(shape.dtype, np.floating) and len(shape.shape) > 1
        return weights(shape.shape, rng) if floating else np.zeros(shape.shape, shape.dtype)

    leaves, _ = jax.tree_util.tree_flatten_with_path(shapes)
    arrays = {leaf_name(place): leaf(shape) for place, shape in leaves}
    del arrays["learners.replay.rows"]
    count = len(config.seeds)
    arrays |= {
        "learners.moments.count": np.full(count, 50, np.int32),
        "learners.moments.mean": rng.normal(3, 5, (count, spec.state_dim)).astype(np.float32),
        "learners.moments.variance": rng.uniform(4, 1.8e3, (count, spec.state_dim)).astype("f"),
        "pending_rows": np.zeros((count, spec.row_dim), np.float32),
        "pending_states": np.zeros((count, spec.state_dim), np.float32),
    }
    nothing = np.zeros((0, count, spec.row_dim), np.float32)
    record = {"train": to_json(config), "provenance": PROVENANCE}
    with RunWriter.create(path, record) as writer:
        for seed, value in zip(config.seeds, (-900.0, -700.0), strict=False):
            writer.append({
                "kind": "evaluation", "seed": seed, "frames": FRAMES, "return": value,
                "seconds": 1.0,
            })  # fmt: skip
        writer.begin_save(Snapshot(FRAMES, arrays, {}, nothing, 0, CAPACITY), keep=1)
        writer.finish_save()
    return config


PROVENANCE = {
    "fastr": "0.1.0",
    "commit": {"revision": "0123abc", "dirty": True},
    "devices": ["cpu"],
    "cpu": "A <b>hostile</b> | processor",
}
