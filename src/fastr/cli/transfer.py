"""fastr transfer: keep the body, relearn the hands."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro

from fastr.agents.spectral import SpectralConfig
from fastr.cli.looking import opened
from fastr.cli.show import Flag, Maybe, places, print_json, print_table, write_csv
from fastr.cli.training import rows_of_all
from fastr.core import UserError
from fastr.envs import require_imported
from fastr.envs.shifts import split
from fastr.representations.base import Keep
from fastr.runs.directory import RunDirectory
from fastr.studies.units import slug
from fastr.training.config import TrainConfig, from_json

Sources = Annotated[tuple[Path, ...], tyro.conf.Positional, places("RUN")]
HELD_OUT = 512
"""Transitions on the shifted body that representations are compared on."""


class Condition(NamedTuple):
    """One curve of the figure."""

    source: Path
    keep: Keep
    config: TrainConfig

    @property
    def label(self) -> str:
        """Its name in tables, pictures and directories."""
        kept = "scratch" if self.keep == "nothing" else f"keep-{self.keep}"
        return f"{self.config.method}-{kept}"


@dataclass(frozen=True)
class Transfer:
    """Adapt trained runs to a body whose actuators were rewired or worn (Sec. Modular Reuse).

    What is kept never moves, nor do the observation statistics; all else starts anew. OUT gets a
    run directory per condition, table.csv, moved.csv and curves.png; the same command goes on
    where it was stopped. The paper's figure: a FaStR run, a CTRL-SR run, and --figure.
    """

    sources: Sources
    """Run directories; one for each method to compare."""
    shift: str
    """Actuator shifts, as behind a task's @: permutation:SEED, degradation:SEED, dead=N:SEED,
    latency=STEPS, dead-band=WIDTH, quantization=LEVELS, joined by +."""
    keep: Literal["largest", "state-factor", "encoder", "nothing"] = "largest"
    """What to take over: the largest part that depends on the state (the state factor, or a joint
    encoder as a whole), or nothing, which is training from scratch on the shifted body."""
    figure: Flag = False
    """Also train every source's method from scratch on the shifted body."""
    frames: Maybe[int] = None
    """Budget of each adaptation in frames, i.e. simulator steps (default: the source's)."""
    out: Maybe[Path] = None
    """Directory for everything (default: runs/transfer-TASK@SHIFT)."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Zero-shot returns, one condition after the other, then the comparison."""
        conditions = self.conditions()
        out = self.out or Path("runs") / f"transfer-{slug(conditions[0].config.task)}"
        rows = rows_of_all({entry.label: entry.config for entry in conditions}, out)
        return self.report(conditions, rows, out)

    def conditions(self) -> list[Condition]:
        """Every run to make."""
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
                    f"{path} was trained by {config.method}, which has no encoder to keep: from "
                    f"scratch it is `fastr train {shlex.quote(self.shifted(config))} "
                    f"--method {config.method}`."
                )
            # In the end its policies are played unadapted, also beside one from scratch.
            directory.latest()
            kept = config.agent.representation.keepable
            keep: Keep = kept if self.keep == "largest" else self.keep
            found.append(self.condition(path, config, keep))
            if self.figure and keep != "nothing":
                found.append(self.condition(path, config, "nothing"))
        if len({entry.label for entry in found}) < len(found):
            raise UserError("Two sources are of the same method; compare one run of each.")
        if len({split(entry.config.task)[0] for entry in found}) > 1:
            raise UserError("The sources are of different tasks; compare runs of one.")
        return found

    def condition(self, path: Path, source: TrainConfig, keep: Keep) -> Condition:
        """One run: the source's configuration on the shifted body."""
        agent = replace(source.agent, keep=keep)
        frames = source.frames if self.frames is None else self.frames
        origin = "" if keep == "nothing" else str(path.resolve())
        task = self.shifted(source)
        config = replace(source, task=task, agent=agent, frames=frames, source=origin)
        return Condition(path, keep, config)

    def shifted(self, source: TrainConfig) -> str:
        """The source's task with the shift behind those it has."""
        return f"{source.task}{'+' if '@' in source.task else '@'}{self.shift}"

    def report(self, conditions: Sequence[Condition], rows: dict[str, list], out: Path) -> int:
        """Table, curves and what moved."""
        from fastr.report.plots import compared_curves
        from fastr.runs.summary import evaluations

        unadapted = {path: zero_shot(path, conditions[0].config.task) for path in self.sources}
        lines = [
            line(condition, rows[condition.label], unadapted[condition.source])
            for condition in conditions
        ]
        write_csv(out / "table.csv", lines)
        changes = [
            entry
            for condition in conditions
            if condition.keep != "nothing"
            for entry in what_moved(condition, out / condition.label)
        ]
        if changes:
            write_csv(out / "moved.csv", changes)
        curves = {
            in_legend(said): [evaluations(rows[entry.label], seed) for seed in entry.config.seeds]
            for entry, said in zip(conditions, lines, strict=True)
        }
        levels = {f"{c.config.method}, unadapted": unadapted[c.source] for c in conditions}
        title = f"{conditions[0].config.task}: adaptation"
        compared_curves(curves, title, out / "curves.png", levels)
        if self.json:
            return print_json({"out": str(out), "conditions": lines, "moved": changes})
        show(lines, changes, conditions[0].config.task)
        print(f"table  {out / 'table.csv'}\ncurves {out / 'curves.png'}")
        return 0


