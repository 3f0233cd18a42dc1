"""fastr collect and fastr misfit: transitions, and what they say."""

import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import tyro

from fastr.cli.show import Flag, Maybe, Several, places, print_json, print_table
from fastr.core import UserError, counted, require, require_seeds
from fastr.runs import refuse_used
from fastr.studies.misfit.config import MisfitConfig

TRANSITIONS = 100_000
"""Played unless another number is asked for."""


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
class Collect:
    """Write a dataset of transitions in Minari's format, with its provenance."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """A run directory, or a task."""
    out: Path
    """The dataset's directory."""
    policy: Maybe[Literal["replay", "greedy", "exploring", "random"]] = None
    """Whose transitions: those of the run's replay (default for a run), of its greedy or exploring
    policy at the newest checkpoint, or of uniformly random actions (default for a task)."""
    transitions: Maybe[int] = None
    """How many to play, over all seeds together (default 100000); a replay is written whole."""
    seeds: Several[int] = ()
    """Seeds to play with, one simulator each (default: the run's, or 0 for a task)."""
    frame_skip: Maybe[int] = None
    """Frames each action is held for on a task (default 2); a run has its own."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Play or copy."""
        if self.transitions is not None:
            require(self, "transitions", low=1)
        if self.seeds:
            require_seeds(self.seeds)
        refuse_used(self.out)
        # The name of a task has a slash only behind a colon: gym:Adroit/Door-v1.
        is_path = "/" in self.source.partition(":")[0] or Path(self.source).exists()
        result = self.from_run() if is_path else self.from_task()
        if self.json:
            return print_json(result)
        print(
            f"{result['dataset']}: {counted(result['transitions'], 'transition')} in "
            f"{counted(result['episodes'], 'episode')}; next, "
            f"`fastr misfit {quote(result['dataset'])}`"
        )
        return 0

    def from_run(self) -> dict[str, Any]:
        """From a run directory."""
        from fastr.data.collect import from_replay, from_run

        if self.frame_skip is not None:
            raise UserError("--frame-skip is for tasks; a run is played with its own.")
        if self.policy in (None, "replay"):
            if self.transitions is not None or self.seeds:
                raise UserError(
                    "A replay is written whole: leave out --transitions and --seeds, or limit the "
                    "diagnosis with `fastr misfit --limit`."
                )
            return from_replay(Path(self.source), self.out)
        return from_run(
            Path(self.source), self.policy, self.seeds, self.transitions or TRANSITIONS, self.out
        )

    def from_task(self) -> dict[str, Any]:
        """From a task's simulator."""
        from fastr.data.collect import from_task
        from fastr.envs import spec

        if self.policy not in (None, "random"):
            raise UserError(
                f"--policy {self.policy} needs a run directory, and {self.source} is none."
            )
        frame_skip = 2 if self.frame_skip is None else self.frame_skip
        spec(self.source, frame_skip)
        return from_task(
            self.source, frame_skip, self.seeds or (0,), self.transitions or TRANSITIONS, self.out
        )
