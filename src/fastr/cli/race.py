"""fastr bench race: what fastr and other packages learn in the same processor time."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fastr.cli.show import Json, Several, print_json, print_table
from fastr.core import UserError, require_seeds
from fastr.training.progress import duration, say


@dataclass(frozen=True)
class Race:
    """Train fastr and other packages in turns, one core each; compare returns at equal times.

    Other packages need `pip install 'fastr-rl[race]'`.
    """

    tasks: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TASKS")]
    """Tasks of the DM Control Suite."""
    against: Several[str] = ("sbx-crossq", "sbx-sac", "sb3-sac", "td3")
    """Others than fastr: sbx-crossq, sbx-sac, sbx-td3, sb3-sac, sb3-td3, or methods of fastr."""
    seeds: Several[int] = (0, 1, 2, 3, 4)
    """Seeds of every program on every task."""
    marks: Several[int] = (60, 120, 300, 600)
    """Processor seconds at which returns are compared; the last one ends a training."""
    out: Path = Path("race")
    """Directory for laps.csv, standings and figures; the same command goes on where it ended."""
    json: Json = False

    def run(self) -> int:
        """Race, then write the standings."""
        from fastr.studies.race import entered, race, require_installed, write_results

        require_seeds(self.seeds)
        if not self.tasks or min(self.marks) < 1:
            raise UserError("fastr bench race needs tasks, and --marks of at least one second.")
        programs = tuple(dict.fromkeys(("fastr", *self.against)))
        for program in programs:
            require_installed(program)
        trainings = len(entered(self.tasks, programs, self.seeds))
        seconds = float(trainings * max(self.marks))
        say(f"{trainings} trainings, {duration(seconds)} of processor time without evaluations")
        laps = race(self.tasks, programs, self.seeds, self.marks, self.out, say)
        table = write_results(laps, self.marks, self.out)
        if self.json:
            return print_json({"marks": self.marks, "laps": [lap._asdict() for lap in laps]})
        rows = [tuple(one.text for one in row) for row in table.cells]
        print_table(table.title, tuple(table.columns), rows)
        print(f"results in {self.out}")
        return 0
