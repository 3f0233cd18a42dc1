"""What a diagnosis leaves behind: numbers for programs, a page and pictures for people."""

import base64
import csv
import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from fastr.misfit.intervals import Estimate, by_episode, estimate
from fastr.misfit.verdict import Evidence, Verdict, verdict
from fastr.spec import EnvSpec

KINDS = ("cp", "joint")
NAMES = {"cp": "CP", "joint": "joint"}
REPORT, CURVES, EPISODES, PAGE = "report.json", "curves.csv", "episodes.csv", "report.html"
CURVE_COLUMNS: tuple[str, ...] = (
    "dataset",
    "predictor",
    "seed",
    "epoch",
    "train_nce",
    "train_moment",
    "validation_nce",
    "validation_moment",
    "seconds",
)


@dataclass(frozen=True)
class Tested:
    """One dataset after training: what it was, and how each predictor did on each test row."""

    name: str
    path: str
    task: str | None
    provenance: dict[str, Any]
    spec: EnvSpec
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


def write(
    folder: Path, report: dict[str, Any], tested: Sequence[Tested], protocol: Protocol
) -> None:
    """All files of a diagnosis."""
    (folder / REPORT).write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    write_curves(folder / CURVES, tested)
    write_episodes(folder / EPISODES, tested)
    pictures = [folder / "misfit.png"]
    draw_misfits(report["datasets"], pictures[0])
    for i, one in enumerate(tested):
        pictures.append(folder / f"curves-{i}.png")
        draw_curves(one, math.log(protocol.batch_size), pictures[-1])
    (folder / PAGE).write_text(page(report, pictures))


def write_curves(path: Path, tested: Sequence[Tested]) -> None:
    """Every epoch of every predictor, seed and dataset as a line."""
    with path.open("w", newline="") as file:
        lines = csv.DictWriter(file, CURVE_COLUMNS)
        lines.writeheader()
        for one in tested:
            lines.writerows({"dataset": one.name} | row for row in one.curves)


def write_episodes(path: Path, tested: Sequence[Tested]) -> None:
    """The mean test losses of every episode and seed: all that the intervals are made from."""
    header = ("dataset", "episode", "transitions", "seed")
    losses = [f"{kind}_{loss}" for kind in KINDS for loss in ("nce", "moment")]
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow((*header, *losses))
        for one in tested:
            sums, counts = by_episode(one.losses, one.test_episodes)
            for i, episode in enumerate(np.unique(one.test_episodes)):
                for j, seed in enumerate(one.seeds):
                    values = (sums[:, j, :, i] / counts[i]).ravel().tolist()
                    lines.writerow((one.name, episode, counts[i], seed, *values))


def draw_curves(tested: Tested, chance: float, path: Path) -> None:
    """Validation losses against epochs, one line per seed."""
    pyplot = plotting()
    figure, both = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axes, loss, title in (
        (both[0], "nce", "ranking loss (nats)"),
        (both[1], "moment", "moment loss (share of variance)"),
    ):
        for kind, color in (("cp", "tab:blue"), ("joint", "tab:orange")):
            for i, seed in enumerate(tested.seeds):
                rows = [r for r in tested.curves if r["predictor"] == kind and r["seed"] == seed]
                rows.sort(key=lambda row: row["epoch"])
                axes.plot(
                    [row["epoch"] for row in rows],
                    [row[f"validation_{loss}"] for row in rows],
                    color=color,
                    alpha=0.8,
                    label=NAMES[kind] if i == 0 else None,
                )
        axes.set(xlabel="epoch", ylabel=f"validation {title}")
        axes.grid(alpha=0.3)
    both[0].axhline(chance, color="grey", linestyle=":", label="chance, ln(batch)")
    both[0].legend(frameon=False)
    figure.suptitle(tested.name)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def draw_misfits(datasets: Sequence[dict[str, Any]], path: Path) -> None:
    """Both misfits of every dataset with their intervals, and each seed as a dot."""
    pyplot = plotting()
    height = 1.6 + 0.5 * len(datasets)
    figure, both = pyplot.subplots(1, 2, figsize=(10, height), layout="constrained", sharey=True)
    for axes, key, unit in ((both[0], "nce_misfit", "nats"), (both[1], "moment_misfit", "share")):
        for i, entry in enumerate(datasets):
            misfit = entry[key]
            axes.plot([misfit["low"], misfit["high"]], [i, i], color="tab:blue", linewidth=3)
            axes.plot([seed[key] for seed in entry["seeds"]], [i] * len(entry["seeds"]), "k.")
        axes.axvline(0.0, color="grey", linewidth=1)
        axes.set(xlabel=f"{key.replace('_', ' ')} ({unit}): CP less joint, test part")
        axes.grid(alpha=0.3, axis="x")
    both[0].set_yticks(range(len(datasets)), [entry["name"] for entry in datasets])
    both[0].invert_yaxis()
    both[0].margins(y=0.4)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def plotting() -> Any:
    """Matplotlib without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def said(verdict: dict[str, Any] | Verdict) -> list[str]:
    """A verdict's sentences, doubts last."""
    content = verdict if isinstance(verdict, dict) else asdict(verdict)
    return [*content["sentences"], *(f"Doubt: {doubt}" for doubt in content["doubts"])]