def in_legend(said: dict[str, Any]) -> str:
    """A condition with its cost, the parameters that are trained (Figure transfer)."""
    return f"{said['condition']}: {said['trainable_parameters']:,} trainable"


def zero_shot(path: Path, task: str) -> float:
    """The mean return of a run's policies on the shifted body, before any adaptation."""
    from fastr.export.play import greedy_returns

    trained = opened(path)
    episodes = range(trained.config.eval_episodes)
    return float(greedy_returns(trained.every_seed(), task, episodes).mean())


def line(condition: Condition, rows: Sequence[dict[str, Any]], unadapted: float) -> dict[str, Any]:
    """One condition's parameters and returns."""
    from fastr.envs import spec
    from fastr.runs.summary import summary
    from fastr.training.cost import kept_parameters, network_parameters

    config = condition.config
    sizes = spec(config.task, config.frame_skip)
    networks, frozen = network_parameters(config, sizes), kept_parameters(config, sizes)
    source = RunDirectory.open(condition.source)
    before = summary(source.rows(), from_json(source.config["train"]).seeds)
    after = summary(rows, config.seeds)
    reference = before["last_10_evaluations_return_mean"]
    return {
        "condition": condition.label,
        "trainable_parameters": sum(networks.values()) - frozen,
        "frozen_parameters": frozen,
        "frames": config.frames,
        "source_return": reference,
        "unadapted_return": unadapted,
        "return_mean": after["last_10_evaluations_return_mean"],
        "return_std": after["last_10_evaluations_return_std"],
        "share_of_source": (
            after["last_10_evaluations_return_mean"] / reference if reference > 0 else None
        ),
    }


def what_moved(condition: Condition, run: Path) -> list[dict[str, Any]]:
    """How far each component's features are from the source's, seed by seed."""
    from fastr.studies.coverage import random_rows
    from fastr.studies.transfer import moved, of_seed
    from fastr.training.state import saved_cohort

    config = condition.config
    rows = random_rows(config.task, config.frame_skip, HELD_OUT, 0)
    old, new = RunDirectory.open(condition.source), RunDirectory.open(run)
    origin = from_json(old.config["train"])
    before, _ = saved_cohort(origin, old.latest())
    after, _ = saved_cohort(config, new.latest())
    found = []
    for place, seed in enumerate(config.seeds):
        source = of_seed(before, origin.seeds.index(seed))
        change = moved(source, of_seed(after, place), rows)
        values = {f"CKA of the {name}": value for name, value in change.similarity.items()}
        values["ranking loss, unadapted"] = change.source_loss
        values["ranking loss, adapted"] = change.adapted_loss
        found += [
            {"condition": condition.label, "seed": seed, "what": what, "value": value}
            for what, value in values.items()
        ]
    return found


def show(lines: Sequence[dict[str, Any]], changes: Sequence[dict[str, Any]], task: str) -> None:
    """Both tables on stdout."""
    print_table(
        f"{task}: return is the mean of the last evaluations, ten at most",
        ("condition", "trainable", "frozen", "source", "unadapted", "return", "of source"),
        [
            (
                entry["condition"],
                f"{entry['trainable_parameters']:,}",
                f"{entry['frozen_parameters']:,}",
                entry["source_return"],
                entry["unadapted_return"],
                entry["return_mean"],
                "" if entry["share_of_source"] is None else f"{entry['share_of_source']:.0%}",
            )
            for entry in lines
        ],
    )
    means: dict[tuple[str, str], list[float]] = {}
    for entry in changes:
        means.setdefault((entry["condition"], entry["what"]), []).append(entry["value"])
    if means:
        print_table(
            f"What moved, on {HELD_OUT} random transitions of the shifted body (mean over seeds)",
            ("condition", "what", "value"),
            [(*key, f"{np.mean(values):.3f}") for key, values in means.items()],
        )
