"""fastr misfit, transfer and theory: studies of the factorization."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro

from fastr.agents.spectral import SpectralConfig
from fastr.cli.looking import opened
from fastr.cli.show import Flag, Json, Maybe, places, print_json, print_table, write_csv
from fastr.cli.training import rows_of_all
from fastr.core import UserError, counted, require_seeds, slug, write_errors
from fastr.envs import require_imported
from fastr.envs.shifts import split
from fastr.representations.base import Keep
from fastr.runs import refuse_used
from fastr.runs.directory import RunDirectory
from fastr.runs.summary import evaluations, summary
from fastr.runs.untrusted import json_object
from fastr.studies.misfit import MisfitConfig
from fastr.studies.theory import (
    VERDICTS,
    certificates,
    exploration,
    linearity,
    separation,
    write_sections,
)
from fastr.training.config import TrainConfig, from_json

INTERVAL = "{value:+.4f} [{low:+.4f}, {high:+.4f}]"
Part = Literal["linearity", "ratio", "certificates", "separation", "exploration"]
PARTS: dict[str, Any] = {
    "linearity": linearity.Study,
    "ratio": linearity.RatioStudy,
    "certificates": certificates.Study,
    "separation": separation.Study,
    "exploration": exploration.Study,
}
RESULTS = "theory.json"


@dataclass(frozen=True)
class Misfit:
    """Measure whether the CP factorization fits the dynamics of a dataset of transitions."""

    config: MisfitConfig
    datasets: Annotated[tuple[str, ...], tyro.conf.Positional, places("DATASET")] = ()
    """Minari or LeRobot datasets, run directories (their replay), .npz or .parquet files
    (docs/misfit.md)."""
    out: Maybe[Path] = None
    """Directory of the report (default: misfit/DATE)."""
    json: Json = False

    def run(self) -> int:
        """Read, train, compare, judge."""
        from fastr.studies.misfit.report import diagnose

        if not self.datasets:
            raise UserError(
                "fastr misfit needs a DATASET, for example `fastr misfit log.npz --preset laptop`."
            )
        out = self.out or Path("misfit") / datetime.now().strftime("%Y%m%d-%H%M%S")
        refuse_used(out)
        report = diagnose(self.datasets, self.config, out)
        if self.json:
            return print_json(report)
        rows = [
            (
                *(entry["name"], entry["action_dim"]),
                *(INTERVAL.format(**entry[f"{kind}_misfit"]) for kind in ("nce", "moment")),
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


class Condition(NamedTuple):
    """One run to train: its source, its name in tables and directories, its configuration."""

    source: Path
    label: str
    config: TrainConfig


@dataclass(frozen=True)
class Transfer:
    """Adapt trained runs to a body with rewired or worn actuators (Sec. Modular Reuse).

    The kept part and the observation statistics stay fixed; everything else starts anew. OUT gets
    a run directory per condition, table.csv, moved.csv and curves.png. Repeat a stopped command to
    continue it. For the paper's figure give a FaStR run, a CTRL-SR run, and --figure.
    """

    sources: Annotated[tuple[Path, ...], tyro.conf.Positional, places("RUN")]
    """Run directories, one per method to compare."""
    shift: str
    """Actuator shifts, as after @ in a task: permutation:SEED, degradation:SEED, dead=N:SEED,
    latency=STEPS, dead-band=WIDTH, quantization=LEVELS, reverse:ACTUATOR, joined by +."""
    keep: Literal["largest", "state-factor", "encoder", "nothing"] = "largest"
    """Part to keep: the largest that depends on the state (the state factor, or a whole joint
    encoder), or nothing, which is training from scratch on the shifted body."""
    figure: Flag = False
    """Also train every source's method from scratch on the shifted body."""
    frames: Maybe[int] = None
    """Budget of each adaptation in frames, i.e. simulator steps (default: the source's)."""
    out: Maybe[Path] = None
    """Directory for everything (default: runs/transfer-TASK@SHIFT)."""
    json: Json = False

    def run(self) -> int:
        """Train one condition after the other, then compare."""
        conditions = self.conditions()
        out = self.out or Path("runs") / f"transfer-{slug(conditions[0].config.task)}"
        rows = rows_of_all({entry.label: entry.config for entry in conditions}, out)
        return self.report(conditions, rows, out)

    def conditions(self) -> list[Condition]:
        """All runs to train."""
        if not self.sources:
            example = f"fastr transfer runs/gait --shift {shlex.quote(self.shift)}"
            raise UserError(f"fastr transfer needs RUN, for example `{example}`.")
        found = []
        for path in self.sources:
            directory = RunDirectory.open(path)
            config = from_json(directory.config["train"])
            require_imported(config.task, path)
            if not isinstance(config.agent, SpectralConfig):
                raise UserError(
                    f"{path} was trained by {config.method}, which has no encoder to keep: to "
                    f"train from scratch, use `fastr train {shlex.quote(self.shifted(config))} "
                    f"--method {config.method}`."
                )
            # Its policies are played unadapted at the end: without a checkpoint, fail now.
            directory.latest()
            kept = config.agent.representation.keepable
            keep: Keep = kept if self.keep == "largest" else self.keep
            found.append(self.condition(path, config, keep))
            if self.figure and keep != "nothing":
                found.append(self.condition(path, config, "nothing"))
        if len({entry.label for entry in found}) < len(found):
            raise UserError("Two sources have the same method; give one run per method.")
        if len({split(entry.config.task)[0] for entry in found}) > 1:
            raise UserError("The sources have different tasks; give runs of one task.")
        return found

    def condition(self, path: Path, source: TrainConfig, keep: Keep) -> Condition:
        """One run: the source's configuration on the shifted body."""
        frames = source.frames if self.frames is None else self.frames
        agent = replace(source.agent, keep="nothing")
        task = self.shifted(source)
        config = replace(source, task=task, agent=agent, frames=frames, init="", data="")
        config = replace(config, init_parts="all")
        if keep != "nothing":
            agent = replace(agent, keep=keep)
            config = replace(config, init=str(path.resolve()), init_parts=keep, agent=agent)
        label = "scratch" if keep == "nothing" else f"keep-{keep}"
        return Condition(path, f"{config.method}-{label}", config)

    def shifted(self, source: TrainConfig) -> str:
        """The source's task with the shift added to those it has."""
        return f"{source.task}{'+' if '@' in source.task else '@'}{self.shift}"

    def report(self, conditions: Sequence[Condition], rows: dict[str, list], out: Path) -> int:
        """Write the tables and curves of finished runs, and print the tables."""
        from fastr.export.play import greedy_returns
        from fastr.report.page import compared_curves
        from fastr.studies.probes import changes

        task = conditions[0].config.task
        unadapted = {}
        for path in self.sources:
            trained = opened(path)
            episodes = range(trained.config.eval_episodes)
            unadapted[path] = float(greedy_returns(trained.every_seed(), task, episodes).mean())
        lines = [result_of(c, rows[c.label], unadapted[c.source]) for c in conditions]
        write_csv(out / "table.csv", lines)
        moved = [
            {"condition": c.label, "seed": seed, "what": what, "value": value}
            for c in conditions
            if c.config.init
            for (seed, what), value in changes(
                RunDirectory.open(c.source), RunDirectory.open(out / c.label)
            ).items()
        ]
        if moved:
            write_csv(out / "moved.csv", moved)
        curves = {
            f"{line['condition']}: {line['trainable_parameters']:,} trainable": [
                evaluations(rows[entry.label], seed) for seed in entry.config.seeds
            ]
            for entry, line in zip(conditions, lines, strict=True)
        }
        levels = {f"{c.config.method}, unadapted": unadapted[c.source] for c in conditions}
        compared_curves(curves, f"{task}: adaptation", out / "curves.png", levels)
        if self.json:
            return print_json({"out": str(out), "conditions": lines, "moved": moved})
        title = f"{task}: return is the mean of the last ten evaluations or fewer, without frame 0"
        columns = ("condition", *("trainable", "frozen", "source", "unadapted", "return"))
        print_table(title, (*columns, "of source"), [cells(line) for line in lines])
        means: dict[tuple[str, str], list[float]] = {}
        for entry in moved:
            means.setdefault((entry["condition"], entry["what"]), []).append(entry["value"])
        if means:
            title = "What moved, on random transitions of the shifted body (mean over seeds)"
            found = [(*key, f"{np.mean(values):.3f}") for key, values in means.items()]
            print_table(title, ("condition", "what", "value"), found)
        print(f"table  {out / 'table.csv'}\ncurves {out / 'curves.png'}")
        return 0


