"""The paper's figure: misfit against return gain, one marker per dataset (Figure cp-misfit)."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastr.core import LARGEST, UserError
from fastr.envs.names import respelled
from fastr.report.old_plots import plotting
from fastr.runs.summary import number
from fastr.runs.untrusted import bounded_bytes
from fastr.studies.misfit.report import REPORT

TABLE_TASKS = (
    "cheetah-run",
    "walker-walk",
    "walker-run",
    "quadruped-walk",
    "quadruped-run",
    "humanoid-stand",
    "humanoid-walk",
    "humanoid-run",
    "dog-stand",
    "dog-run",
)
"""The ten tasks of the paper's Table 1."""
EXTRA_TASKS = ("finger-spin", "hopper-hop", "fish-swim")
"""Three more, ours: the paper's figure has 13 tasks with 2 to 38 action dimensions and does not
name them. These have 2, 4 and 5, where Table 1 has none."""
FACTORED, JOINT = "fastr", "ctrl-sr"
NUMBERS = ("value", "low", "high")
KINDS = ("nce", "moment")
ENDS = ("", "_low", "_high")
COLUMNS = (
    *("task", "dataset", "action_dim"),
    *(f"{kind}_misfit{end}" for kind in KINDS for end in ENDS),
    "return_gain",
)
"""Of the table beside the picture."""
GAIN = "return gain: FaStR less CTRL-SR"
AXES = {
    "nce": "NCE misfit: CP less joint (nats)",
    "moment": "moment misfit: CP less joint (share of the variance)",
}


class Point(NamedTuple):
    """One marker."""

    task: str
    dataset: str
    action_dim: int
    nce: dict[str, float]
    moment: dict[str, float]
    gain: float | None
    """Return of the factored method less that of the joint one; None where one is not known."""


Returns = dict[tuple[str, str], float]
"""Final returns by task and method."""


def points(reports: Sequence[Path], returns: Returns) -> list[Point]:
    """Every dataset of these reports, in order."""
    found = []
    for path in reports:
        for entry in report_entries(path):
            task = task_of(entry)
            both = [returns.get((task, method)) for method in (FACTORED, JOINT)]
            gain = None if None in both else both[0] - both[1]  # pyright: ignore
            found.append(
                Point(
                    task,
                    str(entry["name"]),
                    entry["action_dim"],
                    entry["nce_misfit"],
                    entry["moment_misfit"],
                    gain,
                )
            )
    return found


def report_entries(path: Path) -> list[dict[str, Any]]:
    """The datasets of a report; UserError unless it is one."""
    file = path / REPORT if path.is_dir() else path
    try:
        content = json.loads(bounded_bytes(file))
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON, so it is not a report of fastr misfit.") from error
    entries = content.get("datasets") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(sound_entry(entry) for entry in entries):
        raise UserError(f"{file} is not a report of fastr misfit.")
    return entries


def task_of(entry: dict[str, Any]) -> str:
    """The task that a dataset is of, or its own name where it does not say."""
    return respelled(str(entry.get("task") or entry["name"]))


def sound_entry(entry: object) -> bool:
    """Whether this is what a report says of one dataset."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return False
    if type(entry.get("action_dim")) is not int or not 1 <= entry["action_dim"] <= LARGEST:
        return False
    misfits = [entry.get(key) for key in ("nce_misfit", "moment_misfit")]
    return all(isinstance(m, dict) and all(number(m.get(n)) for n in NUMBERS) for m in misfits)


def missing(found: Sequence[Point]) -> list[str]:
    """What the thirteen tasks still lack, in words."""
    measured = {point.task for point in found}
    gained = {point.task for point in found if point.gain is not None}
    without = [task for task in (*TABLE_TASKS, *EXTRA_TASKS) if task not in measured]
    lacking = sorted(measured - gained)
    lines = [f"no misfit measured: {', '.join(without)}"] if without else []
    said = f"no returns of both methods, run alike and equally long: {', '.join(lacking)}"
    return [*lines, said] if lacking else lines


def write_table(found: Sequence[Point], path: Path) -> None:
    """The markers as numbers."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(COLUMNS)
        for point in found:
            values = [m[name] for m in (point.nce, point.moment) for name in NUMBERS]
            gain = "" if point.gain is None else point.gain
            lines.writerow((point.task, point.dataset, point.action_dim, *values, gain))


def draw(found: Sequence[Point], path: Path) -> None:
    """Both panels: gain against the NCE misfit, and against the moment misfit."""
    drawn = [point for point in found if point.gain is not None]
    if not drawn:
        raise UserError(
            "No dataset has both a misfit and returns of both methods, run alike and equally long."
        )
    pyplot = plotting()
    figure, both = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    markers = [draw_panel(axes, drawn, kind) for axes, kind in zip(both, KINDS, strict=True)]
    both[0].set_ylabel(GAIN)
    figure.colorbar(markers[0], ax=both, label="action dimension")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_panel(axes: Any, drawn: Sequence[Point], kind: str) -> Any:
    """Gain against one of the misfits, with its intervals; the markers, for a colour bar."""
    dims = [point.action_dim for point in drawn]
    misfits = [getattr(point, kind) for point in drawn]
    for point, misfit in zip(drawn, misfits, strict=True):
        ends = [misfit["low"], misfit["high"]]
        axes.plot(ends, [point.gain] * 2, color="grey", linewidth=1, zorder=1)
    label_points(axes, drawn, misfits)
    markers = axes.scatter(
        [misfit["value"] for misfit in misfits],
        [point.gain for point in drawn],
        c=dims,
        s=[25 + 5 * dim for dim in dims],
        cmap="viridis",
        vmin=0,
        vmax=max(38, *dims),
        zorder=2,
    )
    axes.axhline(0.0, color="grey", linewidth=0.8)
    axes.axvline(0.0, color="grey", linewidth=0.8)
    axes.set(xlabel=AXES[kind])
    axes.grid(alpha=0.3)
    return markers


def label_points(axes: Any, drawn: Sequence[Point], misfits: Sequence[dict[str, float]]) -> None:
    """The tasks' names, towards the middle of the panel, losses below their markers."""
    middle = np.mean(axes.get_xlim())
    for point, misfit in zip(drawn, misfits, strict=True):
        right, below = misfit["value"] > middle, (point.gain or 0.0) < 0
        axes.annotate(
            point.task,
            (misfit["value"], point.gain),
            xytext=(-5 if right else 5, -4 if below else 4),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top" if below else "bottom",
            fontsize=7,
            parse_math=False,
        )
