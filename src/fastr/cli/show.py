"""What all commands share: kinds of options, and results as tables or as JSON."""

import csv
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, TypeVar

import tyro
from rich.console import Console
from rich.table import Table

from fastr.core import PATIENCE_SECONDS, require, write_errors

Value = TypeVar("Value")
NO_HINT = tyro.conf.arg(help_behavior_hint="")
"""For an option whose help says what happens without it; the parser would add (default: None)."""
Maybe = Annotated[Value | None, NO_HINT]
Several = Annotated[tuple[Value, ...], NO_HINT]
Run = Annotated[
    Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="The run's directory.")
]
Task = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
Flag = tyro.conf.FlagCreatePairsOff[bool]
Json = Annotated[
    Flag, tyro.conf.arg(help="Print one JSON object on stdout and nothing else there.")
]
RESERVED: list[TextIO] = []
"""Standard output, once `reserve_stdout` keeps it for results."""


@dataclass(frozen=True)
class Watching:
    """How the training is watched; no part of the run, so every start of it may choose anew."""

    track: Several[Literal["tensorboard", "wandb"]] = ()
    """Also log to TensorBoard (into the run directory) or Weights & Biases."""
    patience: float = PATIENCE_SECONDS
    """Seconds that a simulator may be silent within one agent step, in training or evaluation,
    before the run stops with a sentence that names it (docs/survival.md)."""

    def __post_init__(self):
        require(self, "patience", low=1, high=86_400)


USUAL = Watching()


def places(metavar: str) -> Any:
    """For positional arguments, any number of them: their name in the usage line."""
    return tyro.conf.arg(metavar=f"[{metavar} ...]", help_behavior_hint="")


def reserve_stdout() -> None:
    """Keep stdout for results: what simulators and imported modules print goes to stderr."""
    RESERVED.append(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)


def print_json(result: dict[str, Any]) -> int:
    """One JSON object on stdout."""
    print(json.dumps(result), file=RESERVED[0] if RESERVED else sys.stdout, flush=True)
    return 0


def print_table(title: str, columns: tuple[str, ...], rows: list[tuple]) -> None:
    """A table on stdout; brackets and colons in names are no markup."""
    table = Table(show_header=any(columns))
    for name in columns:
        # Folded, not cut off: the names of runs may differ in their last letters alone.
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(f"{v:.1f}" if isinstance(v, float) else str(v) for v in row))
    console = Console(markup=False, emoji=False, highlight=False)
    if title:
        console.print(title, style="italic", soft_wrap=True)
    console.print(table)


def write_csv(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """One line per dictionary, under their common keys."""
    with write_errors(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