STYLE = """body{font-family:sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse}td,th{padding:.25rem .8rem;border-bottom:1px solid #ccc}
td:not(:first-child){text-align:right}img{max-width:100%}.gain{font-weight:bold}
.doubt{color:#8a5a00}"""


def page(report: dict[str, Any], pictures: Sequence[Path]) -> str:
    """One HTML file that needs nothing beside it."""
    overview, *curves = (f'<img alt="" src="data:image/png;base64,{encoded(p)}">' for p in pictures)
    sections = [
        section(entry, curve) for entry, curve in zip(report["datasets"], curves, strict=True)
    ]
    settings = html.escape(json.dumps(report["config"], indent=1))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>CP misfit</title><style>{STYLE}</style></head>
<body><h1>Does the CP factorization fit?</h1>
<p>Two predictors of the next state were trained on the same transitions, one factored into state,
action and next state (CP), one with a joint encoder of state and action. The misfit is what the
factored one loses on held-out transitions; below zero it is the better one.</p>
{overview}
{"".join(sections)}
<h2>Settings</h2><pre>{settings}</pre>
<p>fastr {html.escape(str(report["provenance"].get("fastr")))},
{html.escape(str(report["provenance"].get("started")))}, {report["seconds"]:,.0f} s</p>
</body></html>
"""


def section(entry: dict[str, Any], curve: str) -> str:
    """One dataset."""
    said_of_it = entry["verdict"]
    sentences = "".join(f"<p>{html.escape(text)}</p>" for text in said_of_it["sentences"][:-1])
    doubts = "".join(f'<p class="doubt">{html.escape(d)}</p>' for d in said_of_it["doubts"])
    losses = entry["test_losses"]
    rows = "".join(
        f"<tr><td>{NAMES[kind]}</td><td>{losses[f'{kind}_nce']:.4f}</td>"
        f"<td>{losses[f'{kind}_moment']:.4f}</td><td>{entry['parameters'][kind]:,}</td></tr>"
        for kind in KINDS
    )
    parts = ", ".join(
        f"{part} {size['transitions']:,} in {size['episodes']:,}"
        for part, size in entry["split"].items()
    )
    return f"""<h2>{html.escape(entry["name"])}</h2>
<p class="gain">{html.escape(said_of_it["sentences"][-1])}</p>{sentences}{doubts}
<table><tr><th>predictor</th><th>test ranking loss (nats)</th><th>test moment loss</th>
<th>parameters</th></tr>{rows}</table>
<p>{entry["state_dim"]} state and {entry["action_dim"]} action coordinates. Transitions in
episodes: {parts}.</p>{curve}
"""


def encoded(path: Path) -> str:
    """A picture as text."""
    return base64.b64encode(path.read_bytes()).decode()
