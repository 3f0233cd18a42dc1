"""The page of a diagnosis."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastr.report.pages import rendering
from fastr.report.pages.rendering import embedded
from fastr.studies.misfit.report import KINDS, NAMES

LOSSES = ("predictor", "test ranking loss (nats)", "test moment loss", "parameters")


@dataclass(frozen=True)
class Part:
    """What the page says of one dataset."""

    name: str
    title: str
    sentences: Sequence[str]
    """Of the verdict; the last one says what to expect."""
    doubts: Sequence[str]
    losses: list[tuple[str, ...]]
    sizes: str
    curves: str
    """The picture's address."""


def page(report: dict[str, Any], pictures: Sequence[Path]) -> str:
    """One HTML file; the first picture shows all datasets, the others one each."""
    overview, *curves = (embedded(path.read_bytes(), "png") for path in pictures)
    entries = zip(report["datasets"], curves, strict=True)
    return rendering.page(
        "fastr.studies.misfit",
        parts=[part(i, entry, curve) for i, (entry, curve) in enumerate(entries)],
        columns=LOSSES,
        overview=overview,
        settings=json.dumps(report["config"], indent=1),
        version=report["provenance"].get("fastr"),
        started=report["provenance"].get("started"),
        seconds=f"{report['seconds']:,.0f}",
    )


def part(place: int, entry: dict[str, Any], curves: str) -> Part:
    """One dataset."""
    losses = entry["test_losses"]
    parts = ", ".join(
        f"{part} {size['transitions']:,} in {size['episodes']:,}"
        for part, size in entry["split"].items()
    )
    return Part(
        name=f"dataset-{place}",
        title=entry["name"],
        sentences=entry["verdict"]["sentences"],
        doubts=entry["verdict"]["doubts"],
        losses=[
            (
                NAMES[kind],
                f"{losses[f'{kind}_nce']:.4f}",
                f"{losses[f'{kind}_moment']:.4f}",
                f"{entry['parameters'][kind]:,}",
            )
            for kind in KINDS
        ],
        sizes=f"{entry['state_dim']} state and {entry['action_dim']} action coordinates. "
        f"Transitions in episodes: {parts}.",
        curves=curves,
    )
