"""The page of a diagnosis: both misfits of all datasets, then each dataset."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastr.core import counted
from fastr.report.page import Page, Section
from fastr.report.plots import Axes, Bar, Curve, Figure, curves, intervals
from fastr.report.table import Table
from fastr.studies.misfit.config import KINDS, NAMES

LEAD = (
    "Two predictors of the next state were trained on the same transitions: one factored into "
    "state, action and next state (CP), one with a joint encoder of state and action. The misfit "
    "is the loss of the factored predictor less that of the joint one on held-out transitions; "
    "below zero the factored one is better."
)
LOSSES = (("nce", "NCE", "ranking loss", "nats"), ("moment", "moment", "moment loss", "variance"))
"""Key, name of the misfit, name of the loss, unit."""


def page(report: dict[str, Any], histories: Sequence[Sequence[dict[str, Any]]]) -> Page:
    """The report with the learning curves of each dataset."""
    origin, datasets = report["provenance"], report["datasets"]
    return Page(
        "Does the CP factorization fit?",
        LEAD,
        [
            Section("misfits", "Misfits", (), [misfits(key, datasets) for key in range(2)]),
            *(
                section(f"dataset-{place}", entry, history)
                for place, (entry, history) in enumerate(zip(datasets, histories, strict=True))
            ),
            Section("settings", "Settings", code=json.dumps(report["config"], indent=1)),
        ],
        shlex.join(["fastr", *origin["command"][1:]]),
        f"fastr {origin['fastr']}, {origin['started']}, {report['seconds']:,.0f} s",
    )


def misfits(loss: int, datasets: Sequence[dict[str, Any]]) -> Figure:
    """One kind of misfit of every dataset with its interval."""
    key, name, _, unit = LOSSES[loss]
    bars = []
    for place, entry in enumerate(datasets):
        misfit = entry[f"{key}_misfit"]
        seeds = ", ".join(f"{seed[f'{key}_misfit']:+.4f}" for seed in entry["seeds"])
        interval = misfit["value"], misfit["low"], misfit["high"]
        bars.append(Bar(entry["name"], *interval, color=place, detail=f"seeds: {seeds}"))
    title = f"{name} misfit with 95% interval: CP less joint, test part"
    return intervals(f"misfit-{key}", title, bars, f"{name} misfit ({unit})", reference=0.0)


def section(name: str, entry: dict[str, Any], history: Sequence[dict[str, Any]]) -> Section:
    """One dataset."""
    verdict, losses = entry["verdict"], entry["test_losses"]
    *reasons, conclusion = verdict["sentences"]
    rows = [
        (NAMES[k], losses[f"{k}_nce"], losses[f"{k}_moment"], entry["parameters"][k]) for k in KINDS
    ]
    parts = ", ".join(
        f"{part} {size['transitions']:,} in {counted(size['episodes'], 'episode')}"
        for part, size in entry["split"].items()
    )
    sizes = (
        f"{counted(entry['state_dim'], 'state coordinate')}, "
        f"{counted(entry['action_dim'], 'action coordinate')}. Transitions: {parts}."
    )
    doubts = [f"Doubt: {doubt}" for doubt in verdict["doubts"]]
    return Section(
        name,
        entry["name"],
        [conclusion, f"Next: {verdict['next_step']}", *reasons, *doubts, sizes],
        [learning(f"{name}-{loss[0]}", loss, entry, history) for loss in LOSSES],
        [
            Table(
                f"{name}-losses",
                "Losses on the test part",
                ("predictor", "ranking loss (nats)", "moment loss", "parameters"),
                rows,
            )
        ],
    )


def learning(
    name: str, loss: tuple[str, ...], entry: dict[str, Any], history: Sequence[dict[str, Any]]
) -> Figure:
    """Validation losses of both predictors against epochs."""
    key, _, title, unit = loss
    epochs = sorted({row["epoch"] for row in history})
    lines = []
    for color, kind in enumerate(KINDS):
        values = np.array(
            [
                [
                    row[f"validation_{key}"]
                    for row in history
                    if row["predictor"] == kind and row["epoch"] == epoch
                ]
                for epoch in epochs
            ]
        )
        mean, low, high = (f(values, axis=1).tolist() for f in (np.mean, np.min, np.max))
        lines.append(Curve(NAMES[kind], epochs, mean, low, high, color=color))
    chance = ("no knowledge", entry["chance_nce"] if key == "nce" else 1.0)
    return curves(
        name,
        f"Validation {title}: mean, lowest and highest seed",
        lines,
        Axes("epoch", f"{title} ({unit})"),
        levels=[chance],
    )
