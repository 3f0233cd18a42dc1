"""fastr theory: the paper's claims, run."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fastr.cli.show import Flag, places, print_json, print_table
from fastr.core import UserError, counted, nearest, require_seeds, write_errors
from fastr.runs.untrusted import bounded_bytes

if TYPE_CHECKING:
    from fastr.studies.theory.report import Section

NAMES = ("linearity", "ratio", "certificates", "separation", "exploration")
RESULTS = "theory.json"
WORDS = {True: "holds", False: "DOES NOT HOLD", None: "no verdict"}


@dataclass(frozen=True)
class Theory:
    """Run the paper's theory: each claim with its numbers, as one page with plots.

    The parts: linearity (Q is linear in the feature), ratio (density or log ratio), certificates
    (class sizes and sample sizes), separation (both classes on growing n), exploration (LSVI-UCB).
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional, places("PART")] = ()
    """Parts to run (default: all)."""
    out: Path = Path("theory")
    """Directory for index.html, the plots' numbers as CSV, and all results as theory.json."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds; intervals are 95 % over these, and one seed has none."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Run the parts one after the other, then write the page."""
        self.check()
        # Before the work, not after it.
        with write_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        sections = self.measured()
        from fastr.studies.theory.page import write_page

        with write_errors(self.out):
            page = write_page(sections, self.command, self.out)
            result = {"page": str(page), "command": self.command}
            parts = [asdict(section) for section in sections]
            text = json.dumps(result | {"sections": parts}, indent=1)
            (self.out / RESULTS).write_text(text, encoding="utf-8")
        if self.json:
            return print_json(result | {"sections": parts})
        for section in sections:
            print_verdicts(section)
        print(f"{page}: {counted(len(sections), 'part')}, with plots and tables")
        return 0

    @property
    def command(self) -> str:
        """The command that makes the same numbers again."""
        words = ["fastr", "theory", *self.chosen, "--seeds", *map(str, self.seeds)]
        return " ".join(words)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The parts to run, in the order of the paper."""
        return tuple(name for name in NAMES if name in self.names or not self.names)

    def check(self) -> None:
        """Raise UserError on what cannot be run."""
        for name in self.names:
            if name not in NAMES:
                raise UserError(
                    f"{name} is not a part of the theory.{nearest(name, NAMES)} "
                    f"The parts are {', '.join(NAMES)}."
                )
        require_seeds(self.seeds)
        taken = next((p for p in (self.out, *self.out.parents) if p.exists()), None)
        if taken is not None and not taken.is_dir():
            raise UserError(f"--out {self.out} is not possible: {taken} is a file.")
        with write_errors(self.out):
            if self.out.is_dir() and any(self.out.iterdir()):
                self.refuse_other()

    def refuse_other(self) -> None:
        """Raise UserError unless what lies in a used --out was made by this same command."""
        file = self.out / RESULTS
        if not file.exists():
            raise UserError(
                f"{self.out} is not empty and holds no {RESULTS}, so it is not this command's; "
                "choose another --out."
            )
        try:
            theirs = json.loads(bounded_bytes(file))["command"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(
                f"{file} is not a result of fastr theory; choose another --out."
            ) from error
        if theirs != self.command:
            raise UserError(
                f"{file} was made by `{theirs}`, not by `{self.command}`; choose another --out."
            )

    def measured(self) -> list["Section"]:
        """The chosen parts' sections, with a bar on a terminal and lines elsewhere."""
        from fastr.studies.theory.catalogue import STUDIES, WEIGHTS

        console = Console(file=sys.stderr)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        sections = []
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=sum(WEIGHTS[name] for name in self.chosen))
            for name in self.chosen:
                if not console.is_terminal:
                    print(f"fastr theory: {name} ...", file=sys.stderr, flush=True)
                done = sum(WEIGHTS[section.name] for section in sections)
                bar.update(task, description=name, completed=done)
                report = share_of(bar, task, done, WEIGHTS[name])
                sections.append(STUDIES[name](self.seeds).run(report))
        return sections


def share_of(bar: Progress, task: Any, done: int, weight: int) -> Callable[[float], None]:
    """Progress of one part as progress of the whole."""
    return lambda share: bar.update(task, completed=done + weight * share)


def print_verdicts(section: "Section") -> None:
    """A part's claims as a table on stdout."""
    rows = [(v.claim, v.measured, WORDS[v.holds]) for v in section.verdicts]
    print_table(section.title, ("claim", "measured", ""), rows)
