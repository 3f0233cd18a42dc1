"""Transitions in the one form that training reads: packed float32 rows in a file.

The rows are mapped, not loaded, so that a dataset may be larger than memory.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int

from fastr.core import UserError, counted
from fastr.data.base import About, Source, action_bounds, checked

SPARE_BYTES = 2**28
"""Left free on the disk."""


@dataclass(frozen=True)
class Store:
    """A dataset's transitions: state, action and next state side by side in each row."""

    about: About
    rows: Float32[np.ndarray, "rows packed"]
    episodes: Int[np.ndarray, " rows"]
    """The episode of each row, numbered from 0."""
    action_low: np.ndarray
    action_high: np.ndarray

    @property
    def episode_count(self) -> int:
        """Episodes in the dataset."""
        return int(self.episodes.max()) + 1


def spool(
    source: Source, path: Path, *, observed_bounds: bool, advance: Callable[[int], None]
) -> Store:
    """Check every number of a source and write it as packed rows to this file."""
    about = source.about
    shape = (about.rows, about.spec.packed_dim)
    refuse_full_disk(source, path.parent, shape)
    rows = np.memmap(path, np.float32, "w+", shape=shape)
    episodes = np.empty(about.rows, np.int64)
    low, high = action_bounds(source)
    if observed_bounds:
        low, high = np.full_like(low, np.inf), np.full_like(high, -np.inf)
    end = 0
    for chunk in checked(source, within_bounds=not observed_bounds):
        start, end = end, end + len(chunk.state)
        rows[start:end] = np.concatenate([chunk.state, chunk.action, chunk.next_state], axis=1)
        episodes[start:end] = chunk.episode
        if observed_bounds:
            low = np.minimum(low, chunk.action.min(axis=0))
            high = np.maximum(high, chunk.action.max(axis=0))
        advance(len(chunk.state))
    if end != about.rows:
        raise UserError(
            f"{source.path} holds {counted(end, 'transition')} and promises {about.rows:,}."
        )
    numbers = np.unique(episodes, return_inverse=True)[1].astype(np.int32)
    return Store(about, rows, numbers, low, high)


def refuse_full_disk(source: Source, folder: Path, shape: tuple[int, int]) -> None:
    """Raise UserError if the rows would not fit on the disk."""
    needed = shape[0] * shape[1] * 4
    free = shutil.disk_usage(folder).free - SPARE_BYTES
    if needed > free:
        raise UserError(
            f"{source.path} needs {needed / 2**30:,.1f} GiB on the disk of {folder} while it is "
            f"read, and {max(0, free) / 2**30:,.1f} GiB are free: choose another --out."
        )
