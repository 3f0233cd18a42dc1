"""Curves, the paper's Table 1, aggregates, sample efficiency and cost, as sections."""

from collections.abc import Mapping, Sequence

from fastr.misfit.scatter import TABLE_TASKS
from fastr.report.aggregates import (
    LARGEST_RETURN,
    Improvement,
    Middle,
    clocks,
    comparable,
    improvements,
    middles,
    reaching,
)
from fastr.report.content import Bar, Cell, Grid, Group, Intervals, Line, Lines, Section, plus_minus
from fastr.report.finals import Final, horizons, labels
from fastr.report.published import FRAMES, Published, published
from fastr.report.series import NAMES, Series
from fastr.report.text import file_name

SHORT = ("Cheetah Run", "Walker Walk", "Walker Run", "Quad. Walk", "Quad. Run")
SHORT += ("Hum. Stand", "Hum. Walk", "Hum. Run", "Dog Stand", "Dog Run")
BY_ACTIONS = (Group("dim A = 6", 3), Group("dim A = 12", 2))
BY_ACTIONS += (Group("dim A = 21", 3), Group("dim A = 38", 2))
ONE_SEED = "1 seed, so no deviation"
WINDOW = "Mean of the last 10 evaluations, ± standard deviation over seeds (ddof 0)."
BOLD = "Bold: best of its group on the task by more than its own standard deviation."


def curve(final: Final) -> Line:
    """Mean over seeds with a band of one standard deviation."""
    mean, std = final.whole.returns.mean(axis=0), final.whole.returns.std(axis=0)
    columns = (final.whole.frames, mean, mean - std, mean + std)
    points = zip(*(column.tolist() for column in columns), strict=True)
    return Line(final.label, tuple(points))


def curve_chart(
    name: str, title: str, here: Sequence[Final], levels: tuple[tuple[str, float], ...] = ()
) -> Lines:
    """Learning curves of some methods on one task."""
    said: dict[str, list[str]] = {}
    for final in here:
        for note in final.notes:
            said.setdefault(note, []).append(final.label)
    notes = tuple(f"{whom(names, here)}: {note}." for note, names in said.items())
    return Lines(name, title, tuple(curve(final) for final in here), levels=levels, notes=notes)


def whom(names: Sequence[str], here: Sequence[Final]) -> str:
    """Methods in words."""
    return "All methods" if len(names) == len(here) > 1 else "; ".join(names)


def curves_section(found: Sequence[Final]) -> Section:
    """Learning curves, task by task."""
    charts, taken = [], []
    for task in dict.fromkeys(final.task for final in found):
        taken.append(file_name(f"curves-{task}", taken))
        here = [final for final in found if final.task == task]
        charts.append(curve_chart(taken[-1], task, here))
    text = (
        "Greedy evaluation return against frames (simulator steps; an agent step is several). "
        "Lines are means over seeds, bands one standard deviation, drawn where all seeds of a "
        "method were evaluated."
    )
    return Section("curves", "Learning curves", (text,), tuple(charts))


def measured_cell(final: Final, notes: Sequence[str] = ()) -> Cell:
    """The paper's number with everything that must be said about it."""
    alone = len(final.series.seeds) < 2
    said = (*final.notes, *notes, *((ONE_SEED,) if alone else ()))
    text = plus_minus(final.mean, None if alone else final.std)
    return Cell(text, final.mean, final.best, said)


def table_one(found: Sequence[Final]) -> Section:
    """The paper's Table 1 in its own form: methods by tasks, beside what others published."""
    rows = [*measured_rows(found), *published_rows()]
    grid = Grid(
        "table1",
        "Final return on the ten tasks of the paper's Table 1",
        ("method", "from", "seeds", *SHORT),
        rows,
        remarks=(
            f"{WINDOW} {BOLD} One rule for every row: of the paper's own bold cells, three "
            "(walker-walk, quadruped-walk, quadruped-run) do not meet it.",
            "Numbers of other authors are their last evaluation at 1,000,000 frames, not the mean "
            "of ten.",
        ),
        groups=(Group("", 3), *BY_ACTIONS),
    )
    return Section("table1", "Table 1", (), (), (grid,))


