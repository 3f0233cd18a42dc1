"""fastr theory: the paper's claims, run."""

import json
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro

from fastr.cli.show import Flag, places, print_json, print_table
from fastr.core import UserError, counted, require_seeds, write_errors
from fastr.runs.untrusted import bounded_bytes

Part = Literal["linearity", "ratio", "certificates", "separation", "exploration"]
RESULTS = "theory.json"
WORDS = {True: "holds", False: "DOES NOT HOLD", None: "no verdict"}


@dataclass(frozen=True)
class Theory:
    """Run the paper's theory: each claim with its numbers, as one page with plots.

    The parts: linearity (Q is linear in the feature), ratio (density or log ratio), certificates
    (class sizes and sample sizes), separation (both classes on growing n), exploration (LSVI-UCB).
    """

    names: Annotated[tuple[Part, ...], tyro.conf.Positional, places("PART")] = ()
    """Parts to run (default: all)."""
    out: Path = Path("theory")
    """Directory for index.html, its figures and tables, and all results as theory.json."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds; intervals are 95 % over these, and one seed has none."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Run the parts one after the other, then write the page."""
        require_seeds(self.seeds)
        parts = [name for name in get_args(Part) if name in self.names or not self.names]
        command = " ".join(["fastr", "theory", *parts, "--seeds", *map(str, self.seeds)])
        prepare(self.out, command)
        sections = []
        for name in parts:
            print(f"fastr theory: {name} ...", file=sys.stderr, flush=True)
            sections.append(import_module(f"fastr.studies.theory.{name}").Study(self.seeds).run())
        from fastr.studies.theory import write_sections

        page = self.out / "index.html"
        write_sections(sections, command, page)
        contents = [section.content() for section in sections]
        result = {"page": str(page), "command": command, "sections": contents}
        with write_errors(self.out):
            (self.out / RESULTS).write_text(json.dumps(result, indent=1), encoding="utf-8")
        if self.json:
            return print_json(result)
        for section in sections:
            rows = [(one.claim, one.measured, WORDS[one.holds]) for one in section.verdicts]
            print_table(section.title, ("claim", "measured", ""), rows)
        print(f"{page}: {counted(len(sections), 'part')}, with plots and tables")
        return 0


def prepare(out: Path, command: str) -> None:
    """Make the directory; raise UserError if it has files, unless from this same command."""
    file = out / RESULTS
    with write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        if not any(out.iterdir()):
            return
    try:
        theirs = json.loads(bounded_bytes(file))["command"] if file.exists() else None
    except (ValueError, TypeError, KeyError, RecursionError):
        theirs = None
    if theirs is None:
        raise UserError(
            f"{out} is not empty and has no {RESULTS} of fastr theory; choose another --out."
        )
    if theirs != command:
        raise UserError(f"{file} was made by `{theirs}`, not by `{command}`; choose another --out.")
