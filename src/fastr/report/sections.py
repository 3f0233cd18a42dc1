"""The sections of a report: curves, returns, statistics, misfit, tables, provenance."""

import math
from collections.abc import Mapping, Sequence

from fastr.core import counted
from fastr.report import page, stats
from fastr.report.page import Axes, Bar, Marker, Section
from fastr.report.reading import Found, Misfit, parsed
from fastr.report.series import NAMES, TABLE_TASKS, Final, Origin, finals, horizons, labels, united
from fastr.report.stats import FRAMES, Middle, Published, published
from fastr.report.table import Cell, Table, Value, file_name, shown

WINDOW = "Mean of the last 10 evaluations, ± standard deviation over seeds (ddof 0)."
BOLD = "Bold: best of its group on the task by more than its own standard deviation."
FEW = "Fewer than 5 seeds per task: such intervals are too narrow, and one seed has none."
MISFITS = {"nce": "NCE misfit in nats", "moment": "moment misfit"}


def sections(found: Found, seed: int = 0) -> tuple[list[Section], list[Final]]:
    """All sections with content, and the numbers in them."""
    numbers, without = finals(united(found.series))
    plain = [final for final in numbers if "@" not in final.task]
    parts = []
    if numbers:
        parts.append(curves_section(numbers))
    if suite := any(final.task in stats.SCALED for final in plain):
        parts.append(table_one(plain))
    if numbers:
        parts.append(Section("returns", "Measured returns", tables=[returns_table(numbers)]))
    if suite:
        parts.append(aggregate_section(plain, seed))
    if misfits := [one for group in found.misfits.values() for one in group]:
        parts.append(misfit_section(misfits, stats.gains(numbers)))
    if found.tables:
        parts.append(copied_section(found))
    return [*parts, provenance_section(numbers, found, without)], numbers


