"""Everything to report on under the given paths: runs, results, diagnoses, tables."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastr.core import UserError, counted
from fastr.envs.names import respelled
from fastr.report.scatter import COLUMNS, report_entries
from fastr.report.series import Origin, Series
from fastr.report.sidecar import Sidecar, read_sidecar, sidecar_path
from fastr.report.tables import (
    Evaluations,
    csv_evaluations,
    frame_number,
    read_text,
    row_evaluations,
    table_lines,
)
from fastr.report.text import shown
from fastr.runs.directory import CONFIG, RunDirectory, parsed_row
from fastr.studies.misfit.report import REPORT

COVERAGE = ("method", "batch_size", "dimension", "bound", "rank", "effective")
ABLATION = ("method", "parameters", "multiply_adds_per_update", "nce_dimension", "return_mean")
TRANSFER = ("condition", "trainable_parameters", "frozen_parameters", "unadapted_return")
MOVED = ("condition", "seed", "what", "value")
RESULTS = (".csv", ".jsonl")
MADE_BY = "report.txt"
"""Lies in every report's folder: another report may take its place, and none reads it."""
OWN_TABLES = ("table.csv", "moved.csv")
"""Left by fastr ablation and fastr transfer; their kind is told by their columns."""


@dataclass
class Found:
    """What lies under the paths, and what could not be read there."""

    series: list[Series] = field(default_factory=list)
    coverage: list[tuple[Origin, str, list[dict[str, Any]]]] = field(default_factory=list)
    """Origin, task and lines of each file."""
    misfits: list[Path] = field(default_factory=list)
    ablations: dict[Path, list[dict[str, str]]] = field(default_factory=dict)
    transfers: dict[Path, list[dict[str, str]]] = field(default_factory=dict)
    moved: dict[Path, list[dict[str, str]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """What was found and not read, with the reason."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to report on."""
        tables = self.ablations or self.transfers or self.moved
        return not (self.series or self.coverage or self.misfits or tables)


def read(paths: Sequence[Path]) -> Found:
    """Everything under these paths; UserError if one of them does not exist or holds nothing."""
    found, seen = Found(), set()
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        inside = list(entries(path))
        if not inside:
            raise UserError(f"{path} holds no run, no results with a sidecar and no diagnosis.")
        for one in inside:
            if one.resolve() in seen:
                continue
            seen.add(one.resolve())
            try:
                take(one, found)
            except (UserError, PermissionError) as error:
                if one == path:
                    raise
                found.left_out.append(shown(error, 600))
    return found


def entries(path: Path) -> Iterator[Path]:
    """Run directories and files to read, in order; nothing inside a run is one."""
    if not path.is_dir() or (path / CONFIG).exists():
        yield path
        return
    for folder, folders, files in os.walk(path):
        here = Path(folder)
        if MADE_BY in files:
            folders[:] = []
            continue
        ends = [name for name in folders if ends_here(here / name)]
        yield from (here / name for name in sorted(ends))
        folders[:] = sorted(set(folders) - set(ends))
        yield from (here / name for name in sorted(files) if to_read(here / name, files))


def ends_here(folder: Path) -> bool:
    """Whether a folder is a run; or a link or closed, so that nothing can be found in it."""
    try:
        return (folder / CONFIG).exists() or folder.is_symlink() or not os.access(folder, os.R_OK)
    except PermissionError:
        return True


def to_read(file: Path, beside: Collection[str]) -> bool:
    """Whether a file may hold results; of the tables beside a diagnosis, those with a sidecar."""
    own_sidecar = {Path(REPORT).with_suffix(kind).name for kind in RESULTS}
    diagnosed = REPORT in beside and not own_sidecar & set(beside)
    if file.suffix not in RESULTS:
        return file.name == REPORT and diagnosed
    return sidecar_path(file).exists() or (file.suffix == ".csv" and not diagnosed)


def take(path: Path, found: Found) -> None:
    """Read one run directory or file."""
    if path.is_dir():
        if path.is_symlink() and not (path / CONFIG).exists():
            raise UserError(f"{path} is a link to a folder; name it to have it read.")
        found.series.append(run_series(path))
    elif path.exists() and not path.is_file():
        # A pipe that nobody writes to would be waited for without end.
        raise UserError(f"{path} is a pipe or a device; give the name of a file.")
    elif path.name == REPORT:
        report_entries(path)
        found.misfits.append(path)
    elif path.name in OWN_TABLES and not sidecar_path(path).exists():
        take_table(path, found)
    elif drawn_table(path):
        pass
    elif path.suffix not in RESULTS:
        raise UserError(f"{path} is neither a run directory nor results (.csv or .jsonl).")
    elif not sidecar_path(path).exists():
        raise UserError(
            f"{path} has no {sidecar_path(path).name} beside it to say what it is; "
            f"write one (docs/report.md) or name it with --compare."
        )
    else:
        take_results(path, read_sidecar(sidecar_path(path)), found)


def drawn_table(path: Path) -> bool:
    """Whether fastr misfit-figure wrote this, all of which it had from reports and returns."""
    if path.suffix != ".csv" or sidecar_path(path).exists():
        return False
    return read_text(path).partition("\n")[0].strip() == ",".join(COLUMNS)


def take_table(path: Path, found: Found) -> None:
    """A table that fastr ablation or fastr transfer left beside its runs."""
    lines = [{k: shown(v) for k, v in line.items()} for line in table_lines(path, ())]
    columns = set(lines[0]) if lines else set()
    kinds = {
        "table.csv": ((ABLATION, found.ablations), (TRANSFER, found.transfers)),
        "moved.csv": ((MOVED, found.moved),),
    }
    for needed, kept in kinds[path.name]:
        if set(needed) <= columns:
            kept[path] = lines
            return
    raise UserError(f"{path} is not a table of fastr ablation or fastr transfer.")


def run_series(path: Path) -> Series:
    """The evaluations of a run directory."""
    run = RunDirectory.open(path)
    train, provenance = run.config["train"], run.config["provenance"]
    for name in ("task", "method"):
        if not isinstance(train.get(name), str) or not shown(train[name]):
            raise UserError(f"{path / CONFIG}: {name} is not a text.")
    seeds = train.get("seeds")
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        raise UserError(f"{path / CONFIG}: seeds is not a list of whole numbers.")
    evaluations = row_evaluations(run.rows(), str(path))
    if not any(evaluations.curves.values()):
        raise UserError(f"{path} has no evaluation yet.")
    settings = {name: value for name, value in flattened(train) if not isinstance(value, list)}
    return Series(
        task=respelled(shown(train["task"])),
        method=shown(train["method"]),
        variant=run_variant(settings),
        curves=evaluations.curves,
        announced=tuple(str(seed) for seed in seeds),
        last_evaluation=frame_number(train.get("frames"), str(path / CONFIG)),
        lost=evaluations.lost,
        seconds=evaluations.seconds,
        origins=(run_origin(path, provenance),),
        settings=settings,
    )


def run_variant(settings: Mapping[str, Any]) -> str:
    """How a run differs from the paper's: its preset, and what it has kept of another."""
    preset, keep = settings.get("preset", "paper"), settings.get("agent.keep", "nothing")
    parts = [shown(preset)] if preset != "paper" else []
    return ", ".join([*parts, *([f"keep {shown(keep)}"] if keep != "nothing" else [])])


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value under its dotted name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def run_origin(path: Path, provenance: Mapping[str, Any]) -> Origin:
    """A run's provenance in words."""
    command, commit = provenance.get("command"), provenance.get("commit")
    words = [shown(word) for word in command] if isinstance(command, list) else []
    revision = commit if isinstance(commit, dict) else {}
    dirty = " with changes" if revision.get("dirty") else ""
    devices = provenance.get("devices")
    hardware = [*devices] if isinstance(devices, list) else []
    hardware += [provenance["cpu"]] if provenance.get("cpu") else []
    if isinstance(cores := provenance.get("cores"), int):
        hardware.append(counted(cores, "core"))
    program = [Path(words[0]).name.replace("cli.py", "fastr"), *words[1:]] if words else []
    return Origin(
        path=shown(path),
        command=shown(" ".join(program), 1_000),
        commit=shown(f"{str(revision.get('revision', ''))[:12]}{dirty}"),
        hardware=shown(", ".join(dict.fromkeys(map(str, hardware)))),
    )


def take_results(path: Path, about: Sidecar, found: Found) -> None:
    """A results file with its sidecar."""
    origin = Origin(shown(path), about.command, about.commit, about.hardware, about.note)
    if about.kind == "coverage":
        found.coverage.append((origin, about.task or shown(path.stem), coverage_lines(path)))
        return
    tables = csv_evaluations(path) if path.suffix == ".csv" else {("", ""): jsonl_evaluations(path)}
    if about.seconds is not None and len(tables) > 1:
        raise UserError(f"{path} has several curves; seconds in its sidecar would be of which?")
    # All of a file or nothing of it.
    found.series += [
        Series(
            task=one_of(task, about.task, "task", path),
            method=one_of(method, about.method, "method", path),
            variant=about.variant,
            curves=known_seeds(evaluations, about, path),
            announced=about.seeds,
            last_evaluation=about.frames,
            lost=evaluations.lost,
            seconds=about.seconds or evaluations.seconds,
            origins=(origin,),
        )
        for (task, method), evaluations in tables.items()
    ]


def one_of(column: str, sidecar: str, name: str, path: Path) -> str:
    """A name that must be given in exactly one of two places."""
    if bool(column) == bool(sidecar):
        places = "both its column and its sidecar" if column else "neither a column nor its sidecar"
        raise UserError(f"{path}: the {name} is in {places}; it must be in one of them.")
    return column or sidecar


def known_seeds(evaluations: Evaluations, about: Sidecar, path: Path) -> Mapping[str, Any]:
    """The curves, if the sidecar announces all their seeds."""
    if odd := [seed for seed in evaluations.curves if seed not in about.seeds]:
        raise UserError(f"{path} has seed {odd[0]}, which its sidecar does not name.")
    return evaluations.curves


def jsonl_evaluations(path: Path) -> Evaluations:
    """The evaluations in a copy of a run's rows."""
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    rows = [parsed_row(line.encode(), f"{path} line {i}") for i, line in enumerate(lines, 1)]
    return row_evaluations(rows, str(path))


def coverage_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a table of fastr coverage."""
    return [
        {"method": shown(line["method"])}
        | {name: frame_number(line[name], f"{path}, line {i}") for name in COVERAGE[1:]}
        for i, line in enumerate(table_lines(path, COVERAGE), 2)
    ]


def external(name: str, task: str, path: Path) -> list[Series]:
    """Other people's curves: a CSV of frames, seed and return; TASK `all` takes its task column."""
    task = respelled(shown(task))
    if not shown(name) or not task:
        raise UserError("--compare needs a NAME, a TASK and a FILE.")
    tables = csv_evaluations(path)
    with_tasks = all(key[0] for key in tables)
    if task == "all" and not with_tasks:
        raise UserError(f"{path} has no column task; name the task instead of `all`.")
    if len({key[0] for key in tables}) < len(tables):
        raise UserError(f"{path} has several methods; --compare takes files of one.")
    chosen = {
        (own or task): evaluations
        for (own, _), evaluations in tables.items()
        if task == "all" or not own or own == task
    }
    if not chosen:
        raise UserError(f"{path} has nothing on {task}.")
    origin = Origin(shown(path), note="external curve")
    return [
        Series(task=own, method=shown(name), curves=evaluations.curves, origins=(origin,))
        for own, evaluations in chosen.items()
    ]
