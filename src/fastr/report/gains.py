"""FaStR beside CTRL-SR: their final returns where both were run alike and equally long."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from pathlib import Path

from fastr.core import UserError
from fastr.envs.names import respelled
from fastr.report.finals import Final, finals
from fastr.report.reading import run_series
from fastr.report.scatter import FACTORED, JOINT, Returns
from fastr.report.series import Curve, Origin, Series, differing, options_of, united
from fastr.report.tables import COLUMNS, csv_evaluations, finite, frame_number, table_lines
from fastr.report.text import shown

MEANS = ("task", "method", "mean")
CURVES = ("task", "method", *COLUMNS)


def returns_of(paths: Iterable[Path]) -> Returns:
    """Returns from run directories and tables; UserError where a task has several pairs."""
    once = {path.resolve(): path for path in paths}.values()
    found = pairs([one for path in once for one in series_of(path)])
    seen: dict[str, Final] = {}
    for factored, _ in found:
        first = seen.setdefault(factored.task, factored)
        if first is not factored:
            places = "; ".join(one.series.origins[0].path for one in (first, factored))
            raise UserError(
                f"--returns has several pairs of both methods on {factored.task} ({places}); "
                "name the runs or tables of one."
            )
    return gains(found)


def gains(found: Sequence[tuple[Final, Final]]) -> Returns:
    """Returns of each task's first pair."""
    result: Returns = {}
    for factored, joint in found:
        result.setdefault((factored.task, FACTORED), factored.mean)
        result.setdefault((joint.task, JOINT), joint.mean)
    return result


def pairs(found: Sequence[Series]) -> list[tuple[Final, Final]]:
    """FaStR and CTRL-SR wherever both were run alike and equally long."""
    return [
        (factored, joint)
        for group in alike(found)
        for factored, joint in permutations(finals(united(group))[0], 2)
        if (factored.series.method, joint.series.method) == (FACTORED, JOINT)
        and (factored.series.variant, factored.frames) == (joint.series.variant, joint.frames)
    ]


def alike(found: Sequence[Series]) -> list[list[Series]]:
    """Series of both methods on one task, in groups with the same value of every varied option.

    Options in which the methods differ from each other, but not among their own runs, belong to
    the methods.
    """
    kinds: dict[tuple[str, str], list[Series]] = {}
    for one in found:
        if one.method in (FACTORED, JOINT):
            kinds.setdefault((one.task, one.variant), []).append(one)
    groups: dict[tuple[str, ...], list[Series]] = {}
    for kind, here in kinds.items():
        options = varied_options(here)
        for one in here:
            values = (repr(one.settings.get(name)) for name in options)
            groups.setdefault((*kind, *values), []).append(one)
    return [group for _, group in sorted(groups.items())]


def varied_options(here: Sequence[Series]) -> list[str]:
    """Options in which runs of the same method differ, the budget among them."""
    options = [*options_of(here), "frames"]
    own = [[one for one in here if one.method == method] for method in (FACTORED, JOINT)]
    return sorted({name for runs in own for name in differing(runs, options)})


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
