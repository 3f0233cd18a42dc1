"""What all commands share: options of one kind, and results for people or for programs."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from rich.console import Console
from rich.table import Table

from fastr.core import write_errors
from fastr.runs.letters import as_printed, print_result

Value = TypeVar("Value")
SAID = tyro.conf.arg(help_behavior_hint="")
"""An option whose help says in words what holds without it: the parser's default would be None."""
Maybe = Annotated[Value | None, SAID]
Several = Annotated[tuple[Value, ...], SAID]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Task = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
Flag = tyro.conf.FlagCreatePairsOff[bool]


def places(metavar: str) -> Any:
    """For what is typed without a name, any number of it: what the usage line calls each."""
    return tyro.conf.arg(metavar=f"[{metavar} ...]", help_behavior_hint="")


def print_json(result: dict[str, Any]) -> int:
    """One JSON object on stdout."""
    print_result(json.dumps(result))
    return 0


def print_table(title: str, columns: tuple[str, ...], rows: list[tuple]) -> None:
    """A table on stdout, of text alone: a name in brackets or colons is no markup."""
    head, *lines = (
        [as_printed(f"{v:.1f}" if isinstance(v, float) else str(v)) for v in row]
        for row in [columns, *rows]
    )
    table = Table(show_header=any(columns))
    for name in head:
        # Not cut off where the terminal is narrow: runs may differ in their last letters alone.
        table.add_column(name, overflow="fold")
    for line in lines:
        table.add_row(*line)
    console = Console(markup=False, emoji=False, highlight=False)
    if title:
        console.print(as_printed(title), style="italic", soft_wrap=True)
    console.print(table)


def mib(size: int) -> str:
    """Bytes for people."""
    return f"{size / 2**20:,.0f} MiB"


def write_csv(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """One line per dictionary, under their common keys."""
    with write_errors(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
