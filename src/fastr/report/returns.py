"""Final returns, as sections: the paper's Table 1, and every measured number."""

from collections.abc import Mapping, Sequence

from fastr.core import counted
from fastr.report.content import Cell, Grid, Group, Section, plus_minus
from fastr.report.finals import Final, labels
from fastr.report.published import FRAMES, Published, published
from fastr.report.scatter import TABLE_TASKS
from fastr.report.series import NAMES, Series

SHORT = ("Cheetah Run", "Walker Walk", "Walker Run", "Quad. Walk", "Quad. Run")
SHORT += ("Hum. Stand", "Hum. Walk", "Hum. Run", "Dog Stand", "Dog Run")
BY_ACTIONS = (Group("dim A = 6", 3), Group("dim A = 12", 2))
BY_ACTIONS += (Group("dim A = 21", 3), Group("dim A = 38", 2))
ONE_SEED = "1 seed, so no deviation"
WINDOW = "Mean of the last 10 evaluations, ± standard deviation over seeds (ddof 0)."
BOLD = "Bold: best of its group on the task by more than its own standard deviation."


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
    return measured_cell(
        final, (f"at {counted(final.frames, 'frame')}, not {FRAMES:,}",) if short else ()
    )


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