def measured_rows(found: Sequence[Final]) -> list[list[Cell]]:
    """One row per measured method that has any of the ten tasks."""
    rows = []
    for label in labels(found):
        own = {final.task: final for final in found if final.label == label}
        if not own.keys() & set(TABLE_TASKS):
            continue
        counts = sorted({len(own[task].series.seeds) for task in TABLE_TASKS if task in own})
        seeds = Cell(" to ".join(map(str, sorted({counts[0], counts[-1]}))), float(counts[0]))
        cells = [budget_cell(own[task]) if task in own else Cell("–") for task in TABLE_TASKS]
        rows.append([Cell(label), Cell("measured"), seeds, *cells])
    return rows


def budget_cell(final: Final) -> Cell:
    """A measured number beside those at the paper's budget."""
    short = final.frames != FRAMES
    return measured_cell(final, (f"at {final.frames:,} frames, not {FRAMES:,}",) if short else ())


def published_rows() -> list[list[Cell]]:
    """The paper's rows and other authors'."""
    numbers = {(entry.method, entry.task): entry for entry in published()}
    rows = []
    for method in dict.fromkeys(method for method, _ in numbers):
        own = {task: numbers[method, task] for task in TABLE_TASKS if (method, task) in numbers}
        first = next(iter(own.values()))
        notes = () if first.of_the_paper else (first.source,)
        source = Cell("authors" if notes else "paper", notes=notes)
        cells = [
            Cell(plus_minus(own[t].mean, own[t].std), own[t].mean, clear(own[t], numbers))
            if t in own
            else Cell("–")
            for t in TABLE_TASKS
        ]
        rows.append([Cell(method), source, Cell(str(first.seeds), first.seeds), *cells])
    return rows


def clear(entry: Published, numbers: Mapping[tuple[str, str], Published]) -> bool:
    """Whether a number is the best of the paper's, or of the others', by more than its own std."""
    rivals = [
        other.mean
        for other in numbers.values()
        if other.task == entry.task
        and other.of_the_paper == entry.of_the_paper
        and other is not entry
    ]
    return entry.mean - max(rivals) > entry.std


def paper_number(series: Series) -> Published | None:
    """What the paper reports for this method in the paper's form on this task."""
    name = NAMES.get(series.method, series.method)
    return next(
        (p for p in published() if p.of_the_paper and (p.method, p.task) == (name, series.task)),
        None,
    )


def returns_grid(found: Sequence[Final]) -> Grid:
    """Every measured number."""
    rows = []
    for final in found:
        alone = len(final.series.seeds) < 2
        last = plus_minus(final.last_mean, None if alone else final.last_std)
        paper = paper_number(final.series)
        rows.append(
            (
                Cell(final.task),
                Cell(final.label),
                Cell(f"{final.frames:,}", final.frames),
                Cell(str(len(final.series.seeds)), len(final.series.seeds)),
                measured_cell(final),
                Cell(last, final.last_mean),
                Cell(plus_minus(paper.mean, paper.std), paper.mean) if paper else Cell("–"),
            )
        )
    columns = ("task", "method", "frames", "seeds", "last 10 evaluations", "last evaluation")
    return Grid(
        "returns",
        "Every measured return",
        (*columns, f"paper, at {FRAMES:,} frames"),
        rows,
        remarks=(
            f"{WINDOW} {BOLD} Nothing is bold where methods ended at different frames.",
            "The paper's number is that of the method's name, whatever preset or option was "
            "measured here.",
        ),
    )


def returns_section(found: Sequence[Final]) -> Section:
    """Every measured number."""
    return Section("returns", "Measured returns", (), (), (returns_grid(found),))


def middle_chart(place: int, panel: Sequence[Middle], until: Mapping[str, int]) -> Intervals:
    """Interquartile means of the methods on one set of tasks."""
    tasks = panel[0].tasks
    where = ", ".join(f"{task} at {until[task]:,} frames" for task in tasks)
    bars = [Bar(m.label, *m.score, m.label, f"{m.runs} runs") for m in panel]
    return Intervals(
        f"iqm-{place}",
        f"Interquartile mean {f'on {tasks[0]}' if len(tasks) == 1 else f'over {len(tasks)} tasks'}",
        bars,
        f"interquartile mean of return / {LARGEST_RETURN:,.0f}",
        notes=(f"Compared on {where}.", *few_runs([m.runs / len(tasks) for m in panel])),
    )


