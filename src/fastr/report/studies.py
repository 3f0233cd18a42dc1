"""The paper's other experiments, from whatever runs and reports there are: sections."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from fastr.report.content import Bar, Cell, Grid, Intervals, Line, Lines, Scatter, Section
from fastr.report.finals import Final
from fastr.report.gains import gains, pairs
from fastr.report.reading import Found
from fastr.report.scatter import missing, points, report_entries, task_of
from fastr.report.sections import curve_chart
from fastr.report.series import NAMES, Origin
from fastr.report.tables import parsed
from fastr.report.text import file_name, shown

INTERACTIONS = ("ctrl-sr", "concat", "tucker", "fastr", "tree")
"""The paper's conditions (a) to (d) (App. Ablation), and the tree of its limitations."""
MISFITS = {"nce": "NCE misfit in nats", "moment": "moment misfit"}


def ablation_section(found: Found, finals: Sequence[Final]) -> Section | None:
    """The interactions of the factors on each task that has been tried with more than the two."""
    charts, taken = [], []
    tried = [final for final in finals if final.series.method in INTERACTIONS]
    for task in dict.fromkeys(final.task for final in tried if "@" not in final.task):
        here = [final for final in tried if final.task == task]
        here.sort(key=lambda final: INTERACTIONS.index(final.series.method))
        if {final.series.method for final in here} & {"concat", "tucker"} and len(here) > 1:
            taken.append(file_name(f"ablation-{task}", taken))
            charts.append(curve_chart(taken[-1], f"{task}: interaction of the factors", here))
    grids = [
        copied(f"ablation-table-{i}", f"Sizes, work and returns ({shown(path)})", lines)
        for i, (path, lines) in enumerate(found.ablations.items(), 1)
    ]
    text = "Joint, concatenated, Tucker and CP interactions under one protocol (fastr ablation)."
    return section("ablation", "Ablation of the interaction", text, charts, grids)


def transfer_section(found: Found, finals: Sequence[Final]) -> Section | None:
    """Adaptation to shifted actuators: every task with a shift in its name."""
    charts, taken = [], []
    for task in dict.fromkeys(final.task for final in finals if "@" in final.task):
        here = [final for final in finals if final.task == task]
        taken.append(file_name(f"transfer-{task}", taken))
        levels = unadapted(found.transfers, here)
        charts.append(curve_chart(taken[-1], f"{task}: adaptation", here, levels))
    tables = [
        *((f"transfer-table-{i}", "Returns", p) for i, p in enumerate(found.transfers, 1)),
        *((f"transfer-moved-{i}", "What moved", p) for i, p in enumerate(found.moved, 1)),
    ]
    every = found.transfers | found.moved
    grids = [copied(name, f"{title} ({shown(path)})", every[path]) for name, title, path in tables]
    text = "Actuators rewired or worn, and what a run kept of another (fastr transfer)."
    return section("transfer", "Transfer", text, charts, grids)


def unadapted(
    tables: Mapping[Path, list[dict[str, str]]], here: Sequence[Final]
) -> tuple[tuple[str, float], ...]:
    """Returns of the sources' policies on the shifted body, from the tables beside these runs."""
    folders = {PurePath(origin.path).parent for final in here for origin in final.series.origins}
    found = {}
    for path, lines in tables.items():
        for line in lines if PurePath(shown(path.parent)) in folders else ():
            method: str = line["condition"].split("-keep-")[0].removesuffix("-scratch")
            value = parsed(line["unadapted_return"])
            if not math.isnan(value):
                found[f"{NAMES.get(method, method)}, unadapted"] = value
    return tuple(found.items())


def misfit_section(found: Found) -> Section | None:
    """CP misfit of every diagnosed dataset, and against the return gain where both are known."""
    if not found.misfits:
        return None
    entries = [entry for path in found.misfits for entry in report_entries(path)]
    names = [shown(f"{task_of(entry)} ({entry['name']})") for entry in entries]
    charts: list[Any] = [
        Intervals(
            f"misfit-{kind}",
            f"Excess test loss of CP over joint: {label}",
            [
                Bar(name, *(entry[f"{kind}_misfit"][key] for key in ("value", "low", "high")))
                for name, entry in zip(names, entries, strict=True)
            ],
            f"{label} (CP less joint)",
            reference=0.0,
        )
        for kind, label in MISFITS.items()
    ]
    markers = points(found.misfits, gains(pairs(found.series)))
    markers = [point._replace(task=shown(point.task)) for point in markers]
    if any(point.gain is not None for point in markers):
        charts += [
            Scatter(
                f"misfit-gain-{kind}",
                f"Return gain against {label}",
                markers,
                kind,
                f"{label} (CP less joint)",
            )
            for kind, label in MISFITS.items()
        ]
    lacking = "; ".join(missing(markers))
    text = (
        "Excess test loss of a factored predictor over a joint one (fastr misfit, docs/misfit.md)."
    )
    said = f"{text} Still to measure for the paper's figure: {lacking}." if lacking else text
    return section("misfit", "CP misfit", said, charts, [])


