"""The sections of a report: curves, returns, statistics, cost, misfit, coverage, provenance."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from fastr.core import counted
from fastr.report.evaluations import parsed
from fastr.report.gains import TABLE_TASKS, Misfit, gains, missing, published_gains
from fastr.report.page import Section
from fastr.report.plots import (
    DASHES,
    GREY,
    RETURN,
    Axes,
    Bar,
    Curve,
    Figure,
    Marker,
    coverage_figure,
    curves,
    intervals,
    markers,
)
from fastr.report.plots import (
    FRAMES as FRAMES_LABEL,
)
from fastr.report.published import FRAMES, Published, published
from fastr.report.reading import Found
from fastr.report.series import NAMES, Final, Origin, finals, horizons, labels, united
from fastr.report.stats import (
    LARGEST_RETURN,
    SCALED,
    Middle,
    comparable,
    improvements,
    median_frames,
    middles,
    reaching,
)
from fastr.report.table import Cell, Table, Value, file_name, shown

WINDOW = "Mean of the last 10 evaluations, ± standard deviation over seeds (ddof 0)."
BOLD = "Bold: best of its group on the task by more than its own standard deviation."
FEW = "Fewer than 5 seeds per task: such intervals are too narrow, and one seed has none."
MISFITS = {"nce": "NCE misfit in nats", "moment": "moment misfit"}


def sections(
    found: Found, reach: Sequence[float] = (), price: float | None = None, seed: int = 0
) -> tuple[list[Section], list[Final]]:
    """All sections with content, and the numbers in them."""
    numbers, without = finals(united(found.series))
    plain = [final for final in numbers if "@" not in final.task]
    suite = any(final.task in SCALED for final in plain)
    parts = [curves_section(found, numbers)]
    if suite:
        parts.append(table_one(plain))
    if numbers:
        parts.append(Section("returns", "Measured returns", tables=[returns_table(numbers)]))
    if suite:
        parts.append(aggregate_section(plain, seed))
    parts += [
        efficiency_section(numbers, reach),
        clock_section(numbers, price),
        misfit_section(found),
        coverage_section(found),
        copied_section(found),
        provenance_section(numbers, found, without),
    ]
    return [part for part in parts if part.figures or part.tables or part.paragraphs], numbers


def looks(here: Sequence[Final], everyone: Sequence[str]) -> dict[str, tuple[int, object]]:
    """Colour and dash of each curve: one colour per method in all figures, dashes for variants."""
    families = list(dict.fromkeys(label.partition(", ")[0] for label in everyone))
    variants: dict[str, int] = {}
    result = {}
    for label in sorted((final.label for final in here), key=everyone.index):
        family = label.partition(", ")[0]
        variants[family] = variants.get(family, 0) + (label != family)
        # From the eighth method on colours come again, with another dash.
        turn, place = divmod(families.index(family), GREY)
        dash = 0 if label == family else 1 + (variants[family] - 1) % (len(DASHES) - 1)
        result[label] = place, DASHES[(dash + 3 * turn) % len(DASHES)]
    return result


def curves_section(found: Found, numbers: Sequence[Final]) -> Section:
    """Learning curves, task by task."""
    figures, taken = [], []
    everyone = labels(numbers)
    for task in dict.fromkeys(final.task for final in numbers):
        taken.append(file_name(f"curves-{task}", taken))
        here = [final for final in numbers if final.task == task]
        styles = looks(here, everyone)
        lines = [curve(final, *styles[final.label]) for final in here]
        levels = unadapted(found, here) if "@" in task else ()
        axes = Axes(FRAMES_LABEL, RETURN)
        figures.append(curves(taken[-1], task, lines, axes, levels))
    text = (
        "Greedy evaluation return against frames (simulator steps; an agent step is several). "
        "Lines are means over seeds, bands one standard deviation, where all seeds of a method "
        "were evaluated. Caveats of each are the notes of the table of measured returns."
    )
    return Section("curves", "Learning curves", (text,) if figures else (), figures)


def curve(final: Final, color: int, dash: object) -> Curve:
    """Mean over seeds, with a band of one standard deviation."""
    mean, std = final.returns.mean(axis=0), final.returns.std(axis=0)
    return Curve(final.label, final.evaluated, mean, mean - std, mean + std, color, dash)


def unadapted(found: Found, here: Sequence[Final]) -> list[tuple[str, float]]:
    """Returns of a transfer's sources on the shifted body, from the table of the same folder."""
    folders = {PurePath(origin.path).parent for final in here for origin in final.series.origins}
    result = {}
    for path, lines in found.tables.items():
        for line in lines if PurePath(shown(path.parent)) in folders else ():
            method = line.get("condition", "").split("-keep-")[0].removesuffix("-scratch")
            value = parsed(line.get("unadapted_return"))
            if not math.isnan(value):
                result[f"{NAMES.get(method, method)}, unadapted"] = value
    return list(result.items())


