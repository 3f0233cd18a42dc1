"""All seeds of a run as named arrays, and back; what a new run inherits from an old one."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastr.agents.spectral import SpectralConfig
from fastr.core import EnvSpec, UserError, option
from fastr.runs.checkpoints import Checkpoint
from fastr.runs.directory import RunDirectory
from fastr.training.config import TrainConfig, from_json
from fastr.training.learner import Cohort, Learner

REPLAY = "learners.replay.rows"
LEARNED = "learners.agent."
"""What the names of parameters and of their optimisers' moments begin with."""
NOT_KEPT = ("noise_levels", "reward_weight", "fourier_dim", "head_dim", "precision")
"""Settings of a representation that a kept encoder does not depend on."""


def leaf_name(path: tuple) -> str:
    """A dotted path, as in learners.agent.critics.parameters."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def named_leaves(cohort: Cohort) -> dict[str, jax.Array]:
    """Every array of the cohort under its dotted path."""
    paths, _ = jax.tree_util.tree_flatten_with_path(cohort)
    return {leaf_name(path): leaf for path, leaf in paths}


def with_leaves(cohort: Cohort, arrays: Mapping[str, np.ndarray | jax.Array]) -> Cohort:
    """The cohort with its arrays replaced by name, each placed where the old one was."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.device_put(arrays[leaf_name(path)], leaf.sharding), cohort
    )


def check_saved(cohort: Cohort, arrays: dict[str, np.ndarray], spec: EnvSpec) -> None:
    """Raise UserError unless a checkpoint's arrays are those of this cohort in every shape."""
    floats = np.dtype(np.float32)
    wanted = {name: (leaf.shape, leaf.dtype) for name, leaf in named_leaves(cohort).items()}
    del wanted[REPLAY]
    seeds = len(cohort.learners.seed)
    wanted["pending_rows"] = (seeds, spec.row_dim), floats
    wanted["pending_states"] = (seeds, spec.state_dim), floats
    for i in range(seeds):
        name = f"episode_actions.{i}"
        steps = len(arrays[name]) if name in arrays and arrays[name].ndim else 0
        wanted[name] = (steps, spec.action_dim), floats
    for name, (shape, dtype) in wanted.items():
        fitting(arrays, name, shape, dtype)


def fitting(
    arrays: dict[str, np.ndarray], name: str, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """The saved array of this name; UserError unless it is there in this form."""
    found = arrays.get(name)
    if found is None or found.shape != shape or found.dtype != dtype:
        raise UserError(f"The checkpoint's {name} does not fit this run's configuration.")
    return found


def saved_cohort(config: TrainConfig, checkpoint: Checkpoint) -> tuple[Cohort, EnvSpec]:
    """All seeds at a checkpoint, their replay left empty; and the environment's sizes."""
    arrays = checkpoint.arrays()
    spec = saved_spec(arrays)
    shapes = jax.eval_shape(
        lambda seeds: Cohort.init(config.agent, spec, 1, seeds),
        jax.ShapeDtypeStruct((len(config.seeds),), jnp.int32),
    )
    cohort = jax.tree_util.tree_map_with_path(
        lambda path, leaf: _array(arrays, leaf_name(path), leaf), shapes
    )
    return cohort, spec


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
    """The saved array of this name; the replay, which nothing here needs, stays empty."""
    # Priorities too: their shape follows the capacity, which is 1 here.
    if name.startswith("learners.replay."):
        return jnp.zeros(leaf.shape, leaf.dtype)
    return fitting(arrays, name, leaf.shape, leaf.dtype)


def inherited(cohort: Cohort, config: TrainConfig, spec: EnvSpec) -> Cohort:
    """The cohort with what its configuration keeps taken from its source, seed by seed."""
    if not config.source:
        return cohort
    old, origin = legacy(config, spec)
    chosen = np.asarray([origin.seeds.index(seed) for seed in config.seeds])
    old = jax.tree.map(lambda leaf: leaf[chosen], old.learners)
    moved = jax.jit(jax.vmap(Learner.inherit))(cohort.learners, old)
    placed = jax.tree.map(
        lambda new, was: jax.device_put(new, was.sharding), moved, cohort.learners
    )
    return Cohort(placed, cohort.steps, cohort.updates)


def legacy(config: TrainConfig, spec: EnvSpec) -> tuple[Cohort, TrainConfig]:
    """All seeds of the run to inherit from, and its configuration; UserError unless they fit."""
    source, origin = heritage(config)
    old, body = saved_cohort(origin, source.latest())
    if body != spec:
        raise UserError(
            f"{config.source} was trained on another body: it has {body.in_words}, "
            f"{config.task} has {spec.state_dim} and {spec.action_dim}."
        )
    return old, origin


def heritage(config: TrainConfig) -> tuple[RunDirectory, TrainConfig]:
    """The run to inherit from and its configuration; UserError unless this one can."""
    source = RunDirectory.open(Path(config.source))
    origin = from_json(source.config["train"])
    check_heritage(config, origin)
    return source, origin


def check_heritage(config: TrainConfig, origin: TrainConfig) -> None:
    """Raise UserError unless a run of this configuration can inherit from that one."""
    if config.method != origin.method:
        raise UserError(
            f"{config.source} was trained by {origin.method}, this run is by {config.method}: "
            "only the same method has the same parts."
        )
    if missing := [seed for seed in config.seeds if seed not in origin.seeds]:
        raise UserError(
            f"{config.source} has no seed {missing[0]}; its seeds are {list(origin.seeds)}."
        )
    ours, theirs = (shaping(each) for each in (config, origin))
    for name, value in theirs.items():
        if ours.get(name) != value:
            raise UserError(
                f"{config.source} was trained with {option(name)} {value}, this run has "
                f"{ours.get(name)}: what is kept needs the same sizes and inputs."
            )


def shaping(config: TrainConfig) -> dict[str, Any]:
    """What a kept encoder depends on: its form, and the units of what it sees."""
    agent = config.agent
    assert isinstance(agent, SpectralConfig)
    form = asdict(agent.representation)
    return {name: form[name] for name in form if name not in NOT_KEPT} | {
        "normalize_observations": agent.normalize_observations,
        "frame_skip": config.frame_skip,
    }
