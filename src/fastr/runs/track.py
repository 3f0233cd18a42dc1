"""Rows sent on to TensorBoard or Weights & Biases (`--track`)."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fastr.core import UserError

Listener = Callable[[dict[str, Any]], None]
IDENTITY = ("kind", "seed", "frames")


def trackers(names: tuple[str, ...], path: Path, config: dict[str, Any]) -> list[Listener]:
    """One listener per tracker."""
    known = {"tensorboard": tensorboard, "wandb": wandb}
    return [known[name](path, config) for name in dict.fromkeys(names)]


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """Numbers of a row, named by kind and seed."""
    return {
        f"{row['kind']}/{name}/seed{row['seed']}": value
        for name, value in row.items()
        if name not in IDENTITY and isinstance(value, int | float)
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

    def listen(row: dict[str, Any]) -> None:
        run.log({"frames": row["frames"], **scalars(row)})

    return listen


def imported(module: str, tracker: str) -> Any:
    """Module of a tracker, which is not installed by default."""
    try:
        return import_module(module)
    except ImportError:
        message = f"--track {tracker} needs {module}; install it with `pip install {module}`."
        raise UserError(message) from None