def plus_minus(mean: float, std: float | None) -> str:
    """A mean with its deviation: whole, with a decimal where it is small."""
    form = ".1f" if abs(mean) < 10 else ",.0f"
    return f"{mean:{form}}" if std is None else f"{mean:{form}} ± {std:{form}}"


def measured_cell(final: Final, *notes: str) -> Cell:
    """The paper's number with its caveats."""
    if alone := len(final.series.seeds) < 2:
        notes = (*notes, "1 seed, so no deviation")
    text = plus_minus(final.mean, None if alone else final.std)
    return Cell(text, final.mean, final.best, (*final.notes, *notes))


def table_one(found: Sequence[Final]) -> Section:
    """The paper's Table 1: methods by tasks, measured and published."""
    rows: list[list[Value]] = []
    for label in labels(found):
        own = {final.task: final for final in found if final.label == label}
        here = [own[task] for task in TABLE_TASKS if task in own]
        if here:
            seeds = sorted({len(final.series.seeds) for final in here})
            count = Cell(" to ".join(map(str, sorted({seeds[0], seeds[-1]}))), seeds[0])
            cells = [budget_cell(own[task]) if task in own else None for task in TABLE_TASKS]
            rows.append([label, "measured", count, *cells])
    remarks = (
        f"{WINDOW} {BOLD} One rule for every row: of the paper's own bold cells, three "
        "(walker-walk, quadruped-walk, quadruped-run) do not meet it.",
        "Numbers of other authors are their last evaluation at 1,000,000 frames, not the mean of "
        "ten.",
    )
    columns = ("method", "from", "seeds", *TABLE_TASKS)
    title = "Final return on the ten tasks of the paper's Table 1"
    table = Table("table1", title, columns, [*rows, *published_rows()], remarks)
    return Section("table1", "Table 1", tables=[table])


def budget_cell(final: Final) -> Cell:
    """A measured number in a table of numbers at the paper's budget."""
    short = final.frames != FRAMES
    return measured_cell(final, *[f"at {counted(final.frames, 'frame')}, not {FRAMES:,}"] * short)


def published_rows() -> list[list[Value]]:
    """The paper's rows and other authors'."""
    rows: list[list[Value]] = []
    for method in dict.fromkeys(one.method for one in published()):
        own = {one.task: one for one in published() if one.method == method}
        first = next(iter(own.values()))
        source = Cell("paper") if first.of_the_paper else Cell("authors", notes=(first.source,))
        cells = [published_cell(own[task]) if task in own else None for task in TABLE_TASKS]
        rows.append([method, source, first.seeds, *cells])
    return rows


def published_cell(one: Published) -> Cell:
    """Bold if it is the best of the paper's, or of the others', by more than its own deviation."""
    rivals = [
        other.mean
        for other in published()
        if (other.task, other.of_the_paper) == (one.task, one.of_the_paper) and other is not one
    ]
    return Cell(plus_minus(one.mean, one.std), one.mean, one.mean - max(rivals) > one.std)


def returns_table(found: Sequence[Final]) -> Table:
    """Every measured number."""
    papers = {(one.method, one.task): one for one in published() if one.of_the_paper}
    rows: list[list[Value]] = []
    for final in found:
        alone = len(final.series.seeds) < 2
        ends = final.returns[:, -1]
        last = plus_minus(float(ends.mean()), None if alone else float(ends.std()))
        paper = papers.get((NAMES.get(final.series.method, ""), final.task))
        rows.append(
            [
                *(final.task, final.label, final.frames, len(final.series.seeds)),
                measured_cell(final),
                Cell(last, float(ends.mean())),
                Cell(plus_minus(paper.mean, paper.std), paper.mean) if paper else None,
            ]
        )
    columns = ("task", "method", "frames", "seeds", "last 10 evaluations", "last evaluation")
    remarks = (
        f"{WINDOW} {BOLD} Nothing is bold where methods ended at different frames.",
        "The paper's number is that of the method's name, whatever preset or option was measured "
        "here.",
    )
    columns = (*columns, f"paper, at {FRAMES:,} frames")
    return Table("returns", "Every measured return", columns, rows, remarks)


