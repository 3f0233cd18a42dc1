"""fastr theory: the paper's claims, run."""

import json
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.progress import Progress

from fastr.cli.show import Flag, places, print_json, print_table
from fastr.core import UserError, counted, nearest, require_seeds, write_errors
from fastr.runs.untrusted import bounded_bytes

if TYPE_CHECKING:
    from fastr.studies.theory.page import Section

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
    """Directory for index.html, its figures and tables, and all results as theory.json."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds; intervals are 95 % over these, and one seed has none."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Run the parts one after the other, then write the page."""
        self.check()
        sections = self.measured()
        from fastr.studies.theory.page import write_sections

        page = self.out / "index.html"
        write_sections(sections, self.command, page)
        parts = [asdict(section) for section in sections]
        result = {"page": str(page), "command": self.command, "sections": parts}
        with write_errors(self.out):
            (self.out / RESULTS).write_text(json.dumps(result, indent=1), encoding="utf-8")
        if self.json:
            return print_json(result)
        for section in sections:
            rows = [(one.claim, one.measured, WORDS[one.holds]) for one in section.verdicts]
            print_table(section.title, ("claim", "measured", ""), rows)
        print(f"{page}: {counted(len(sections), 'part')}, with plots and tables")
        return 0

    @property
    def command(self) -> str:
        """The command that reproduces the numbers."""
        words = ["fastr", "theory", *self.chosen, "--seeds", *map(str, self.seeds)]
        return " ".join(words)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The parts to run, in the order of the paper."""
        return tuple(name for name in NAMES if name in self.names or not self.names)

    def check(self) -> None:
        """Raise UserError for unknown parts, bad seeds, or an --out that cannot be used."""
        for name in self.names:
            if name not in NAMES:
                raise UserError(
                    f"{name} is not a part of the theory.{nearest(name, NAMES)} "
                    f"The parts are {', '.join(NAMES)}."
                )
        require_seeds(self.seeds)
        with write_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            if any(self.out.iterdir()):
                self.refuse_other()

    def refuse_other(self) -> None:
        """Raise UserError unless the files in --out come from this same command."""
        file = self.out / RESULTS
        if not file.exists():
            raise UserError(
                f"{self.out} is not empty and has no {RESULTS} of fastr theory; "
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
        """The chosen parts' sections, with a bar for each on a terminal and lines elsewhere."""
        console = Console(file=sys.stderr)
        sections = []
        with Progress(console=console, disable=not console.is_terminal) as bars:
            for name in self.chosen:
                if not console.is_terminal:
                    print(f"fastr theory: {name} ...", file=sys.stderr, flush=True)
                bar = bars.add_task(name, total=1.0)
                study = import_module(f"fastr.studies.theory.{name}").Study(self.seeds)
                sections.append(study.run(lambda share, bar=bar: bars.update(bar, completed=share)))
        return sections
