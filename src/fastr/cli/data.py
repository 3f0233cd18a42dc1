"""fastr misfit and fastr misfit-figure: what transitions say about the factorization."""

import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro

from fastr.cli.show import Flag, Maybe, places, print_json, print_table
from fastr.core import UserError, counted, write_errors
from fastr.runs import made, refuse_used
from fastr.studies.misfit.config import MisfitConfig

PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Misfit:
    """Whether the CP factorization fits the dynamics behind a log of transitions."""

    config: MisfitConfig
    datasets: Annotated[tuple[str, ...], tyro.conf.Positional, places("DATASET")] = ()
    """Minari datasets, run directories (their replay), .npz or .parquet files (docs/misfit.md)."""
    out: Maybe[Path] = None
    """Directory of the report (default: misfit/DATE)."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Read, train, compare, judge."""
        from fastr.studies.misfit.diagnose import diagnose

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
    """A table and the verdicts."""
    from fastr.studies.misfit.report import said

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
        print(f"\n{entry['name']}")
        for sentence in said(entry["verdict"]):
            print(f"  {sentence}")
    print(f"\nit took {report['seconds']:,.0f} s", file=sys.stderr)


@dataclass(frozen=True)
class MisfitFigure:
    """Misfit against return gain, one marker per dataset, from finished reports."""

    reports: Annotated[tuple[Path, ...], tyro.conf.Positional, places("REPORT")]
    """Reports of fastr misfit: directories or report.json files."""
    returns: tuple[Path, ...]
    """Returns of both methods: CSV files (task, method, mean; or task, method, seed, frames,
    return) or run directories."""
    out: Path = Path("misfit.png")
    """Picture to write (.png, .svg or .pdf); the numbers go beside it as .csv."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Read, draw, say what is missing."""
        from fastr.report.gains import returns_of
        from fastr.report.scatter import draw, missing, points, write_table

        require_picture(self.out)
        found = points(self.reports, returns_of(self.returns))
        with made(self.out.parent), write_errors(self.out):
            draw(found, self.out)
            write_table(found, self.out.with_suffix(".csv"))
        if self.json:
            table = [point._asdict() for point in found]
            return print_json({"points": table, "missing": missing(found)})
        drawn = sum(point.gain is not None for point in found)
        print(f"{self.out}: {counted(drawn, 'marker')}")
        for line in missing(found):
            print(f"  {line}")
        return 0


def require_picture(out: Path) -> None:
    """Raise UserError unless a picture can have this name."""
    if out.suffix.lower() not in PICTURES:
        raise UserError(f"--out {out} must end in .png, .svg or .pdf.")
    if out.is_dir():
        raise UserError(f"--out {out} is a directory; name a picture, such as {out}/misfit.png.")
