"""A diagnosis from datasets to a page: read, split, train, test, judge, write.

All data is checked before any training.
"""

import json
import math
import shlex
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastr.core import UserError, write_errors
from fastr.data import Dataset, Source, open_source, require_bounds, spool
from fastr.report.page import Axes, Bar, Curve, Figure, Page, Section, curves, intervals, write_page
from fastr.report.table import Table
from fastr.runs import json_value, made
from fastr.runs.provenance import provenance
from fastr.studies.misfit import KINDS, NAMES, MisfitConfig
from fastr.studies.misfit.data import Prepared, prepare
from fastr.studies.misfit.training import LOSSES, Fitted, fit
from fastr.studies.misfit.verdict import by_episode, estimate, verdict
from fastr.training.progress import stage

REPORT, PAGE = "report.json", "report.html"
CURVE_COLUMNS = (
    *("dataset", "predictor", "seed", "epoch", "train_nce", "train_moment"),
    *("validation_nce", "validation_moment", "seconds"),
)
EPISODE_COLUMNS = (
    *("dataset", "episode", "transitions", "seed"),
    *(f"{kind}_{loss}" for kind in KINDS for loss in LOSSES),
)
LEAD = (
    "Two predictors of the next state were trained on the same transitions: one factored into "
    "state, action and next state (CP), one with a joint encoder of state and action. The misfit "
    "is the loss of the factored predictor less that of the joint one on held-out transitions; "
    "below zero the factored one is better."
)
TITLES = {"nce": ("NCE", "ranking loss", "nats"), "moment": ("moment", "moment loss", "variance")}
"""Name of the misfit, name of the loss, unit."""


def diagnose(names: Sequence[str], config: MisfitConfig, out: Path) -> dict[str, Any]:
    """Diagnose these datasets, write all files to `out`, and return the report."""
    start, origin = time.monotonic(), provenance()
    sources = open_all(names)
    if config.action_scale == "bounds":
        for source in sources:
            require_bounds(source)
    with made(out), tempfile.TemporaryDirectory(prefix=".rows-", dir=out) as folder:
        stores = [_read(source, Path(folder) / str(i), config) for i, source in enumerate(sources)]
        prepared = [prepare(store, config) for store in stores]
        fitted = [_train(one, config) for one in prepared]
    done = list(zip(prepared, fitted, strict=True))
    datasets = [
        _summary(source, one, outcome, config)
        for source, (one, outcome) in zip(sources, done, strict=True)
    ]
    seconds = round(time.monotonic() - start, 3)
    report = json_value(
        {"config": asdict(config), "datasets": datasets, "provenance": origin, "seconds": seconds}
    )
    with write_errors(out):
        (out / REPORT).write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
        for rows_of, columns, name in (
            (_curves, CURVE_COLUMNS, "curves"),
            (_episodes, EPISODE_COLUMNS, "episodes"),
        ):
            rows = [row for one in done for row in rows_of(*one, config.seeds)]
            (out / f"{name}.csv").write_text(Table(name, "", columns, rows).csv(), "utf-8")
        write_page(page(report, [one.validation for one in fitted]), out / PAGE)
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


def _read(source: Source, path: Path, config: MisfitConfig) -> Dataset:
    with stage(f"reading {source.about.name}", source.about.rows, "transitions") as advance:
        observed = config.action_scale == "observed"
        return spool(source, path, observed_bounds=observed, advance=advance)


def _train(prepared: Prepared, config: MisfitConfig) -> Fitted:
    batches = len(prepared.split.train) // config.predictor.batch_size
    updates, name = config.predictor.epochs * batches, prepared.store.about.name
    with stage(f"training on {name}", updates, "updates", "compiling") as advance:
        return fit(prepared, config, advance)


def _summary(
    source: Source, prepared: Prepared, fitted: Fitted, config: MisfitConfig
) -> dict[str, Any]:
    """All numbers of one dataset and the verdict on it."""
    about, store, generator = source.about, prepared.store, np.random.default_rng(config.split_seed)
    test, (cp, joint) = store.episodes[prepared.split.test], fitted.losses.astype(np.float64)
    means = fitted.losses.mean(axis=(1, 3), dtype=np.float64)
    by_seed = fitted.losses.mean(axis=3, dtype=np.float64)
    chance = math.log(config.predictor.batch_size)
    misfits = {}
    for i, (loss, most) in enumerate(zip(LOSSES, (chance, 1.0), strict=True)):
        misfit = estimate(cp[:, i] - joint[:, i], test, config.bootstrap, generator)
        known = most - means[1, i]
        misfit["share_of_known"] = misfit["value"] / known if known > 0 else None
        misfits[f"{loss}_misfit"] = misfit
    entry = {
        "name": about.name,
        "path": str(source.path),
        "task": about.task,
        "state_dim": about.spec.state_dim,
        "action_dim": about.spec.action_dim,
        "episodes": store.episode_count,
        "split": {
            name: {"transitions": len(rows), "episodes": len(np.unique(store.episodes[rows]))}
            for name, rows in prepared.split._asdict().items()
        },
        "parameters": dict(fitted.parameters),
        "chance_nce": chance,
        "test_losses": {
            f"{kind}_{loss}": float(means[i, j])
            for i, kind in enumerate(KINDS)
            for j, loss in enumerate(LOSSES)
        },
        **misfits,
        "seeds": [
            {
                "seed": seed,
                "nce_misfit": float(by_seed[0, i, 0] - by_seed[1, i, 0]),
                "moment_misfit": float(by_seed[0, i, 1] - by_seed[1, i, 1]),
                "selected_epochs": {k: int(fitted.selected[j, i]) for j, k in enumerate(KINDS)},
            }
            for i, seed in enumerate(config.seeds)
        ],
    }
    found = verdict(
        entry,
        constant_actions=prepared.constant_actions,
        still_falling=_still_falling(fitted, chance),
        laptop=config.preset == "laptop",
    )
    return entry | {"verdict": found, "provenance": about.provenance}


