"""Inheriting from a run: what --keep names is taken from --source (Sec. Modular Reuse)."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fastr.agents.spectral import SpectralConfig
from fastr.core import EnvSpec, UserError, option
from fastr.runs.directory import RunDirectory
from fastr.training.config import TrainConfig, from_json
from fastr.training.learner import Cohort, Learner
from fastr.training.state import saved_cohort

NOT_KEPT = ("noise_levels", "reward_weight", "fourier_dim", "head_dim", "precision")
"""Settings of a representation that a kept encoder does not depend on."""


def inherited(cohort: Cohort, config: TrainConfig, spec: EnvSpec) -> Cohort:
    """The cohort with the kept parts of its source, seed by seed."""
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
    """All seeds of the source run, and its configuration; UserError unless they fit."""
    source, origin = heritage(config)
    old, body = saved_cohort(origin, source.latest())
    if body != spec:
        raise UserError(
            f"{config.source} was trained on another robot: it has {body.in_words}, "
            f"{config.task} has {spec.state_dim} and {spec.action_dim}."
        )
    return old, origin


def heritage(config: TrainConfig) -> tuple[RunDirectory, TrainConfig]:
    """The source run and its configuration; UserError unless this run can inherit from it."""
    source = RunDirectory.open(Path(config.source))
    origin = from_json(source.config["train"])
    check_heritage(config, origin)
    return source, origin


def check_heritage(config: TrainConfig, origin: TrainConfig) -> None:
    """Raise UserError unless a run of this configuration can inherit from one of `origin`."""
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
    """Settings that a kept encoder depends on: its sizes, and the units of its inputs."""
    agent = config.agent
    assert isinstance(agent, SpectralConfig)
    form = asdict(agent.representation)
    return {name: form[name] for name in form if name not in NOT_KEPT} | {
        "normalize_observations": agent.normalize_observations,
        "frame_skip": config.frame_skip,
    }
