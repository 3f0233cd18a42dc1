"""Final numbers of a run, from its rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastr.runs.untrusted import number

LAST = 10
"""Evaluations averaged for the final number (App. Shared Training Protocol)."""


def evaluations(rows: Sequence[dict[str, Any]], seed: int) -> list[tuple[int, float]]:
    """(frames, mean return) of one seed's evaluations, in order."""
    return sorted(
        (row["frames"], float(row["return"]))
        for row in rows
        if row.get("kind") == "evaluation" and row.get("seed") == seed and sound(row)
    )


def sound(row: dict[str, Any]) -> bool:
    """Whether an evaluation has its frames and a finite return."""
    return type(row.get("frames")) is int and number(row.get("return"))


def curve_csv(rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> str:
    """Evaluations as lines of frames, seed, return."""
    lines = [
        f"{frames},{seed},{value}" for seed in seeds for frames, value in evaluations(rows, seed)
    ]
    return "\n".join(["frames,seed,return", *lines, ""])


def summary(rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Returns of each seed and over seeds; units are in the names."""
    per_seed = []
    for seed in seeds:
        curve = evaluations(rows, seed)
        returns = [value for _, value in curve]
        per_seed.append(
            {
                "seed": seed,
                "frames": curve[-1][0] if curve else 0,
                "evaluations": len(curve),
                "last_evaluation_return": returns[-1] if returns else None,
                "last_10_evaluations_return": float(np.mean(returns[-LAST:])) if returns else None,
            }
        )
    known = (row["seconds"] for row in rows if number(row.get("seconds")))
    seconds = max(map(float, known), default=0.0)
    return {"seconds": seconds, "seeds": per_seed, **over_seeds(per_seed)}


def over_seeds(per_seed: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Mean and standard deviation (ddof 0) of each number over the seeds that have it."""
    result: dict[str, float | None] = {}
    for name in ("last_evaluation_return", "last_10_evaluations_return"):
        values = [entry[name] for entry in per_seed if entry[name] is not None]
        result[f"{name}_mean"] = float(np.mean(values)) if values else None
        result[f"{name}_std"] = float(np.std(values)) if values else None
    return result
