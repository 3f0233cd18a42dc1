"""A diagnosis from datasets to a report: read, split, train, test, judge, write.

All data is checked before any training.
"""

import csv
import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastr.core import UserError, write_errors
from fastr.data import Dataset, Source, open_source, require_bounds, spool
from fastr.report.page import write_page
from fastr.runs import json_value, made
from fastr.runs.provenance import provenance
from fastr.studies.misfit.config import KINDS, NAMES, Kind, MisfitConfig
from fastr.studies.misfit.data import Prepared, prepare
from fastr.studies.misfit.page import page
from fastr.studies.misfit.training import Fit, Fitted
from fastr.studies.misfit.verdict import Estimate, Evidence, by_episode, estimate, verdict
from fastr.training.progress import stage

REPORT, CURVES, EPISODES, PAGE = "report.json", "curves.csv", "episodes.csv", "report.html"


def diagnose(names: Sequence[str], config: MisfitConfig, out: Path) -> dict[str, Any]:
    """Diagnose these datasets, write all files to `out`, and return the report."""
    start, origin = time.monotonic(), provenance()
    sources = open_all(names)
    if config.action_scale == "bounds":
        for source in sources:
            require_bounds(source)
    with made(out), tempfile.TemporaryDirectory(prefix=".rows-", dir=out) as folder:
        stores = [read(source, Path(folder) / str(i), config) for i, source in enumerate(sources)]
        prepared = [prepare(store, config) for store in stores]
        fitted = [train(one, config) for one in prepared]
    datasets = [
        summary(source, one, outcome, config)
        for source, one, outcome in zip(sources, prepared, fitted, strict=True)
    ]
    report = json_value(
        {
            "config": asdict(config),
            "datasets": datasets,
            "provenance": origin,
            "seconds": round(time.monotonic() - start, 3),
        }
    )
    with write_errors(out):
        (out / REPORT).write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
        write_curves(out / CURVES, prepared, fitted)
        write_episodes(out / EPISODES, prepared, fitted, config.seeds)
        write_page(page(report, [one.curves for one in fitted]), out / PAGE)
    return report


def open_all(names: Sequence[str]) -> list[Source]:
    """All datasets, under different names."""
    sources = [open_source(name) for name in names]
    paths = [source.path.resolve() for source in sources]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise UserError(f"{twice[0]} is given twice; give each dataset once.")
    short = [source.about.name for source in sources]
    for source in sources:
        if short.count(source.about.name) > 1:
            source.about = replace(source.about, name=str(source.path))
    return sources


def read(source: Source, path: Path, config: MisfitConfig) -> Dataset:
    """Check a dataset and copy it into the form for training."""
    with stage(f"reading {source.about.name}", source.about.rows, "transitions") as advance:
        observed = config.action_scale == "observed"
        return spool(source, path, observed_bounds=observed, advance=advance)


def train(prepared: Prepared, config: MisfitConfig) -> Fitted:
    """Train, select and test both predictors, with a progress display."""
    batches = len(prepared.split.train) // config.predictor.batch_size
    updates = config.predictor.epochs * batches
    with stage(f"training on {prepared.name}", updates, "updates", "compiling") as advance:
        return Fit(prepared, config, advance).run()


