"""Signs of life of worker processes: where each one is, in memory that it shares with its parent.

A worker that hangs or dies cannot say where. What it wrote down at its last step can: the parent
looks at it while it waits, so that no wait is silent and every end has a seed, an episode, a step.
"""

import time
from multiprocessing.context import SpawnContext
from typing import Any, NamedTuple

_FIELDS = 5


class Pulse(NamedTuple):
    """What a worker last wrote down."""

    process: int
    """Its process number; 0 if it has not started yet."""
    moment: float
    """When it wrote, on the monotonic clock, which all processes share; 0 if it has no work."""
    seed: int
    episode: int
    step: int
    """Agent steps done in the episode."""

    @property
    def place(self) -> str:
        """The step during which it happened, in words."""
        return f"agent step {self.step + 1} of episode {self.episode}"


class Pulses:
    """One pulse for each worker; travels to a worker when that is started."""

    def __init__(self, workers: int, context: SpawnContext):
        self._cells: Any = context.RawArray("d", _FIELDS * workers)
        self._taken: Any = context.Value("i", 0)
        self._first = 0

    def join(self, process: int) -> None:
        """In a worker: take a place of its own."""
        with self._taken:
            self._first = _FIELDS * self._taken.value
            self._taken.value += 1
        self._cells[self._first] = process

    def beat(self, seed: int, episode: int, step: int) -> None:
        """In a worker: it lives, and is about to take the step after this one."""
        at = self._first
        self._cells[at + 2 : at + _FIELDS] = (seed, episode, step)
        self._cells[at + 1] = time.monotonic()

    def rest(self) -> None:
        """In a worker: it has nothing to do."""
        self._cells[self._first + 1] = 0.0

    def all(self) -> list[Pulse]:
        """In the parent: where every worker is."""
        cells = self._cells[:]
        rows = [cells[i : i + _FIELDS] for i in range(0, len(cells), _FIELDS)]
        return [Pulse(int(row[0]), row[1], *map(int, row[2:])) for row in rows]
