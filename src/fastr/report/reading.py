"""Everything to report on under the given paths: runs, results, misfits, tables of other commands.

All of it may come from elsewhere: each file is read by a bounded reader, and what cannot be read is
left out with a reason, or refused where the user named it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastr.core import UserError, counted, nearest
from fastr.envs.names import respelled
from fastr.report.evaluations import (
    Evaluations,
    csv_evaluations,
    finite,
    frame_number,
    json_object,
    read_text,
    row_evaluations,
    table_lines,
)
from fastr.report.gains import REPORT, Misfit, read_misfits
from fastr.report.page import PAGE
from fastr.report.series import Origin, Series
from fastr.report.table import shown
from fastr.runs.directory import CONFIG, RunDirectory, parsed_row

COVERAGE = ("method", "batch_size", "dimension", "rank", "effective")
OWN_TABLES = ("table.csv", "moved.csv")
"""Left by an ablation and by fastr transfer; copied into the report as they are."""
REQUIRED = ("kind", "command", "commit", "hardware", "seeds")
"""Keys of a sidecar; docs/report.md describes each."""
TEXTS = ("command", "commit", "hardware", "task", "method", "variant", "note")
KNOWN = (*REQUIRED, *TEXTS[3:], "frames", "seconds")
LONGEST = 1_000
"""Characters of a sidecar's text."""


