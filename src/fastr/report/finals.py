"""The paper's number of every method and task, and what stands in the way of comparing two."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from fastr.core import counted
from fastr.report.series import Aligned, Series, aligned, lacks, showing_order
from fastr.runs.summary import LAST


@dataclass(frozen=True)
class Final:
    """One method on one task in the end."""

    series: Series
    whole: Aligned
    notes: tuple[str, ...]
    """What the number lacks, in words; empty where nothing is missing."""
    best: bool
    """Best of the task, by more than its own standard deviation."""

    @property
    def task(self) -> str:
        """The task's name."""
        return self.series.task

    @property
    def label(self) -> str:
        """The method's name."""
        return self.series.label

    @property
    def frames(self) -> int:
        """The last frame that all seeds reached."""
        return self.whole.last

    @property
    def averaged(self) -> int:
        """Evaluations in the mean."""
        return min(LAST, len(self.whole.frames))

    @property
    def scores(self) -> Float64[np.ndarray, " seed"]:
        """Mean of the last ten evaluations of each seed."""
        return self.whole.scores()

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(self.scores.mean())

    @property
    def std(self) -> float:
        """Over seeds, ddof 0 as in the paper."""
        return float(self.scores.std())

    @property
    def last_mean(self) -> float:
        """The last evaluation alone, over seeds."""
        return float(self.whole.returns[:, -1].mean())

    @property
    def last_std(self) -> float:
        """The last evaluation alone, over seeds."""
        return float(self.whole.returns[:, -1].std())


def finals(found: Sequence[Series]) -> tuple[list[Final], list[str]]:
    """The numbers of all series, and a sentence on each that has none."""
    wholes = [(series, aligned(series)) for series in found]
    sound = [(series, whole) for series, whole in wholes if whole is not None]
    without = [
        f"{series.label} on {series.task}: no frame at which all its seeds were evaluated"
        for series, whole in wholes
        if whole is None
    ]
    result = []
    for task in dict.fromkeys(series.task for series, _ in sound):
        peers = {s.label: (s, whole) for s, whole in sound if s.task == task}
        best = clear_winner(peers)
        result += [
            Final(s, whole, remarks(s, whole, peers), label == best)
            for label, (s, whole) in peers.items()
        ]
    return result, without


def remarks(
    series: Series, whole: Aligned, peers: Mapping[str, tuple[Series, Aligned]]
) -> tuple[str, ...]:
    """All that must be known to read a number: what it lacks, and what its makers say of it."""
    said = [origin.note for origin in series.origins if origin.note]
    return tuple(dict.fromkeys([*lacks(series), *beside(series, whole, peers), *said]))


def beside(
    series: Series, whole: Aligned, peers: Mapping[str, tuple[Series, Aligned]]
) -> list[str]:
    """What a series has less of than the others on its task."""
    found = []
    most = max(len(other.seeds) for other, _ in peers.values())
    if len(series.seeds) < most:
        found.append(f"{counted(len(series.seeds), 'seed')} where another method has {most}")
    longest = max(other.last for _, other in peers.values())
    if whole.last < longest:
        found.append(f"at {counted(whole.last, 'frame')} where another method reaches {longest:,}")
    usual = Counter(spacing(other) for _, other in peers.values()).most_common(1)[0][0]
    own = spacing(whole)
    if own != usual and own and usual:
        found.append(f"evaluated every {counted(own, 'frame')}, most methods every {usual:,}")
    return found


def spacing(whole: Aligned) -> int | None:
    """Frames between evaluations, the most common; None for a single one."""
    steps, counts = np.unique(np.diff(whole.frames), return_counts=True)
    return int(steps[counts.argmax()]) if len(steps) else None


def clear_winner(peers: Mapping[str, tuple[Series, Aligned]]) -> str | None:
    """The method to print in bold: the gap to the next exceeds its standard deviation (Table 1).

    None where methods ended at different frames, or where the best has one seed and so no
    deviation to compare with.
    """
    if len(peers) < 2 or len({whole.last for _, whole in peers.values()}) > 1:
        return None
    scores = {label: whole.scores() for label, (_, whole) in peers.items()}
    order = sorted(scores, key=lambda label: -scores[label].mean())
    best, second = scores[order[0]], scores[order[1]]
    clear = len(best) > 1 and best.mean() - second.mean() > best.std()
    return order[0] if clear else None


def labels(found: Sequence[Final]) -> list[str]:
    """Every method's name, the paper's first."""
    ordered = sorted(found, key=lambda final: showing_order(final.series))
    return list(dict.fromkeys(final.label for final in ordered))


def horizons(found: Sequence[Final]) -> dict[str, int]:
    """For each task the last frame that all its methods reached: where they are compared."""
    return {
        task: min(final.frames for final in found if final.task == task)
        for task in dict.fromkeys(final.task for final in found)
    }