def aggregate_section(found: Sequence[Final], seed: int) -> Section:
    """Interquartile means and probabilities of improvement."""
    kept, left_out = comparable(found)
    panels, pairs, until = middles(kept, seed), improvements(kept, seed), horizons(kept)
    methods = labels(found)
    figures = [middle_figure(i, panel, until, methods) for i, panel in enumerate(panels, 1)]
    if pairs:
        bars = [
            Bar(f"{i.first} > {i.second}", *i.probability, detail=f"on {', '.join(i.tasks)}")
            for i in pairs
        ]
        few = min(min(i.runs) / len(i.tasks) for i in pairs) < 5
        label = "P(X > Y) + P(X = Y) / 2, mean over shared tasks"
        title = "Probability of improvement"
        figures.append(intervals("improvement", title, bars, label, 0.5, [FEW] * few))
    text = (
        "Over the DM Control Suite tasks whose returns lie between 0 and 1,000. Each run counts "
        "with the mean of its last ten evaluations up to the last frame that all compared methods "
        "reached. Intervals: 95 %, runs resampled within each task (2,000 times, generator seed "
        f"{seed}). A figure compares methods on the same set of tasks only; each probability "
        "compares a method with the first that shares most tasks with it."
    )
    left = [
        f"Left out, as {reason}: {', '.join(f'{one.label} on {one.task}' for one in group)}."
        for reason, group in left_out.items()
        if group
    ]
    return Section("aggregates", "Across tasks", (text, *left), figures)


def middle_figure(
    place: int, panel: Sequence[Middle], until: dict[str, int], methods: Sequence[str]
) -> Figure:
    """Interquartile means of the methods on one set of tasks."""
    tasks = panel[0].tasks
    where = ", ".join(f"{task} at {counted(until[task], 'frame')}" for task in tasks)
    families = list(dict.fromkeys(label.partition(", ")[0] for label in methods))
    bars = []
    for one in panel:
        color = families.index(one.label.partition(", ")[0]) % GREY
        runs = counted(one.runs, "run")
        bars.append(Bar(one.label, *one.score, color=color, detail=runs))
    few = min(one.runs for one in panel) / len(tasks) < 5
    return intervals(
        f"iqm-{place}",
        f"Interquartile mean {f'on {tasks[0]}' if len(tasks) == 1 else f'over {len(tasks)} tasks'}",
        bars,
        f"interquartile mean of return / {LARGEST_RETURN:,.0f}",
        notes=[f"Compared on {where}.", *[FEW] * few],
    )


def efficiency_section(found: Sequence[Final], wanted: Sequence[float]) -> Section:
    """Frames to a return."""
    rows = []
    for one in reaching(found, wanted):
        median = median_frames(one.per_seed)
        text = f"not reached in {one.frames:,}" if median is None else f"{median:,.0f}"
        reached = sum(frame is not None for frame in one.per_seed)
        share = f"{reached} of {len(one.per_seed)}"
        level = Cell(f"{one.wanted:,.0f}", one.wanted)
        rows.append([one.task, level, one.label, Cell(text, median), share])
    remarks = (
        "A seed that never reached the return counts as later than any that did: the median is "
        "'not reached' where half of the seeds or more did not.",
        "Returns asked for by --reach."
        if wanted
        else "Returns: 50 % and 90 % of the best final mean on the task.",
    )
    columns = ("task", "return", "method", "frames, median over seeds", "seeds that reached it")
    title = "Frames until an evaluation first reaches a return"
    table = Table("efficiency", title, columns, rows, remarks)
    absent = dict.fromkeys(final.task for final in found).keys() - {row[0] for row in rows}
    text = (
        f"Left out, as no mean is above zero: {', '.join(sorted(absent))}. --reach names returns."
    )
    paragraphs = (text,) if absent else ()
    return Section("efficiency", "Sample efficiency", paragraphs, (), [table] if rows else ())


def clock_section(found: Sequence[Final], price: float | None) -> Section:
    """Hours of the runs that recorded them; cost at a price per hour of machine."""
    rows: list[list[Value]] = []
    for one in found:
        series = one.series
        if not series.seconds:
            continue
        hours = series.seconds / 3600
        frames = sum(series.curves[seed][-1][0] for seed in series.seeds)
        speed = frames / hours / 3600
        cost = None if price is None else Cell(f"{hours * price:,.2f}", hours * price)
        hardware = " | ".join(dict.fromkeys(origin.hardware for origin in series.origins))
        rows.append(
            [
                *(one.task, one.label, len(series.seeds), frames, Cell(f"{hours:.2f}", hours)),
                *(Cell(f"{speed:,.0f}", speed), cost, hardware),
            ]
        )
    columns = ("task", "method", "seeds", "frames of all seeds", "hours", "frames per second")
    given = "--price-per-hour was not given" if price is None else f"{price:g} per hour of machine"
    remark = (
        f"Seconds from the runs' rows, all seeds of a run together. Cost: {given}; runs that "
        "shared a machine are each charged for all of it."
    )
    title = "Hours, frames per second and cost"
    table = Table("clock", title, (*columns, "cost", "hardware"), rows, (remark,))
    return Section("clock", "Wall-clock and cost", tables=[table] if rows else ())