@dataclass
class Found:
    """Content of the paths, and what could not be read there."""

    series: list[Series] = field(default_factory=list)
    coverage: list[tuple[Origin, str, list[dict[str, Any]]]] = field(default_factory=list)
    """Origin, task and lines of each file."""
    misfits: dict[Path, list[Misfit]] = field(default_factory=dict)
    tables: dict[Path, list[dict[str, str]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """What was not read, with the reason."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to report on."""
        return not (self.series or self.coverage or self.misfits or self.tables)


def read(paths: Sequence[Path]) -> Found:
    """Everything under these paths; UserError if one of them does not exist or holds nothing."""
    found, seen = Found(), set()
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        inside = list(entries(path))
        if not inside:
            raise UserError(f"{path} holds no run, no results with a sidecar and no misfit.")
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
    """Run directories and files to read, in order; nothing inside a run."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, files in os.walk(path):
        here = Path(folder)
        if CONFIG in files:
            yield here
            folders.clear()
        elif PAGE in files and REPORT not in files:
            # An earlier report, or a page of theory.
            folders.clear()
        else:
            # The numbers of a misfit lie in and below its folder.
            diagnosed = REPORT in files
            folders[:] = [] if diagnosed else sorted(folders)
            # os.walk does not follow links: a linked run is read, any other link is reported.
            yield from (here / name for name in folders if (here / name).is_symlink())
            yield from (
                here / name for name in sorted(files) if to_read(here / name, REPORT in files)
            )


def to_read(file: Path, diagnosed: bool) -> bool:  # noqa: FBT001
    """Whether a file may hold results; beside a misfit's report only those with a sidecar do."""
    if file.suffix not in (".csv", ".jsonl"):
        return file.name == REPORT
    return file.with_suffix(".json").is_file() or (file.suffix == ".csv" and not diagnosed)


def take(path: Path, found: Found) -> None:
    """Read one run directory or file."""
    sidecar = path.with_suffix(".json")
    if path.is_dir():
        found.series.append(run_series(path))
    elif not path.is_file():
        # A pipe without a writer would block.
        raise UserError(f"{path} is neither a file nor a directory.")
    elif path.name == REPORT:
        found.misfits[path] = read_misfits(path)
    elif path.name in OWN_TABLES and not sidecar.is_file():
        lines = table_lines(path)
        if not lines:
            raise UserError(f"{path} has no lines.")
        found.tables[path] = [{k: shown(v) for k, v in line.items()} for line in lines]
    elif path.suffix not in (".csv", ".jsonl"):
        raise UserError(f"{path} is neither a run directory nor results (.csv or .jsonl).")
    elif not sidecar.is_file():
        raise UserError(
            f"{path} has no {sidecar.name} beside it to say what it is; "
            f"write one (docs/report.md) or name it with --compare."
        )
    else:
        take_results(path, read_sidecar(sidecar), found)


def run_series(path: Path) -> Series:
    """The evaluations of a run directory."""
    run = RunDirectory.open(path)
    train = run.config["train"]
    for name in ("task", "method"):
        if not isinstance(train.get(name), str) or not shown(train[name]):
            raise UserError(f"{path / CONFIG}: {name} is not a text.")
    seeds = whole_numbers(train.get("seeds"), path / CONFIG)
    evaluations = row_evaluations(run.rows(), str(path))
    if not any(evaluations.curves.values()):
        raise UserError(f"{path} has no evaluation yet.")
    settings = {name: value for name, value in flattened(train) if not isinstance(value, list)}
    preset, keep = settings.get("preset", "paper"), settings.get("agent.keep", "nothing")
    variant = [shown(preset)] if preset != "paper" else []
    variant += [f"keep {shown(keep)}"] if keep != "nothing" else []
    return Series(
        task=respelled(shown(train["task"])),
        method=shown(train["method"]),
        variant=", ".join(variant),
        curves=evaluations.curves,
        announced=seeds,
        last_evaluation=frame_number(train.get("frames"), str(path / CONFIG)),
        lost=evaluations.lost,
        seconds=evaluations.seconds,
        origins=(run_origin(path, run.config["provenance"]),),
        settings=settings,
    )


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value under its dotted name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def whole_numbers(value: object, place: Path) -> tuple[str, ...]:
    """A list of seeds, as text."""
    if not isinstance(value, list) or not all(type(seed) is int for seed in value):
        raise UserError(f"{place}: seeds is not a list of whole numbers.")
    return tuple(map(str, value))


def run_origin(path: Path, provenance: Mapping[str, Any]) -> Origin:
    """A run's provenance in words."""
    command, commit = provenance.get("command"), provenance.get("commit")
    words = [shown(word) for word in command] if isinstance(command, list) else []
    program = [Path(words[0]).name.replace("cli.py", "fastr"), *words[1:]] if words else []
    revision = commit if isinstance(commit, dict) else {}
    dirty = " with changes" if revision.get("dirty") else ""
    devices = provenance.get("devices")
    hardware = [*map(str, devices)] if isinstance(devices, list) else []
    hardware += [str(provenance["cpu"])] if provenance.get("cpu") else []
    if isinstance(cores := provenance.get("cores"), int):
        hardware.append(counted(cores, "core"))
    return Origin(
        path=shown(path),
        command=shown(" ".join(program), LONGEST),
        commit=shown(f"{str(revision.get('revision', ''))[:12]}{dirty}"),
        hardware=shown(", ".join(dict.fromkeys(hardware))),
    )


def read_sidecar(path: Path) -> dict[str, Any]:
    """The provenance of a results file; UserError that names what is wrong with it."""
    content = json_object(path)
    for name in content:
        if name not in KNOWN:
            suggestion = nearest(name, KNOWN)
            raise UserError(f"{path}: {shown(name, 40)} is not a key of a sidecar.{suggestion}")
    if absent := [name for name in REQUIRED if name not in content]:
        raise UserError(f"{path} lacks {', '.join(absent)}.")
    if content["kind"] not in ("returns", "coverage"):
        raise UserError(f"{path}: kind must be one of returns, coverage.")
    for name in TEXTS:
        value = content.get(name, "")
        if name in content and not (isinstance(value, str) and 0 < len(value) <= LONGEST):
            raise UserError(f"{path}: {name} must be a text of 1 to {LONGEST} characters.")
        content[name] = shown(value, LONGEST)
    for name, check in (("frames", frame_number), ("seconds", finite)):
        if name in content:
            content[name] = check(content[name], str(path), name)
    content["seeds"] = whole_numbers(content["seeds"], path)
    return content | {"task": respelled(content["task"])}


def take_results(path: Path, about: dict[str, Any], found: Found) -> None:
    """A results file with its sidecar."""
    origin = Origin(
        shown(path), *(about[name] for name in ("command", "commit", "hardware", "note"))
    )
    if about["kind"] == "coverage":
        found.coverage.append((origin, about["task"] or shown(path.stem), coverage_lines(path)))
        return
    tables = csv_evaluations(path) if path.suffix == ".csv" else {("", ""): jsonl_evaluations(path)}
    if "seconds" in about and len(tables) > 1:
        raise UserError(f"{path} has several curves; leave seconds out of its sidecar.")
    # All of a file or nothing of it.
    found.series += [
        Series(
            task=one_of(task, about["task"], "task", path),
            method=one_of(method, about["method"], "method", path),
            variant=about["variant"],
            curves=known_seeds(evaluations, about["seeds"], path),
            announced=about["seeds"],
            last_evaluation=about.get("frames"),
            lost=evaluations.lost,
            seconds=about.get("seconds") or evaluations.seconds,
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


def known_seeds(evaluations: Evaluations, seeds: Sequence[str], path: Path) -> Mapping[str, Any]:
    """The curves, if the sidecar announces all their seeds."""
    if odd := [seed for seed in evaluations.curves if seed not in seeds]:
        raise UserError(f"{path} has seed {odd[0]}, which its sidecar does not name.")
    return evaluations.curves


def jsonl_evaluations(path: Path) -> Evaluations:
    """The evaluations in a copy of a run's rows."""
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    rows = [parsed_row(line.encode(), f"{path} line {i}") for i, line in enumerate(lines, 1)]
    return row_evaluations(rows, str(path))


def coverage_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a coverage table of fastr info."""
    return [
        {"method": shown(line["method"])}
        | {name: frame_number(line[name], f"{path}, line {i}", name) for name in COVERAGE[1:]}
        for i, line in enumerate(table_lines(path, COVERAGE), 2)
    ]


def external(name: str, task: str, path: Path) -> list[Series]:
    """Curves of others: a CSV of frames, seed and return; TASK `all` takes its task column."""
    task = respelled(shown(task))
    if not shown(name) or not task:
        raise UserError("--compare needs a NAME, a TASK and a FILE.")
    tables = csv_evaluations(path)
    if task == "all" and not all(own for own, _ in tables):
        raise UserError(f"{path} has no column task; name the task instead of `all`.")
    if len({own for own, _ in tables}) < len(tables):
        raise UserError(f"{path} has several methods; --compare takes files of one.")
    origin = Origin(shown(path), note="external curve")
    chosen = [
        Series(own or task, shown(name), evaluations.curves, (origin,))
        for (own, _), evaluations in tables.items()
        if task == "all" or not own or own == task
    ]
    if not chosen:
        raise UserError(f"{path} has nothing on {task}.")
    return chosen
