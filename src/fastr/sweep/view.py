"""The state of every run while a sweep works: a live table, or plain lines where no one looks."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fastr.sweep.schedule import State, Work
from fastr.sweep.state import progress

ORDER: tuple[State, ...] = (
    "running",
    "queued",
    "retrying",
    "failed",
    "blocked",
    "waiting",
    "stopped",
    "done",
)
COLORS = {"running": "cyan", "retrying": "yellow", "failed": "red", "done": "green"}
TABLE_SECONDS = 1.0
"""Between two drawings of the table."""
LINE_SECONDS = 60.0
"""Between two lines about a run under way, where there is no terminal."""


class View:
    """Shows what a scheduler does; everything goes to stderr."""

    def __init__(self, title: str):
        self.title = title
        self.console = Console(file=sys.stderr)
        self.live: Live | None = None
        self.shown: dict[str, tuple[State, int]] = {}
        self.said = time.monotonic()
        self.drawn = 0.0

    def __enter__(self) -> "View":
        if self.console.is_terminal:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, works: Sequence[Work]) -> None:
        """Take in one round."""
        if self.live is None:
            self.say(works)
        elif time.monotonic() > self.drawn + TABLE_SECONDS:
            self.drawn = time.monotonic()
            self.live.update(self.table(works), refresh=True)

    def say(self, works: Sequence[Work]) -> None:
        """A line for every change, and now and then for what runs."""
        again = time.monotonic() > self.said + LINE_SECONDS
        for work in works:
            now = (work.state, work.attempts)
            changed = self.shown.get(work.unit.name, ("waiting", 0)) != now
            if changed or (again and work.state == "running"):
                print(line(work), file=sys.stderr, flush=True)
            self.shown[work.unit.name] = now
        if again:
            self.said = time.monotonic()

    def table(self, works: Sequence[Work]) -> Table:
        """As many runs as the terminal has lines for, those that matter now first."""
        table = Table(title=f"{self.title}: {tally(works)}", title_justify="left", expand=True)
        table.add_column("run", ratio=3, no_wrap=True)
        for name in ("state", "frames", "return", "left"):
            table.add_column(name, no_wrap=True)
        table.add_column("", ratio=2, no_wrap=True)
        ordered = sorted(works, key=lambda work: ORDER.index(work.state))
        lines = max(3, self.console.height - 6)
        for work in ordered[:lines]:
            state = Text(work.state, style=COLORS.get(work.state, ""))
            frames, mean, left = figures(work)
            table.add_row(Text(work.unit.name), state, frames, mean, left, Text(work.note))
        if len(ordered) > lines:
            table.add_row(f"and {len(ordered) - lines} more")
        return table


def figures(work: Work) -> tuple[str, str, str]:
    """Frames, return and time left of a run, in words; all empty for what is none."""
    done = progress(work.unit)
    if done is None:
        return "", "", ""
    frames = f"{done.frames:,}/{done.budget:,}"
    mean = "" if done.mean_return is None else f"{done.mean_return:.1f}"
    left = done.seconds_left if work.state == "running" else None
    return frames, mean, "" if left is None else duration(left)


def line(work: Work) -> str:
    """One run as a line of text."""
    frames, mean, left = figures(work)
    parts = [f"{work.unit.name}: {work.state}"]
    parts += [f"frame {frames}"] if frames else []
    parts += [f"return {mean}"] if mean else []
    parts += [f"{left} left"] if left else []
    parts += [work.note] if work.note else []
    return ", ".join(parts)


def tally(works: Sequence[Work]) -> str:
    """How many are in which state."""
    counts = Counter(work.state for work in works)
    return ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])


def duration(seconds: float) -> str:
    """Seconds for people."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def summarized(work: Work) -> dict[str, Any]:
    """One run for programs."""
    done = progress(work.unit)
    return {
        "name": work.unit.name,
        "state": work.state,
        "note": work.note,
        "attempts": work.attempts,
        "product": str(work.unit.product),
        "command": list(work.unit.command),
        "frames": done.frames if done else None,
        "last_evaluation_return_mean": done.mean_return if done else None,
        "training_seconds": done.seconds if done else None,
    }
