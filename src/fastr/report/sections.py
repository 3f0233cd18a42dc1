"""Curves, aggregates, sample efficiency and cost, as sections."""

from collections.abc import Mapping, Sequence

from fastr.core import counted
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
from fastr.report.content import Bar, Cell, Grid, Intervals, Line, Lines, Section
from fastr.report.finals import Final, horizons
from fastr.report.text import file_name


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


def middle_chart(place: int, panel: Sequence[Middle], until: Mapping[str, int]) -> Intervals:
    """Interquartile means of the methods on one set of tasks."""
    tasks = panel[0].tasks
    where = ", ".join(f"{task} at {counted(until[task], 'frame')}" for task in tasks)
    bars = [Bar(m.label, *m.score, m.label, counted(m.runs, "run")) for m in panel]
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
    kept, left_out = comparable(found)
    panels, pairs, until = middles(kept, seed), improvements(kept, seed), horizons(kept)
    charts: list[Intervals] = [middle_chart(i, panel, until) for i, panel in enumerate(panels, 1)]
    if pairs:
        charts.append(improvement_chart(pairs))
    text = (
        "Over the DM Control Suite tasks whose returns lie between 0 and 1,000. Each run counts "
        "with the mean of its last ten evaluations up to the last frame that all compared methods "
        "reached. Intervals: 95 %, runs resampled within each task (2,000 times, generator seed "
        f"{seed}). Side by side are methods on the same set of tasks only; each probability "
        "compares a method with the first that shares most tasks with it."
    )
    left = [
        f"Left out, as {reason}: {', '.join(f'{one.label} on {one.task}' for one in finals)}."
        for reason, finals in left_out.items()
        if finals
    ]
    return Section("aggregates", "Across tasks", (text, *left), tuple(charts))


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
    shown = {row[0].text for row in rows}
    absent = [task for task in dict.fromkeys(one.task for one in found) if task not in shown]
    left_out = f"Left out, as no mean is above zero: {', '.join(absent)}. --reach names returns."
    text = (left_out,) if absent else ()
    return Section("efficiency", "Sample efficiency", text, (), (grid,) if rows else ())


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
