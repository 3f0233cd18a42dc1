"""Everything to report on under the given paths: runs, results, misfits, tables of other commands.

All of it may come from elsewhere: reading is bounded and executes nothing, and what cannot be read
is left out with a reason, or refused where the user named it.
"""

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fastr.core import UserError, counted, nearest
from fastr.envs.names import respelled
from fastr.report.page import PAGE
from fastr.report.series import Curve, Origin, Series
from fastr.report.table import shown
from fastr.runs.directory import CONFIG, RunDirectory, parsed_row
from fastr.runs.untrusted import bounded_bytes, json_object, reading

LARGEST = 1e12
"""A frame number or return beyond this is a mistake."""
LARGEST_FILE = 2**26
"""Bytes of a table or of a copy of a run's rows."""
COLUMNS = ("frames", "seed", "return")
REPORT = "report.json"
"""Of fastr misfit."""
OWN_TABLES = ("table.csv", "moved.csv", "standings.csv")
"""Left by an ablation, fastr transfer and fastr bench race; copied into the report as they are."""
RACE = "race.json"
"""Of the race's files only the standings are a table to read."""
REQUIRED = ("kind", "command", "commit", "hardware", "seeds")
"""Keys of a sidecar; docs/report.md describes each."""
TEXTS = ("command", "commit", "hardware", "task", "method", "variant", "note")
KNOWN = {*REQUIRED, *TEXTS, "frames"}
LONGEST = 1_000
"""Characters of a sidecar's text."""


class Evaluations(NamedTuple):
    """Curves by task and method, which are empty where the file does not name them."""

    curves: dict[tuple[str, str], dict[str, Curve]]
    lost: int
    """Evaluations whose return was not a finite number."""


class Misfit(NamedTuple):
    """Excess test loss of CP over joint on one dataset: each value, low, high."""

    task: str
    dataset: str
    action_dim: int
    nce: tuple[float, ...]
    moment: tuple[float, ...]


