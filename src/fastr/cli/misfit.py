"""fastr misfit: test whether the factorization fits a dataset."""

import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro

from fastr.cli.show import Flag, Maybe, places, print_json, print_table
from fastr.core import UserError
from fastr.runs import refuse_used
from fastr.studies.misfit.config import MisfitConfig


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
        print_misfits(report)
        print(f"report          {out / 'report.html'}")
        print(f"numbers         {out / 'report.json'}")
        return 0


def print_misfits(report: dict[str, Any]) -> None:
    """Print a table and the verdicts."""
    rows = []
    for entry in report["datasets"]:
        intervals = [
            f"{m['value']:+.4f} [{m['low']:+.4f}, {m['high']:+.4f}]"
            for m in (entry["nce_misfit"], entry["moment_misfit"])
        ]
        rows.append((entry["name"], entry["action_dim"], *intervals, entry["verdict"]["gain"]))
    columns = ("dataset", "actions", "NCE misfit (nats)", "moment misfit", "gain")
    print_table("CP misfit: CP less joint, test part, 95% intervals", columns, rows)
    for entry in report["datasets"]:
        verdict = entry["verdict"]
        doubts = [f"Doubt: {doubt}" for doubt in verdict["doubts"]]
        lines = [*verdict["sentences"], *doubts, f"Next: {verdict['next_step']}"]
        print("\n  ".join((f"\n{entry['name']}", *lines)))
    print(f"\nit took {report['seconds']:,.0f} s", file=sys.stderr)
