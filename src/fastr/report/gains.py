"""FaStR beside CTRL-SR: their final returns where both were run alike and equally long."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fastr.envs.names import respelled
from fastr.errors import UserError
from fastr.misfit.scatter import FACTORED, JOINT, Returns
from fastr.report.finals import Final, finals
from fastr.report.reading import run_series
from fastr.report.series import Curve, Origin, Series, united
from fastr.report.tables import COLUMNS, csv_evaluations, finite, frame_number, table_lines
from fastr.report.text import shown

MEANS = ("task", "method", "mean")
CURVES = ("task", "method", *COLUMNS)


def returns_of(paths: Iterable[Path]) -> Returns:
    """Returns from run directories and tables; UserError where a task has several pairs."""
    found = pairs(finals(united([one for path in paths for one in series_of(path)]))[0])
    seen: dict[str, Final] = {}
    for factored, _ in found:
        first = seen.setdefault(factored.task, factored)
        if first is not factored:
            raise UserError(
                f"--returns has several pairs of both methods on {factored.task} ({first.label}; "
                f"{factored.label}); name the runs or tables of one."
            )
    return gains(found)


def gains(found: Sequence[tuple[Final, Final]]) -> Returns:
    """Returns of each task's first pair."""
    result: Returns = {}
    for factored, joint in found:
        result.setdefault((factored.task, FACTORED), factored.mean)
        result.setdefault((joint.task, JOINT), joint.mean)
    return result


def pairs(found: Sequence[Final]) -> list[tuple[Final, Final]]:
    """FaStR and CTRL-SR wherever both were run alike and equally long."""
    return [
        (factored, joint)
        for factored in found
        for joint in found
        if (factored.series.method, joint.series.method) == (FACTORED, JOINT)
        and (factored.task, factored.series.variant, factored.frames)
        == (joint.task, joint.series.variant, joint.frames)
    ]


def series_of(path: Path) -> list[Series]:
    """What a run directory or a table measures."""
    return [run_series(path)] if path.is_dir() else table_series(path)


def table_series(path: Path) -> list[Series]:
    """From a CSV file: task, method and mean; or task, method, seed, frames and return."""
    lines = table_lines(path, ())
    columns = set(lines[0]) if lines else set()
    if columns.issuperset(MEANS):
        return mean_series(path, lines)
    if columns.issuperset(CURVES):
        return [
            read_series(path, task, method, evaluations.curves)
            for (task, method), evaluations in csv_evaluations(path).items()
        ]
    raise UserError(
        f"{path} needs lines with the columns task, method and mean, or task, method, seed, "
        "frames and return."
    )


def mean_series(path: Path, lines: Sequence[dict[str, str]]) -> list[Series]:
    """Each mean as a curve of one evaluation, at its frames if the table has them."""
    found: dict[tuple[str, str], Series] = {}
    for i, line in enumerate(lines, 2):
        place = f"{path}, line {i}"
        task, method = respelled(shown(line["task"])), shown(line["method"])
        point = frame_number(line.get("frames", 0), place), finite(line["mean"], place, "mean")
        if (task, method.lower()) in found:
            raise UserError(f"{place}: {method} on {task} is there twice; keep one of the lines.")
        found[task, method.lower()] = read_series(path, task, method, {"mean": (point,)})
    return list(found.values())


def read_series(path: Path, task: str, method: str, curves: Mapping[str, Curve]) -> Series:
    """A table's series, its method as the command line spells it."""
    return Series(task, method.lower(), curves, (Origin(shown(path)),))
