"""Which transitions train, select and test (App. Empirical CP Misfit Diagnostic: 70/15/15)."""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from fastr.core import UserError

SplitBy = Literal["episode", "transition"]
HELD_OUT = 0.15
"""Share of the validation part, and of the test part."""


class Split(NamedTuple):
    """Rows of a dataset, in rising order, without a row in two parts."""

    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    test: Int[np.ndarray, " test"]


def split(
    episodes: Int[np.ndarray, " rows"],
    by: SplitBy,
    generator: np.random.Generator,
    limit: int | None = None,
) -> Split:
    """70/15/15 of the episodes, or of the transitions; UserError if there are too few.

    With a limit, whole episodes drawn at random make up at most that many transitions.
    """
    rows = np.arange(len(episodes)) if limit is None else limited(episodes, limit, generator)
    if by == "transition":
        parts = cut(rows, generator, "transitions")
        return Split(*(np.sort(part) for part in parts))
    numbers = np.unique(episodes[rows])
    parts = cut(numbers, generator, "episodes" if limit is None else "episodes within --limit")
    return Split(*(rows[np.isin(episodes[rows], part)] for part in parts))


def cut(items: np.ndarray, generator: np.random.Generator, what: str) -> list[np.ndarray]:
    """The items in three parts at random, none of them empty."""
    if len(items) < 3:
        advice = "" if what == "transitions" else ", or use --split transition"
        raise UserError(
            f"The split into training, validation and test needs at least three {what}, and the "
            f"number here is {len(items)}: give more data{advice}."
        )
    held = max(1, round(HELD_OUT * len(items)))
    shuffled = generator.permutation(items)
    return [shuffled[2 * held :], shuffled[:held], shuffled[held : 2 * held]]


def limited(
    episodes: Int[np.ndarray, " rows"], limit: int, generator: np.random.Generator
) -> Int[np.ndarray, " kept"]:
    """Rows of whole episodes drawn at random, at most this many but at least one episode."""
    numbers, sizes = np.unique(episodes, return_counts=True)
    order = generator.permutation(len(numbers))
    kept = order[np.cumsum(sizes[order]) <= limit]
    kept = kept if len(kept) else order[:1]
    return np.flatnonzero(np.isin(episodes, numbers[kept]))
