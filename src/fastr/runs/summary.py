"""Final numbers of a run, from its rows; and rows sent on to TensorBoard or W&B (`--track`)."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fastr.core import UserError
from fastr.runs.untrusted import number

Listener = Callable[[dict[str, Any]], None]
LAST = 10
"""Evaluations averaged for the final number (App. Shared Training Protocol)."""


def evaluations(rows: Sequence[dict[str, Any]], seed: int) -> list[tuple[int, float]]:
    """(frames, mean return) of one seed's evaluations, in order."""
    return sorted(
        (row["frames"], float(row["return"]))
        for row in rows
        if (row.get("kind"), row.get("seed")) == ("evaluation", seed)
        and type(row.get("frames")) is int
        and number(row.get("return"))
    )


def curve_csv(rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> str:
    """Evaluations as lines of frames, seed, return."""
    lines = [
        f"{frames},{seed},{value}" for seed in seeds for frames, value in evaluations(rows, seed)
    ]
    return "\n".join(["frames,seed,return", *lines, ""])


def summary(rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Returns of each seed, and their mean and standard deviation (ddof 0) over seeds."""
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
    result: dict[str, Any] = {"seconds": seconds, "seeds": per_seed}
    for name in ("last_evaluation_return", "last_10_evaluations_return"):
        values = [entry[name] for entry in per_seed if entry[name] is not None]
        result[f"{name}_mean"] = float(np.mean(values)) if values else None
        result[f"{name}_std"] = float(np.std(values)) if values else None
    return result


def trackers(names: tuple[str, ...], path: Path, config: dict[str, Any]) -> list[Listener]:
    """One listener per tracker."""
    known = {"tensorboard": tensorboard, "wandb": wandb}
    return [known[name](path, config) for name in dict.fromkeys(names)]


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """Numbers of a row, named by kind and seed."""
    return {
        f"{row['kind']}/{name}/seed{row['seed']}": value
        for name, value in row.items()
        if name not in ("kind", "seed", "frames") and isinstance(value, int | float)
    }


def tensorboard(path: Path, _: dict[str, Any]) -> Listener:
    """Event files in the run directory, over frames."""
    writer = imported("tensorboardX", "tensorboard").SummaryWriter(str(path / "tensorboard"))

    def listen(row: dict[str, Any]) -> None:
        for name, value in scalars(row).items():
            writer.add_scalar(name, value, row["frames"])

    return listen


def wandb(path: Path, config: dict[str, Any]) -> Listener:
    """A Weights & Biases run, over frames."""
    run = imported("wandb", "wandb").init(project="fastr", name=path.name, config=config)
    return lambda row: run.log({"frames": row["frames"], **scalars(row)})


def imported(module: str, tracker: str) -> Any:
    """Module of a tracker, which is not installed by default."""
    try:
        return import_module(module)
    except ImportError:
        message = f"--track {tracker} needs {module}; install it with `pip install {module}`."
        raise UserError(message) from None