def summary(
    source: Source, prepared: Prepared, fitted: Fitted, config: MisfitConfig
) -> dict[str, Any]:
    """All numbers of one dataset and the verdict on it."""
    about, store, generator = source.about, prepared.store, np.random.default_rng(config.split_seed)
    cp, joint = fitted.losses.astype(np.float64)
    nce, moment = (
        estimate(
            cp[:, i] - joint[:, i], store.episodes[prepared.split.test], config.bootstrap, generator
        )
        for i in range(2)
    )
    means = fitted.losses.mean(axis=(1, 3), dtype=np.float64)
    chance = math.log(config.predictor.batch_size)
    parts = {
        name: {"transitions": len(rows), "episodes": len(np.unique(store.episodes[rows]))}
        for name, rows in prepared.split._asdict().items()
    }
    evidence = Evidence(
        task=about.task,
        action_dim=about.spec.action_dim,
        constant_actions=prepared.constant_actions,
        nce=nce,
        nce_known=chance - means[1, 0],
        chance=chance,
        moment=moment,
        moment_known=1.0 - means[1, 1],
        seeds=len(config.seeds),
        test_episodes=parts["test"]["episodes"],
        still_falling=still_falling(fitted, chance, config.predictor.epochs),
        quick=config.preset == "quick",
    )
    return {
        "name": about.name,
        "path": str(source.path),
        "task": about.task,
        "state_dim": about.spec.state_dim,
        "action_dim": about.spec.action_dim,
        "episodes": store.episode_count,
        "split": parts,
        "parameters": dict(fitted.parameters),
        "chance_nce": chance,
        "test_losses": {
            f"{kind}_{loss}": float(means[i, j])
            for i, kind in enumerate(KINDS)
            for j, loss in enumerate(("nce", "moment"))
        },
        "nce_misfit": numbers(nce, evidence.nce_known),
        "moment_misfit": numbers(moment, evidence.moment_known),
        "seeds": per_seed(fitted, config.seeds),
        "verdict": asdict(verdict(evidence)),
        "provenance": about.provenance,
    }


def numbers(misfit: Estimate, known: float) -> dict[str, float | None]:
    """An estimate by name, and its share of what the joint predictor knows."""
    return misfit._asdict() | {"share_of_known": misfit.value / known if known > 0 else None}


def per_seed(fitted: Fitted, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Both misfits and the selected epochs of each training seed."""
    means = fitted.losses.mean(axis=3, dtype=np.float64)
    return [
        {
            "seed": seed,
            "nce_misfit": float(means[0, i, 0] - means[1, i, 0]),
            "moment_misfit": float(means[0, i, 1] - means[1, i, 1]),
            "selected_epochs": {kind: int(fitted.selected[k, i]) for k, kind in enumerate(KINDS)},
        }
        for i, seed in enumerate(seeds)
    ]


def still_falling(fitted: Fitted, chance: float, epochs: int) -> tuple[str, ...]:
    """Predictors whose validation loss fell by over 2% of what they know in the last tenth."""
    before = epochs - max(1, epochs // 10)

    def loss(kind: Kind, epoch: int) -> float:
        rows = [r for r in fitted.curves if r["predictor"] == kind and r["epoch"] == epoch]
        return float(np.mean([row["validation_nce"] for row in rows]))

    found = []
    for kind in KINDS:
        old, new = loss(kind, before), loss(kind, epochs)
        if old - new > 0.02 * max(chance - new, 1e-3):
            found.append(NAMES[kind])
    return tuple(found)


def write_curves(path: Path, prepared: Sequence[Prepared], fitted: Sequence[Fitted]) -> None:
    """Write a line per dataset, predictor, seed and epoch."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, ("dataset", *fitted[0].curves[0]))
        lines.writeheader()
        for one, outcome in zip(prepared, fitted, strict=True):
            lines.writerows({"dataset": one.name} | row for row in outcome.curves)


def write_episodes(
    path: Path, prepared: Sequence[Prepared], fitted: Sequence[Fitted], seeds: Sequence[int]
) -> None:
    """Write the mean test losses of each episode and seed, from which the intervals follow."""
    losses = [f"{kind}_{loss}" for kind in KINDS for loss in ("nce", "moment")]
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(("dataset", "episode", "transitions", "seed", *losses))
        for one, outcome in zip(prepared, fitted, strict=True):
            episodes = one.store.episodes[one.split.test]
            sums, counts = by_episode(outcome.losses, episodes)
            for i, episode in enumerate(np.unique(episodes)):
                for j, seed in enumerate(seeds):
                    values = (sums[:, j, :, i] / counts[i]).ravel().tolist()
                    lines.writerow((one.name, episode, counts[i], seed, *values))