def returns_of(rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> tuple[Any, Any]:
    """Mean and standard deviation over seeds of the last ten evaluations or fewer.

    Frame 0 is left out, where nothing is trained yet; None without any other evaluation.
    """
    found = summary([row for row in rows if row.get("frames")], seeds)
    return tuple(found[f"last_10_evaluations_return_{kind}"] for kind in ("mean", "std"))


def result_of(
    condition: Condition, rows: Sequence[dict[str, Any]], unadapted: float
) -> dict[str, Any]:
    """One condition's parameters and returns."""
    from fastr.envs import spec
    from fastr.training.cost import kept_parameters, network_parameters

    config = condition.config
    sizes = spec(config.task, config.frame_skip)
    networks, frozen = network_parameters(config, sizes), kept_parameters(config, sizes)
    source = RunDirectory.open(condition.source)
    reference, _ = returns_of(source.rows(), from_json(source.config["train"]).seeds)
    mean, std = returns_of(rows, config.seeds)
    share = mean / reference if reference and mean is not None and reference > 0 else None
    return {
        "condition": condition.label,
        "trainable_parameters": sum(networks.values()) - frozen,
        "frozen_parameters": frozen,
        "frames": config.frames,
        "source_return": reference,
        "unadapted_return": unadapted,
        "return_mean": mean,
        "return_std": std,
        "share_of_source": share,
    }


def cells(line: dict[str, Any]) -> tuple[str, ...]:
    """A condition's result as printed; a dash where the source's return is not above zero."""
    sizes = (f"{line[f'{kind}_parameters']:,}" for kind in ("trainable", "frozen"))
    returns = (line[name] for name in ("source_return", "unadapted_return", "return_mean"))
    share = line["share_of_source"]
    shown = ("–" if value is None else f"{value:.1f}" for value in returns)
    return (line["condition"], *sizes, *shown, "–" if share is None else f"{share:.0%}")


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
    json: Json = False

    def run(self) -> int:
        """Run the parts one after the other, then write the page."""
        require_seeds(self.seeds)
        parts = [name for name in PARTS if name in self.names or not self.names]
        command = " ".join(["fastr", "theory", *parts, "--seeds", *map(str, self.seeds)])
        prepare(self.out, command)
        sections = []
        for name in parts:
            print(f"fastr theory: {name} ...", file=sys.stderr, flush=True)
            sections.append(PARTS[name](self.seeds).run())
        page = self.out / "index.html"
        write_sections(sections, command, page)
        contents = [section.content() for section in sections]
        result = {"page": str(page), "command": command, "sections": contents}
        with write_errors(self.out):
            (self.out / RESULTS).write_text(json.dumps(result, indent=1), encoding="utf-8")
        if self.json:
            return print_json(result)
        for section in sections:
            rows = [(one.claim, one.measured, VERDICTS[one.holds].text) for one in section.verdicts]
            print_table(section.title, ("claim", "measured", ""), rows)
        print(f"{page}: {counted(len(sections), 'part')}, with plots and tables")
        return 0


def prepare(out: Path, command: str) -> None:
    """Make the directory; raise UserError if it has files, unless from this same command."""
    with write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        used = any(out.iterdir())
    try:
        same = json_object(out / RESULTS).get("command") == command
    except UserError:
        same = False
    if used and not same:
        raise UserError(f"{out} has files, and not those of `{command}`; choose another --out.")
