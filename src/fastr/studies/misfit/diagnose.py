"""From datasets to a report: read, split, train, test, judge (App. Empirical CP Misfit Diagnostic).

Everything that can be wrong with the data is found before any training.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastr.core import UserError, write_errors
from fastr.data.base import Source, require_bounds
from fastr.data.opening import open_source
from fastr.data.store import Store, spool
from fastr.runs import json_value, made
from fastr.runs.provenance import provenance
from fastr.studies.misfit.batches import Prepared, groups, prepare
from fastr.studies.misfit.config import MisfitConfig
from fastr.studies.misfit.fit import Fitted, fit, updates_of
from fastr.studies.misfit.memory import check_fits, check_statistics
from fastr.studies.misfit.report import Protocol, Tested, summarized
from fastr.studies.misfit.writing import write
from fastr.training.progress import stage


def diagnose(names: Sequence[str], config: MisfitConfig, out: Path) -> dict[str, Any]:
    """The report on these datasets; all its files lie in the directory `out` afterwards."""
    begun, origin = time.monotonic(), provenance()
    sources = opened(names)
    if config.action_scale == "bounds":
        for source in sources:
            require_bounds(source)
    for source in sources:
        check_statistics(config, source.about)
        check_fits(config, source.about.spec)
    with made(out), tempfile.TemporaryDirectory(prefix=".rows-", dir=out) as folder:
        stores = [read(source, Path(folder) / str(i), config) for i, source in enumerate(sources)]
        prepared = [prepare(store, config) for store in stores]
        for _, members in groups(prepared, config.predictor.batch_size):
            check_fits(config, members[0].spec, len(members))
        fitted = trained(prepared, config)
        tested = [
            result(source, one, outcome, config)
            for source, one, outcome in zip(sources, prepared, fitted, strict=True)
        ]
    protocol = Protocol(
        batch_size=config.predictor.batch_size,
        epochs=config.predictor.epochs,
        bootstrap=config.bootstrap,
        bootstrap_seed=config.split_seed,
        quick=config.preset == "quick",
    )
    report = {
        "config": asdict(config),
        "datasets": [summarized(one, protocol) for one in tested],
        "provenance": origin,
        "seconds": round(time.monotonic() - begun, 3),
    }
    report = json_value(report)
    with write_errors(out):
        write(out, report, tested, protocol)
    return report


def opened(names: Sequence[str]) -> list[Source]:
    """All datasets, each under a name of its own."""
    sources = [open_source(name) for name in names]
    paths = [source.path.resolve() for source in sources]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise UserError(f"{twice[0]} is given twice; give each dataset once.")
    short = [source.about.name for source in sources]
    for source in sources:
        if short.count(source.about.name) > 1:
            source.about = replace(source.about, name=str(source.path))
    return sources


def read(source: Source, path: Path, config: MisfitConfig) -> Store:
    """Check a dataset and bring it into the form for training."""
    with stage(f"reading {source.about.name}", source.about.rows, "transitions") as advance:
        observed = config.action_scale == "observed"
        return spool(source, path, observed_bounds=observed, advance=advance)


def trained(prepared: Sequence[Prepared], config: MisfitConfig) -> list[Fitted]:
    """All datasets, group by group, in the order they were given."""
    found: dict[int, Fitted] = {}
    for places, members in groups(prepared, config.predictor.batch_size):
        names = ", ".join(one.store.about.name for one in members)
        updates = updates_of(members, config)
        with stage(f"training on {names}", updates, "updates", "compiling") as advance:
            found |= dict(zip(places, fit(members, config, advance), strict=True))
    return [found[place] for place in range(len(prepared))]


def result(source: Source, prepared: Prepared, fitted: Fitted, config: MisfitConfig) -> Tested:
    """One dataset after training, for the report."""
    store, parts = prepared.store, prepared.split
    return Tested(
        name=store.about.name,
        path=str(source.path),
        task=store.about.task,
        provenance=store.about.provenance,
        spec=store.about.spec,
        still=prepared.still,
        episodes=store.episode_count,
        parts={
            name: {
                "transitions": len(rows),
                "episodes": len(np.unique(store.episodes[rows])),
            }
            for name, rows in zip(parts._fields, parts, strict=True)
        },
        parameters={str(kind): size for kind, size in fitted.parameters.items()},
        seeds=config.seeds,
        selected=fitted.selected,
        curves=fitted.curves,
        losses=fitted.losses,
        test_episodes=store.episodes[parts.test],
    )