def coverage_section(found: Found) -> Section | None:
    """Directions one batch can train, from the tables of fastr coverage."""
    charts, taken = [], []
    for origin, task, lines in found.coverage:
        taken.append(file_name(f"coverage-{task}", taken))
        charts.append(
            Lines(
                taken[-1],
                f"{task}: directions one batch can train",
                coverage_lines(lines),
                x_label="batch size N (transitions)",
                y_label="share of dim M",
                notes=(
                    "Solid: directions reached. Dashed: those with 99 % of the gradient.",
                    f"Made by {origin.command} at {origin.commit}.",
                ),
            )
        )
    text = "Share of the next-state factor's directions that one batch's gradient reaches."
    return section("coverage", "Coverage", text, charts, [])


def coverage_lines(lines: Sequence[Mapping[str, Any]]) -> tuple[Line, ...]:
    """Two curves per method: all directions, and those with 99 % of the gradient."""
    found = []
    place = {name: i for i, name in enumerate(NAMES)}
    every = dict.fromkeys(str(line["method"]) for line in lines)
    for method in sorted(every, key=lambda name: place.get(name, len(place))):
        own = [line for line in lines if line["method"] == method and line["dimension"]]
        own.sort(key=lambda line: line["batch_size"])
        for key in ("rank", "effective"):
            shares = [(line["batch_size"], line[key] / line["dimension"]) for line in own]
            points = tuple((float(size), share, share, share) for size, share in shares)
            name = NAMES.get(method) or method
            found.append(Line(name, points, dashed=key == "effective"))
    return tuple(found)


def provenance_section(finals: Sequence[Final], found: Found, without: Sequence[str]) -> Section:
    """Where every number comes from, and what was found and not used."""
    made: dict[Origin, list[str]] = {}
    for final in finals:
        for origin in final.series.origins:
            made.setdefault(origin, []).append(f"{final.label} on {final.task}")
    rows = [origin_row("; ".join(what), origin) for origin, what in made.items()]
    rows += [origin_row(f"coverage on {task}", origin) for origin, task, _ in found.coverage]
    rows += [origin_row("CP misfit", Origin(shown(path))) for path in found.misfits]
    columns = ("what", "file", "command", "commit", "hardware", "note")
    grids = [Grid("provenance", "Where the numbers come from", columns, rows)]
    left = [*found.left_out, *without]
    if left:
        lines = [(Cell(shown(text, 600)),) for text in left]
        grids.append(Grid("left-out", "Found and left out", ("what and why",), lines))
    return Section("provenance", "Provenance", (), (), tuple(grids))


def origin_row(what: str, origin: Origin) -> tuple[Cell, ...]:
    """One source of numbers."""
    texts = (origin.path, origin.command, origin.commit, origin.hardware, origin.note)
    return (Cell(what), *(Cell(text) for text in texts))


def copied(name: str, title: str, lines: Sequence[Mapping[str, str]]) -> Grid:
    """A table that another command wrote, as it is."""
    columns = tuple(shown(column).replace("_", " ") for column in lines[0])
    return Grid(name, title, columns, [tuple(map(copied_cell, line.values())) for line in lines])


def copied_cell(text: str) -> Cell:
    """A number rounded for people, or the text."""
    value = parsed(text)
    if math.isnan(value):
        return Cell(text)
    whole = value == value // 1 and abs(value) >= 1
    return Cell(f"{value:,.0f}" if whole else f"{value:,.4g}", value)


def section(
    name: str, title: str, text: str, charts: Sequence[Any], grids: Sequence[Grid]
) -> Section | None:
    """A section, if there is anything to show in it."""
    return Section(name, title, (text,), tuple(charts), tuple(grids)) if charts or grids else None