def misfit_section(found: Found) -> Section:
    """Misfit of every dataset, and against the return gain where both are known."""
    misfits = [one for group in found.misfits.values() for one in group]
    if not misfits:
        return Section("misfit", "CP misfit")
    figures = []
    for kind, label in MISFITS.items():
        bars = [Bar(f"{one.task} ({one.dataset})", *getattr(one, kind)) for one in misfits]
        title = f"Excess test loss of CP over joint: {label}"
        figures.append(intervals(f"misfit-{kind}", title, bars, f"{label} (CP less joint)", 0.0))
    measured, published = gains(found.series), published_gains()
    known = [one for one in misfits if one.task in published | measured]
    if known:
        figures += [gain_figure(kind, known, measured, published) for kind in MISFITS]
    texts = ["Excess test loss of a factored predictor over a joint one (docs/misfit.md)."]
    if lacking := missing(misfits, published | measured):
        texts.append(f"Still to measure for the paper's figure: {lacking}.")
    return Section("misfit", "CP misfit", texts, figures)


def gain_figure(
    kind: str,
    misfits: Sequence[Misfit],
    measured: Mapping[str, float],
    published: Mapping[str, float],
) -> Figure:
    """Return gain against one of the misfits (Figure cp-misfit)."""
    points = []
    for one in misfits:
        label = one.task if one.task in measured else f"{one.task} (paper)"
        gain = measured.get(one.task, published.get(one.task, math.nan))
        value, low, high = getattr(one, kind)
        points.append(Marker(label, value, low, high, gain, one.action_dim))
    note = "(paper): the gain is from the paper's Table 1, as no pair of runs is given."
    return markers(
        f"misfit-gain-{kind}",
        f"Return gain against {MISFITS[kind]}",
        points,
        Axes(f"{MISFITS[kind]} (CP less joint)", "return gain: FaStR less CTRL-SR"),
        "action dimension",
        [note] if any(one.task not in measured for one in misfits) else [],
    )


def coverage_section(found: Found) -> Section:
    """Directions that one batch can train, from coverage tables."""
    figures, taken = [], []
    for _, task, lines in found.coverage:
        taken.append(file_name(f"coverage-{task}", taken))
        place = {name: i for i, name in enumerate(NAMES)}
        ordered = sorted(lines, key=lambda line: place.get(line["method"], len(place)))
        spelled = [line | {"method": NAMES.get(line["method"], line["method"])} for line in ordered]
        title = f"{task}: directions one batch can train"
        figures.append(coverage_figure(taken[-1], title, spelled))
    text = "Share of the next-state factor's directions that one batch's gradient reaches."
    return Section("coverage", "Coverage", (text,) if figures else (), figures)


def provenance_section(numbers: Sequence[Final], found: Found, without: Sequence[str]) -> Section:
    """Source of every number, and what was found and not used."""
    sources: dict[Origin, list[str]] = {}
    for final in numbers:
        for origin in final.series.origins:
            sources.setdefault(origin, []).append(f"{final.label} on {final.task}")
    for origin, task, _ in found.coverage:
        sources[origin] = [f"coverage on {task}"]
    for path in found.misfits:
        sources[Origin(shown(path))] = ["CP misfit"]
    rows = [
        ["; ".join(what), one.path, one.command, one.commit, one.hardware, one.note]
        for one, what in sources.items()
    ]
    columns = ("what", "file", "command", "commit", "hardware", "note")
    tables = [Table("provenance", "Source of the numbers", columns, rows)]
    if left := [*found.left_out, *without]:
        lines = [[shown(text, 600)] for text in left]
        tables.append(Table("left-out", "Found and left out", ("what and why",), lines))
    return Section("provenance", "Provenance", tables=tables)


def copied_section(found: Found) -> Section:
    """Tables that another command wrote, as they are."""
    tables, taken = [], []
    for path, lines in found.tables.items():
        taken.append(file_name(f"{path.parent.name}-{path.stem}", taken))
        columns = [shown(column).replace("_", " ") for column in lines[0]]
        rows = [[as_number(text) for text in line.values()] for line in lines]
        tables.append(Table(taken[-1], shown(path), columns, rows))
    return Section("tables", "Tables of ablations and transfers", tables=tables)


def as_number(text: str) -> Value:
    """A number, or the text that is none."""
    value = parsed(text)
    return text if math.isnan(value) else value