def few_runs(runs_per_task: Sequence[float]) -> tuple[str, ...]:
    """A warning where intervals come from next to nothing."""
    if min(runs_per_task) >= 5:
        return ()
    return ("Fewer than 5 seeds per task: such intervals are too narrow, and one seed has none.",)


def improvement_chart(found: Sequence[Improvement]) -> Intervals:
    """Probabilities of improvement, one below the other."""
    bars = [
        Bar(f"{i.first} > {i.second}", *i.probability, detail=f"on {', '.join(i.tasks)}")
        for i in found
    ]
    runs = [min(i.runs) / len(i.tasks) for i in found]
    return Intervals(
        "improvement",
        "Probability of improvement",
        bars,
        "P(X > Y) + P(X = Y) / 2, mean over shared tasks",
        reference=0.5,
        notes=few_runs(runs),
    )


def aggregate_section(found: Sequence[Final], seed: int) -> Section:
    """Interquartile means and probabilities of improvement."""
    late, early = comparable(found)
    panels, pairs, until = middles(late, seed), improvements(late, seed), horizons(late)
    charts: list[Intervals] = [middle_chart(i, panel, until) for i, panel in enumerate(panels, 1)]
    if pairs:
        charts.append(improvement_chart(pairs))
    text = (
        "Over DM Control Suite tasks, whose returns all lie between 0 and 1,000. Each run counts "
        "with the mean of its last ten evaluations up to the last frame that all compared methods "
        "reached. Intervals: 95 %, runs resampled within each task (2,000 times, generator seed "
        f"{seed}). Side by side are methods on the same set of tasks only; each probability "
        "compares a method with the first that shares most tasks with it."
    )
    names = ", ".join(f"{final.label} on {final.task}" for final in early)
    left = f"Left out, as it ended before half of the longest on its task: {names}."
    paragraphs = (text, left) if early else (text,)
    return Section("aggregates", "Across tasks", paragraphs, tuple(charts))


def efficiency_section(found: Sequence[Final], wanted: Sequence[float]) -> Section:
    """Frames to a return, with those that never got there."""
    rows = []
    for one in reaching(found, wanted):
        median = one.median
        text = f"not reached in {one.frames:,}" if median is None else f"{median:,.0f}"
        rows.append(
            (
                Cell(one.task),
                Cell(f"{one.wanted:,.0f}", one.wanted),
                Cell(one.label),
                Cell(text, median),
                Cell(f"{one.successes} of {len(one.per_seed)}", one.successes / len(one.per_seed)),
            )
        )
    grid = Grid(
        "efficiency",
        "Frames until an evaluation first reaches a return",
        ("task", "return", "method", "frames, median over seeds", "seeds that reached it"),
        rows,
        remarks=(
            "A seed that never reached the return counts as later than any that did: the median "
            "is 'not reached' where half of the seeds or more did not.",
            "Returns asked for by --reach."
            if wanted
            else "Returns: 50 % and 90 % of the best final mean on the task.",
        ),
    )
    return Section("efficiency", "Sample efficiency", (), (), (grid,))


def clock_section(found: Sequence[Final], price: float | None) -> Section | None:
    """Hours and cost; None where no run recorded them."""
    measured = clocks(found, price)
    if not measured:
        return None
    rows = [
        (
            Cell(one.task),
            Cell(one.label),
            Cell(str(one.seeds), one.seeds),
            Cell(f"{one.frames:,}", one.frames),
            Cell(f"{one.hours:.2f}", one.hours),
            Cell(f"{one.frames / one.hours / 3600:,.0f}", one.frames / one.hours / 3600),
            Cell("–") if one.cost is None else Cell(f"{one.cost:,.2f}", one.cost),
            Cell(one.hardware),
        )
        for one in measured
    ]
    columns = ("task", "method", "seeds", "frames of all seeds", "hours", "frames per second")
    said = "--price-per-hour was not given" if price is None else f"{price:g} per hour of machine"
    grid = Grid(
        "clock",
        "Hours, frames per second and cost",
        (*columns, "cost", "hardware"),
        rows,
        remarks=(
            f"Seconds from the runs' rows, all seeds of a run side by side. Cost: {said}; runs "
            "that shared a machine are each charged for all of it.",
        ),
    )
    return Section("clock", "Wall-clock and cost", (), (), (grid,))
