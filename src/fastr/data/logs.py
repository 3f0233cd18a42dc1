"""Logged transitions that a training mixes into its batches (--data): read and checked."""

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int

from fastr import envs
from fastr.core import EnvSpec, UserError
from fastr.data.dataset import require_bounds, spool
from fastr.data.formats import open_source
from fastr.envs import shifts
from fastr.runs.contract import Commanded, Contract, Observed
from fastr.training.config import TrainConfig
from fastr.training.log import Log
from fastr.training.progress import stage

COMPARED = 20_000
"""Rows that are looked at for actions in the wrong row."""
BETTER = 0.9
"""A residual below this share of the other is no chance."""


def log_of(config: TrainConfig, recorded: str | None = None) -> Log | None:
    """The log that this training mixes in, if any; UserError unless it fits.

    `recorded` is the checksum of the log that a run began with.
    """
    if not config.data:
        return None
    if config.task:
        task, _ = shifts.split(config.task)
        with contextlib.closing(envs.load(task, config.frame_skip)) as environment:
            log = read_log(config.data, Contract.of(environment, config.frame_skip))
    else:
        log = read_log(config.data, contract_of(config.data, config.frame_skip))
    if recorded is not None and log.sha256 != recorded:
        raise UserError(f"{config.data} is not what it was when the run began: restore it.")
    return log


def contract_of(name: str, frame_skip: int) -> Contract:
    """What a dataset alone tells of its environment: sizes, and the bounds of the actions."""
    about = open_source(name).about
    if not about.bounded:
        raise UserError(
            f"{name} does not say between which bounds its actions lie: add the arrays action_low "
            "and action_high, or name the TASK whose bounds they are."
        )
    size = about.spec.action_dim
    return Contract(
        (Observed("observation", (about.spec.state_dim,), None),),
        tuple(
            Commanded(f"action {i}", float(low), float(high), None)
            for i, low, high in zip(range(size), *about.bounds, strict=True)
        ),
        (size,),
        about.provenance.get("frame_skip") or frame_skip,
        None,
    )


def read_log(name: str, contract: Contract) -> Log:
    """The transitions of a dataset, for an environment of this contract."""
    source = open_source(name)
    about, spec = source.about, EnvSpec(contract.state_dim, len(contract.action))
    if about.spec != spec:
        parts = ", ".join(f"{part.name} ({part.size})" for part in contract.observation)
        raise UserError(
            f"{name} has {about.spec.in_words}; the environment has {spec.state_dim} and "
            f"{spec.action_dim}. An observation is, in this order: {parts}."
        )
    held = about.provenance.get("frame_skip")
    if held not in (None, contract.frame_skip):
        raise UserError(
            f"{name} was made with --frame-skip {held}, this training has {contract.frame_skip}: "
            "its transitions are of another length."
        )
    if not about.bounded:
        source.about = replace(about, bounds=contract.bounds)
    require_bounds(source)
    with (
        tempfile.TemporaryDirectory() as folder,
        stage(f"reading {about.name}", about.rows, "transitions") as advance,
    ):
        data = spool(source, Path(folder) / "rows", observed_bounds=False, advance=advance)
        if data.reward is None:
            raise UserError(f"{name} has no column reward, which a policy is learned from.")
        low, high = (end.astype(np.float64) for end in (data.action_low, data.action_high))
        action = np.clip(2 * (data.action - low) / (high - low) - 1, -1.0, 1.0)
        terminated = np.zeros(len(data.rows), bool) if data.terminated is None else data.terminated
        rows = spec.pack(
            state=data.state,
            action=action,
            next_state=data.next_state,
            reward=data.reward,
            continues=~terminated,
        )
        return Log(
            rows, contract, doubt_of_actions(data.state, action, data.next_state, data.episodes)
        )


def doubt_of_actions(
    state: np.ndarray, action: np.ndarray, next_state: np.ndarray, episodes: Int[np.ndarray, " n"]
) -> str:
    """A sentence if the next states follow from the previous row's actions; empty if not.

    The change of state is predicted by linear regression, from every second pair of rows for the
    others: once from the row's own action, once from that of the row before.
    """
    pairs = np.flatnonzero(episodes[1:] == episodes[:-1])[:COMPARED] + 1
    if len(pairs) < 20 * (state.shape[1] + action.shape[1]):
        return ""
    change = next_state[pairs] - state[pairs]
    change = (change - change.mean(0)) / np.maximum(change.std(0), 1e-6)

    def residual(actions: np.ndarray) -> float:
        inputs = np.concatenate([state[pairs], actions, np.ones((len(pairs), 1))], axis=1)
        weights = np.linalg.lstsq(inputs[::2], change[::2], rcond=None)[0]
        return float(np.mean(np.square(inputs[1::2] @ weights - change[1::2])))

    own, before = residual(action[pairs]), residual(action[pairs - 1])
    if before > BETTER * own:
        return ""
    return (
        "the next states follow better from the action of the row before than from their own "
        f"(residual {before:.2f} against {own:.2f}): is the column of actions shifted by one row?"
    )