def _still_falling(fitted: Fitted, chance: float) -> tuple[str, ...]:
    """Predictors whose validation loss fell by over 2% of what they know in the last tenth."""
    losses = fitted.validation[..., 0].mean(axis=2)
    epochs = losses.shape[1] - 1
    old, new = losses[:, epochs - max(1, epochs // 10)], losses[:, epochs]
    falling = old - new > 0.02 * np.maximum(chance - new, 1e-3)
    return tuple(NAMES[kind] for kind, falls in zip(KINDS, falling, strict=True) if falls)


def _curves(prepared: Prepared, fitted: Fitted, seeds: Sequence[int]) -> Iterable[list[Any]]:
    """The mean losses of each predictor and seed after each epoch."""
    values, name = np.concatenate([fitted.train, fitted.validation], -1), prepared.store.about.name
    for epoch, seconds in enumerate(fitted.seconds):
        for i, kind in enumerate(KINDS):
            for j, seed in enumerate(seeds):
                yield [name, kind, seed, epoch, *values[i, epoch, j].tolist(), seconds]


def _episodes(prepared: Prepared, fitted: Fitted, seeds: Sequence[int]) -> Iterable[list[Any]]:
    """The mean test losses of each episode and seed, from which the intervals follow."""
    episodes = prepared.store.episodes[prepared.split.test]
    sums, counts = by_episode(fitted.losses, episodes)
    for i, episode in enumerate(np.unique(episodes).tolist()):
        for j, seed in enumerate(seeds):
            losses = (sums[:, j, :, i] / counts[i]).ravel().tolist()
            yield [prepared.store.about.name, episode, int(counts[i]), seed, *losses]


def page(report: dict[str, Any], histories: Sequence[np.ndarray]) -> Page:
    """Both misfits of all datasets, then each dataset with its learning curves."""
    origin, datasets = report["provenance"], report["datasets"]
    return Page(
        "Does the CP factorization fit?",
        LEAD,
        [
            Section("misfits", "Misfits", (), [_misfits(loss, datasets) for loss in LOSSES]),
            *(
                _section(f"dataset-{place}", entry, history)
                for place, (entry, history) in enumerate(zip(datasets, histories, strict=True))
            ),
            Section("settings", "Settings", code=json.dumps(report["config"], indent=1)),
        ],
        shlex.join(["fastr", *origin["command"][1:]]),
        f"fastr {origin['fastr']}, {origin['started']}, {report['seconds']:,.0f} s",
    )


def _misfits(loss: str, datasets: Sequence[dict[str, Any]]) -> Figure:
    """One kind of misfit of every dataset with its interval."""
    (name, _, unit), bars = TITLES[loss], []
    for place, entry in enumerate(datasets):
        misfit = entry[f"{loss}_misfit"]
        seeds = ", ".join(f"{seed[f'{loss}_misfit']:+.4f}" for seed in entry["seeds"])
        interval = misfit["value"], misfit["low"], misfit["high"]
        bars.append(Bar(entry["name"], *interval, color=place, detail=f"seeds: {seeds}"))
    title = f"{name} misfit with 95% interval: CP less joint, test part"
    return intervals(f"misfit-{loss}", title, bars, f"{name} misfit ({unit})", reference=0.0)


def _section(name: str, entry: dict[str, Any], history: np.ndarray) -> Section:
    verdict, losses = entry["verdict"], entry["test_losses"]
    *reasons, conclusion = verdict["sentences"]
    doubts = [f"Doubt: {doubt}" for doubt in verdict["doubts"]]
    sizes = f"Data: {entry['state_dim']} state and {entry['action_dim']} action coordinates"
    parts = [(part, *size.values()) for part, size in entry["split"].items()]
    columns = ("predictor", "ranking loss (nats)", "moment loss", "parameters")
    rows = [
        (NAMES[k], losses[f"{k}_nce"], losses[f"{k}_moment"], entry["parameters"][k]) for k in KINDS
    ]
    return Section(
        name,
        entry["name"],
        [conclusion, f"Next: {verdict['next_step']}", *reasons, *doubts],
        [_learning(f"{name}-{loss}", loss, entry, history) for loss in LOSSES],
        [
            Table(f"{name}-losses", "Losses on the test part", columns, rows),
            Table(f"{name}-split", sizes, ("part", "transitions", "episodes"), parts),
        ],
    )


def _learning(name: str, loss: str, entry: dict[str, Any], history: np.ndarray) -> Figure:
    """Validation losses of both predictors against epochs."""
    (_, title, unit), lines = TITLES[loss], []
    for color, kind in enumerate(KINDS):
        values = history[color, ..., LOSSES.index(loss)]
        ends = values.mean(axis=1), values.min(axis=1), values.max(axis=1)
        lines.append(Curve(NAMES[kind], range(len(values)), *ends, color=color))
    return curves(
        name,
        f"Validation {title}: mean, lowest and highest seed",
        lines,
        Axes("epoch", f"{title} ({unit})"),
        levels=[("no knowledge", entry["chance_nce"] if loss == "nce" else 1.0)],
    )
