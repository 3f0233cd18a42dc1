"""The numbers of a diagnosis: both misfits with their intervals, and the verdict on them."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from fastr.core import EnvSpec
from fastr.studies.misfit.intervals import Estimate, estimate
from fastr.studies.misfit.verdict import Evidence, verdict

KINDS = ("cp", "joint")
NAMES = {"cp": "CP", "joint": "joint"}
REPORT = "report.json"


@dataclass(frozen=True)
class Tested:
    """One dataset after training: what it was, and how each predictor did on each test row."""

    name: str
    path: str
    task: str | None
    provenance: dict[str, Any]
    spec: EnvSpec
    still: tuple[int, ...]
    """Action coordinates that never vary."""
    episodes: int
    parts: dict[str, dict[str, int]]
    """Transitions and episodes of each part of the split."""
    parameters: dict[str, int]
    seeds: tuple[int, ...]
    selected: Int[np.ndarray, "kind seed"]
    curves: list[dict[str, Any]]
    losses: Float32[np.ndarray, "kind seed 2 test"]
    test_episodes: Int[np.ndarray, " test"]


@dataclass(frozen=True)
class Protocol:
    """What of the configuration the numbers mean something by."""

    batch_size: int
    epochs: int
    bootstrap: int
    bootstrap_seed: int
    quick: bool


def summarized(tested: Tested, protocol: Protocol) -> dict[str, Any]:
    """All numbers of one dataset and the verdict on it."""
    generator = np.random.default_rng(protocol.bootstrap_seed)
    cp, joint = tested.losses.astype(np.float64)
    nce, moment = (
        estimate(cp[:, i] - joint[:, i], tested.test_episodes, protocol.bootstrap, generator)
        for i in range(2)
    )
    means = tested.losses.mean(axis=(1, 3), dtype=np.float64)
    chance = math.log(protocol.batch_size)
    evidence = Evidence(
        spec=tested.spec,
        still=tested.still,
        nce=nce,
        nce_known=chance - means[1, 0],
        chance=chance,
        moment=moment,
        moment_known=1.0 - means[1, 1],
        seeds=len(tested.seeds),
        test_episodes=tested.parts["test"]["episodes"],
        still_falling=still_falling(tested, chance, protocol.epochs),
        quick=protocol.quick,
    )
    return {
        "name": tested.name,
        "path": tested.path,
        "task": tested.task,
        "state_dim": tested.spec.state_dim,
        "action_dim": tested.spec.action_dim,
        "episodes": tested.episodes,
        "split": tested.parts,
        "parameters": tested.parameters,
        "chance_nce": chance,
        "test_losses": {
            f"{kind}_{loss}": float(means[i, j])
            for i, kind in enumerate(KINDS)
            for j, loss in enumerate(("nce", "moment"))
        },
        "nce_misfit": numbers(nce, evidence.nce_known),
        "moment_misfit": numbers(moment, evidence.moment_known),
        "seeds": per_seed(tested),
        "verdict": asdict(verdict(evidence)),
        "provenance": tested.provenance,
    }


def numbers(misfit: Estimate, known: float) -> dict[str, float | None]:
    """An estimate by name, and its share of what the joint predictor knows."""
    return misfit._asdict() | {"share_of_known": misfit.value / known if known > 0 else None}


def per_seed(tested: Tested) -> list[dict[str, Any]]:
    """Each training seed by itself."""
    means = tested.losses.mean(axis=3, dtype=np.float64)
    return [
        {
            "seed": seed,
            "nce_misfit": float(means[0, i, 0] - means[1, i, 0]),
            "moment_misfit": float(means[0, i, 1] - means[1, i, 1]),
            "selected_epochs": {kind: int(tested.selected[k, i]) for k, kind in enumerate(KINDS)},
        }
        for i, seed in enumerate(tested.seeds)
    ]


def still_falling(tested: Tested, chance: float, epochs: int) -> tuple[str, ...]:
    """Predictors whose validation loss fell by over 2% of what they know in the last tenth."""
    before = epochs - max(1, epochs // 10)
    found = []
    for kind in KINDS:
        losses = {
            epoch: np.mean(
                [
                    row["validation_nce"]
                    for row in tested.curves
                    if row["predictor"] == kind and row["epoch"] == epoch
                ]
            )
            for epoch in (before, epochs)
        }
        if losses[before] - losses[epochs] > 0.02 * max(chance - losses[epochs], 1e-3):
            found.append(NAMES[kind])
    return tuple(found)


def said(verdict: dict[str, Any]) -> list[str]:
    """A verdict's sentences, doubts last."""
    return [*verdict["sentences"], *(f"Doubt: {doubt}" for doubt in verdict["doubts"])]