def looks(found: Sequence[Final]) -> dict[str, tuple[int, object]]:
    """Colour and dash of each method, the same in all figures."""
    # From the eighth method on colours come again, with another dash.
    return {
        label: (place % page.GREY, page.DASHES[place // page.GREY % len(page.DASHES)])
        for place, label in enumerate(labels(found))
    }


def curves_section(numbers: Sequence[Final]) -> Section:
    """Learning curves, task by task."""
    figures, taken, styles = [], [], looks(numbers)
    for task in dict.fromkeys(final.task for final in numbers):
        taken.append(file_name(f"curves-{task}", taken))
        here = {final.label: final for final in numbers if final.task == task}
        lines = [
            page.banded(label, here[label].evaluated, here[label].returns, *style)
            for label, style in styles.items()
            if label in here
        ]
        axes = Axes(page.FRAMES_LABEL, page.RETURN)
        figures.append(page.curves(taken[-1], task, lines, axes))
    text = (
        "Greedy evaluation return against frames (simulator steps; an agent step is several). "
        "Lines are means over seeds, bands one standard deviation, where all seeds of a method "
        "were evaluated. Caveats of each are the notes of the table of measured returns."
    )
    return Section("curves", "Learning curves", (text,), figures)


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
            counts = {len(final.series.seeds) for final in here}
            least, most = min(counts), max(counts)
            seeds = Cell(f"{least}" if least == most else f"{least} to {most}", least)
            cells = [budget_cell(own[task]) if task in own else None for task in TABLE_TASKS]
            rows.append([label, "measured", seeds, *cells])
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
    if final.frames == FRAMES:
        return measured_cell(final)
    return measured_cell(final, f"at {counted(final.frames, 'frame')}, not {FRAMES:,}")


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
        ends, seeds = final.returns[:, -1], len(final.series.seeds)
        last = plus_minus(float(ends.mean()), None if seeds < 2 else float(ends.std()))
        paper = papers.get((NAMES.get(final.series.method, ""), final.task))
        rows.append(
            [
                *(final.task, final.label, final.frames, seeds, measured_cell(final)),
                Cell(last, float(ends.mean())),
                Cell(plus_minus(paper.mean, paper.std), paper.mean) if paper else None,
            ]
        )
    remarks = (
        f"{WINDOW} {BOLD} Nothing is bold where methods ended at different frames.",
        "The paper's number is that of the method's name, whatever preset or option was measured "
        "here.",
    )
    columns = ("task", "method", "frames", "seeds", "last 10 evaluations", "last evaluation")
    columns = (*columns, f"paper, at {FRAMES:,} frames")
    return Table("returns", "Every measured return", columns, rows, remarks)


def aggregate_section(found: Sequence[Final], seed: int) -> Section:
    """Interquartile means and probabilities of improvement."""
    kept, left_out = stats.comparable(found)
    panels, pairs, until = stats.middles(kept, seed), stats.improvements(kept, seed), horizons(kept)
    styles = looks(found)
    figures = [middle_figure(i, panel, until, styles) for i, panel in enumerate(panels, 1)]
    if pairs:
        bars = [
            Bar(f"{i.first} > {i.second}", *i.probability, detail=f"on {', '.join(i.tasks)}")
            for i in pairs
        ]
        few = min(min(i.runs) / len(i.tasks) for i in pairs) < 5
        label = "P(X > Y) + P(X = Y) / 2, mean over shared tasks"
        title = "Probability of improvement"
        figures.append(page.intervals("improvement", title, bars, label, 0.5, [FEW] * few))
    texts = [
        "Over the DM Control Suite tasks whose returns lie between 0 and 1,000. Each run counts "
        "with the mean of its last ten evaluations up to the last frame that all compared methods "
        "reached. Intervals: 95 %, runs resampled within each task (2,000 times, generator seed "
        f"{seed}). A figure compares methods on the same set of tasks only; each probability "
        "compares a method with the first that shares most tasks with it."
    ]
    if left_out:
        names = ", ".join(f"{one.label} on {one.task}" for one in left_out)
        reason = "before half of the longest run on the task, or start after another's end"
        texts.append(f"Left out, as they end {reason}: {names}.")
    return Section("aggregates", "Across tasks", texts, figures)


def middle_figure(
    place: int,
    panel: Sequence[Middle],
    until: Mapping[str, int],
    styles: Mapping[str, tuple[int, object]],
) -> page.Figure:
    """Interquartile means of the methods on one set of tasks."""
    tasks = panel[0].tasks
    where = ", ".join(f"{task} at {counted(until[task], 'frame')}" for task in tasks)
    bars = [
        Bar(one.label, *one.score, color=styles[one.label][0], detail=counted(one.runs, "run"))
        for one in panel
    ]
    few = min(one.runs for one in panel) / len(tasks) < 5
    return page.intervals(
        f"iqm-{place}",
        f"Interquartile mean {f'on {tasks[0]}' if len(tasks) == 1 else f'over {len(tasks)} tasks'}",
        bars,
        f"interquartile mean of return / {stats.LARGEST_RETURN:,.0f}",
        notes=[f"Compared on {where}.", *[FEW] * few],
    )


def misfit_section(misfits: Sequence[Misfit], measured: Mapping[str, float]) -> Section:
    """Misfit of every dataset, and against the return gain where both are known."""
    figures, gain = [], stats.published_gains() | dict(measured)
    for kind, label in MISFITS.items():
        bars = [Bar(f"{one.task} ({one.dataset})", *getattr(one, kind)) for one in misfits]
        title = f"Excess test loss of CP over joint: {label}"
        figures.append(
            page.intervals(f"misfit-{kind}", title, bars, f"{label} (CP less joint)", 0.0)
        )
    known = [one for one in misfits if one.task in gain]
    names = [one.task if one.task in measured else f"{one.task} (paper)" for one in known]
    for kind, label in MISFITS.items() if known else ():
        points = [
            Marker(name, value, low, high, gain[one.task], one.action_dim)
            for name, one in zip(names, known, strict=True)
            for value, low, high in [getattr(one, kind)]
        ]
        axes = Axes(f"{label} (CP less joint)", "return gain: FaStR less CTRL-SR")
        title = f"Return gain against {label}"
        figures.append(page.markers(f"misfit-gain-{kind}", title, points, axes, "action dimension"))
    text = (
        "Excess test loss of a factored predictor over a joint one (docs/misfit.md). (paper): the "
        "gain is from the paper's Table 1, as no pair of runs is given."
    )
    return Section("misfit", "CP misfit", (text,), figures)


def copied_section(found: Found) -> Section:
    """Tables that another command wrote, as they are."""
    tables, taken = [], []
    for path, lines in found.tables.items():
        taken.append(file_name(f"{path.parent.name}-{path.stem}", taken))
        columns = [shown(column).replace("_", " ") for column in lines[0]]
        texts = [[shown(text) for text in line.values()] for line in lines]
        rows = [
            [text if math.isnan(parsed(text)) else parsed(text) for text in row] for row in texts
        ]
        tables.append(Table(taken[-1], shown(path), columns, rows))
    return Section("tables", "Tables of other commands", tables=tables)


def provenance_section(numbers: Sequence[Final], found: Found, without: Sequence[str]) -> Section:
    """Source of every number, and what was found and not used."""
    sources: dict[Origin, list[str]] = {}
    for final in numbers:
        for origin in final.series.origins:
            sources.setdefault(origin, []).append(f"{final.label} on {final.task}")
    sources |= {Origin(shown(path)): ["CP misfit"] for path in found.misfits}
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
