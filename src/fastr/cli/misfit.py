"""fastr misfit: test whether the factorization fits a dataset."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import tyro

from fastr.cli.show import Flag, Maybe, places, print_json, print_table
from fastr.core import UserError
from fastr.runs import refuse_used
from fastr.studies.misfit import MisfitConfig


@dataclass(frozen=True)
class Misfit:
    """Measure whether the CP factorization fits the dynamics of a dataset of transitions."""

    config: MisfitConfig
    datasets: Annotated[tuple[str, ...], tyro.conf.Positional, places("DATASET")] = ()
    """Minari datasets, run directories (their replay), .npz or .parquet files (docs/misfit.md)."""
    out: Maybe[Path] = None
    """Directory of the report (default: misfit/DATE)."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Read, train, compare, judge."""
        from fastr.studies.misfit.report import diagnose

        if not self.datasets:
            raise UserError(
                "fastr misfit needs a DATASET, for example `fastr misfit log.npz --preset quick`."
            )
        out = self.out or Path("misfit") / datetime.now().strftime("%Y%m%d-%H%M%S")
        refuse_used(out)
        report = diagnose(self.datasets, self.config, out)
        if self.json:
            return print_json(report)
        rows = [
            (
                *(entry["name"], entry["action_dim"]),
                *(interval(entry["nce_misfit"]), interval(entry["moment_misfit"])),
                entry["verdict"]["gain"],
            )
            for entry in report["datasets"]
        ]
        columns = ("dataset", "actions", "NCE misfit (nats)", "moment misfit", "gain")
        print_table("CP misfit: CP less joint, test part, 95% intervals", columns, rows)
        for entry in report["datasets"]:
            verdict = entry["verdict"]
            doubts = [f"Doubt: {doubt}" for doubt in verdict["doubts"]]
            lines = [*verdict["sentences"], *doubts, f"Next: {verdict['next_step']}"]
            print("\n  ".join((f"\n{entry['name']}", *lines)))
        print(f"report          {out / 'report.html'}\nnumbers         {out / 'report.json'}")
        return 0


def interval(misfit: dict[str, float]) -> str:
    """A misfit with its interval."""
    return f"{misfit['value']:+.4f} [{misfit['low']:+.4f}, {misfit['high']:+.4f}]"