@dataclass
class Found:
    """Content of the paths, and what could not be read there."""

    series: list[Series] = field(default_factory=list)
    misfits: dict[Path, list[Misfit]] = field(default_factory=dict)
    tables: dict[Path, list[dict[str, str]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """What was not read, with the reason."""


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
    """Run directories and files to read, in order; nothing inside a run, a misfit or a report."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, files in os.walk(path):
        here = Path(folder)
        if CONFIG in files or REPORT in files or PAGE in files:
            folders.clear()
            if CONFIG in files:
                yield here
            elif REPORT in files:
                yield here / REPORT
            continue
        folders.sort()
        # os.walk does not follow links: a linked run is read, any other link is reported.
        yield from (here / name for name in folders if (here / name).is_symlink())
        for file in sorted(here / name for name in files):
            if RACE in files and file.name not in OWN_TABLES:
                continue
            with_sidecar = file.with_suffix(".json").is_file()
            if file.suffix == ".csv" or (file.suffix == ".jsonl" and with_sidecar):
                yield file


def take(path: Path, found: Found) -> None:
    """Read one run directory or file."""
    sidecar = path.with_suffix(".json")
    if path.is_dir():
        found.series.append(run_series(path))
    elif not path.is_file():
        # A pipe or a device, perhaps behind a link, may never end.
        raise UserError(f"{path} is neither a file nor a directory.")
    elif path.name == REPORT:
        found.misfits[path] = read_misfits(path)
    elif path.name in OWN_TABLES and not sidecar.is_file():
        found.tables[path] = table_lines(path)
    elif path.suffix not in (".csv", ".jsonl"):
        raise UserError(f"{path} is neither a run directory nor results (.csv or .jsonl).")
    elif not sidecar.is_file():
        raise UserError(
            f"{path} has no {sidecar.name} to describe it; write one (docs/report.md) or name it "
            "with --compare."
        )
    elif (about := read_sidecar(sidecar))["kind"] == "coverage":
        found.tables[path] = table_lines(path)
    else:
        found.series += results(path, about)


def run_series(path: Path) -> Series:
    """The evaluations of a run directory."""
    run = RunDirectory.open(path)
    train = run.config["train"]
    if train.get("offline") and not train.get("task"):
        raise UserError(f"{path} was learned from a log alone: it has no returns to report.")
    for name in ("task", "method"):
        if not isinstance(train.get(name), str) or not shown(train[name]):
            raise UserError(f"{path / CONFIG}: {name} is not a text.")
    rows = ({**row, "task": "", "method": ""} for row in run.rows())
    found = evaluations(rows, str(path))
    settings = {name: value for name, value in flattened(train) if not isinstance(value, list)}
    preset, keep = settings.get("preset", "paper"), settings.get("agent.keep", "nothing")
    variant = [shown(preset)] if preset != "paper" else []
    variant += [f"keep {shown(keep)}"] if keep != "nothing" else []
    return Series(
        task=respelled(shown(train["task"])),
        method=shown(train["method"]),
        variant=", ".join(variant),
        curves=found.curves["", ""],
        announced=seed_names(train.get("seeds"), path / CONFIG),
        last_evaluation=frame_number(train.get("frames"), str(path / CONFIG)),
        lost=found.lost,
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


def seed_names(value: object, place: Path) -> tuple[str, ...]:
    """A list of seeds, as text."""
    if not isinstance(value, list) or not all(type(seed) is int for seed in value):
        raise UserError(f"{place}: seeds is not a list of whole numbers.")
    return tuple(map(str, value))


def run_origin(path: Path, provenance: Mapping[str, Any]) -> Origin:
    """A run's provenance in words; whatever is not of its kind is left out."""

    def entry(name: str, kind: type) -> Any:
        value = provenance.get(name)
        return value if isinstance(value, kind) else kind()

    program, *arguments = [*map(str, entry("command", list)), ""]
    commit, cores = entry("commit", dict), entry("cores", int)
    hardware = [*map(str, entry("devices", list)), entry("cpu", str)]
    hardware += [counted(cores, "core")] if cores else []
    dirty = " with changes" if commit.get("dirty") else ""
    return Origin(
        path=shown(path),
        command=shown(
            " ".join([Path(program).name.replace("cli.py", "fastr"), *arguments]), LONGEST
        ),
        commit=shown(f"{str(commit.get('revision', ''))[:12]}{dirty}"),
        hardware=shown(", ".join(filter(None, dict.fromkeys(hardware)))),
    )


def read_sidecar(path: Path) -> dict[str, Any]:
    """The provenance of a results file; UserError that names what is wrong with it."""
    content = json_object(path, LARGEST_FILE)
    if odd := [name for name in content if name not in KNOWN]:
        suggestion = nearest(odd[0], KNOWN)
        raise UserError(f"{path}: {shown(odd[0], 40)} is not a key of a sidecar.{suggestion}")
    if absent := [name for name in REQUIRED if name not in content]:
        raise UserError(f"{path} lacks {', '.join(absent)}.")
    if content["kind"] not in ("returns", "coverage"):
        raise UserError(f"{path}: kind must be one of returns, coverage.")
    for name in TEXTS:
        value = content.get(name, "")
        if name in content and not (isinstance(value, str) and 0 < len(value) <= LONGEST):
            raise UserError(f"{path}: {name} must be a text of 1 to {LONGEST} characters.")
        content[name] = shown(value, LONGEST)
    if "frames" in content:
        content["frames"] = frame_number(content["frames"], str(path))
    content["seeds"] = seed_names(content["seeds"], path)
    return content | {"task": respelled(content["task"])}


def results(path: Path, about: Mapping[str, Any]) -> list[Series]:
    """The curves of a results file with its sidecar."""
    names = ("command", "commit", "hardware", "note")
    origin = Origin(shown(path), *(about[name] for name in names))
    tables, lost = file_evaluations(path)
    if odd := {seed for curves in tables.values() for seed in curves} - {*about["seeds"]}:
        raise UserError(f"{path} has seed {min(odd)}, which its sidecar does not name.")
    return [
        Series(
            task=one_of(task, about["task"], "task", path),
            method=one_of(method, about["method"], "method", path),
            variant=about["variant"],
            curves=curves,
            announced=about["seeds"],
            last_evaluation=about.get("frames"),
            lost=lost,
            origins=(origin,),
        )
        for (task, method), curves in tables.items()
    ]


def one_of(column: str, sidecar: str, name: str, path: Path) -> str:
    """A name that must be given in exactly one of two places."""
    if bool(column) == bool(sidecar):
        places = "both its column and its sidecar" if column else "neither a column nor its sidecar"
        raise UserError(f"{path}: the {name} is in {places}; it must be in one of them.")
    return column or sidecar


def external(name: str, task: str, path: Path) -> Series:
    """An external curve: a CSV of frames, seed and return, and of tasks if it has several."""
    task = respelled(shown(task))
    tables = file_evaluations(path).curves
    found = [curves for (own, _), curves in tables.items() if own in ("", task)]
    if not (shown(name) and task and len(found) == 1):
        raise UserError(f"--compare needs a NAME, a TASK and a FILE; {path} must have one curve.")
    return Series(task, shown(name), found[0], (Origin(shown(path), note="external curve"),))


def read_misfits(path: Path) -> list[Misfit]:
    """The datasets in a report of fastr misfit."""

    def interval(misfit: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(finite(misfit[end], str(path), end) for end in ("value", "low", "high"))

    try:
        return [
            Misfit(
                # A dataset without a task goes by its own name.
                shown(respelled(str(entry.get("task") or entry["name"]))),
                shown(entry["name"]),
                frame_number(entry["action_dim"], str(path), "action_dim"),
                interval(entry["nce_misfit"]),
                interval(entry["moment_misfit"]),
            )
            for entry in json_object(path, LARGEST_FILE)["datasets"]
        ]
    except (AttributeError, LookupError, TypeError) as error:
        raise UserError(f"{path} is not a report of fastr misfit.") from error


def evaluations(lines: Iterable[Mapping[str, Any]], place: str, first: int = 1) -> Evaluations:
    """Every curve in a table or in a run's rows."""
    points: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    lost = 0
    for i, line in enumerate(lines, first):
        if line.get("kind", "evaluation") != "evaluation":
            continue
        where, seed = f"{place}, line {i}", line.get("seed")
        if not shown(seed) or not isinstance(seed, int | str):
            raise UserError(f"{where}: the seed is {shown(repr(seed), 40)}; it must have a name.")
        key = respelled(shown(line.get("task", ""))), shown(line.get("method", ""))
        curve = points.setdefault(key, {}).setdefault(shown(seed, 40), {})
        frames = frame_number(line.get("frames"), where)
        if frames in curve:
            raise UserError(f"{where}: frame {frames} of this seed occurs twice.")
        if line.get("return") is None:
            lost += 1
        else:
            curve[frames] = finite(line["return"], where)
    if not points:
        raise UserError(f"{place} has no evaluation yet.")
    curves = {
        key: {seed: tuple(sorted(curve.items())) for seed, curve in seeds.items()}
        for key, seeds in points.items()
    }
    return Evaluations(curves, lost)


def file_evaluations(path: Path) -> Evaluations:
    """Every curve of a CSV file, or of a copy of a run's rows."""
    if path.suffix != ".jsonl":
        return evaluations(table_lines(path, COLUMNS), str(path), 2)
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    rows = [parsed_row(line.encode(), f"{path} line {i}") for i, line in enumerate(lines, 1)]
    return evaluations(rows, str(path))


def table_lines(path: Path, needed: Sequence[str] = ()) -> list[dict[str, str]]:
    """The lines of a CSV file by column; UserError unless it has those needed."""
    with reading(path):
        reader = csv.DictReader(io.StringIO(read_text(path)), strict=True)
        names, lines = list(reader.fieldnames or ()), list(reader)
    if not lines:
        raise UserError(f"{path} has no lines.")
    if absent := [name for name in needed if name not in names]:
        raise UserError(
            f"{path} has no column {' or '.join(absent)}; it needs {', '.join(needed)}."
        )
    for i, line in enumerate(lines, 2):
        if None in line or None in line.values():
            cells = counted(len(names), "cell")
            raise UserError(f"{path}, line {i}: it needs {cells}, one for each column.")
    return lines


def read_text(path: Path) -> str:
    """A file's content; UserError if it is not a readable text of bounded size."""
    with reading(path):
        return bounded_bytes(path, LARGEST_FILE).decode("utf-8-sig")


def frame_number(cell: object, place: str, name: str = "frames") -> int:
    """A whole number from zero."""
    number = finite(cell, place, name)
    if not (number >= 0 and number.is_integer()):
        raise UserError(
            f"{place}: {name} is {shown(repr(cell), 40)}; it must be a whole number from 0."
        )
    return int(number)


def finite(cell: object, place: str, name: str = "return") -> float:
    """A finite number."""
    number = parsed(cell)
    if not abs(number) <= LARGEST:
        raise UserError(f"{place}: {name} is {shown(repr(cell), 40)}; it must be a finite number.")
    return number


def parsed(cell: object) -> float:
    """A number, or NaN for anything else."""
    try:
        return math.nan if isinstance(cell, bool) else float(cell)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        return math.nan
