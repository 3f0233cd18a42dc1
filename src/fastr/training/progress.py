"""Progress of long work on stderr: a bar on a terminal, elsewhere a line now and then."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fastr.core import counted
from fastr.training.config import TrainConfig


def say(*parts: str) -> None:
    """One line on stderr; work goes on when its reader has ended (`2>&1 | tee` and Ctrl-C)."""
    with contextlib.suppress(OSError):
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds, minutes, hours or days, in the unit that reads best."""
    if seconds < 90:
        return f"{seconds:,.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:,.0f} min"
    hours = seconds / 3600
    return f"{hours:,.1f} h" if hours < 72 else f"{hours / 24:,.0f} days"


class Bar:
    """Counts up to a total on a terminal; elsewhere prints a line after each pause."""

    def __init__(self, what: str, total: int, unit: str, first: str, pause: float):
        console = Console(file=sys.stderr)
        self.silent = console.is_terminal
        self.name, self.total, self.unit, self.pause = what, total, unit, pause
        self.done, self.last_line = 0, time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not self.silent,
        )
        self.task = self.bar.add_task(what, total=total, figures=first)
        if first:
            self.line(first)

    def move(self, done: int, figures: str) -> bool:
        """Show that so many units are done; whether a line is due."""
        over, self.done = done >= self.total > self.done, done
        self.bar.update(self.task, completed=done, figures=figures)
        return over or time.monotonic() > self.last_line + self.pause

    def line(self, *parts: str) -> None:
        """Print a line, unless a terminal shows the bar."""
        if not self.silent:
            self.last_line = time.monotonic()
            say(f"{self.name}: {parts[0]}", *parts[1:])


class TrainingProgress:
    """Shows the rows of a run as they are measured."""

    def __init__(self, config: TrainConfig):
        self.config = config
        held = counted(config.frame_skip, "frame")
        frames = f"{counted(len(config.seeds), 'seed')}, {counted(config.frames, 'frame')}"
        if config.offline:
            say(f"{config.title}: {frames}, offline: an update for every {held} of the log")
        else:
            what = f"{frames} (simulator steps); an agent step holds one action for {held}"
            say(f"{config.task}: {what}")
        self.bar = Bar(config.title, config.frames, "frames", "starting and compiling", pause=60.0)
        self.evaluated: dict[int, list[float]] = {}
        self.latest, self.rate = "", 0.0
        self.last_step: tuple[float, int] | None = None

    def __call__(self, row: dict[str, Any]) -> None:
        """Take in one row of the run."""
        if row["kind"] == "evaluation":
            returns = self.evaluated.setdefault(row["frames"], [])
            returns.append(row["return"])
            if len(returns) == len(self.config.seeds):
                mean = sum(returns) / len(returns)
                self.latest = f"return {mean:.0f}  "
                seeds = f" over {counted(len(returns), 'seed')}" if len(returns) > 1 else ""
                # Training has continued meanwhile: the frame is the evaluation's, not training's.
                self.line(f"return {mean:.1f}{seeds} at frame {row['frames']:,}", row)
        else:
            self.measure(row["updates"])
        speed = f"{self.rate:,.0f} updates/s" if self.rate else "collecting random frames"
        done = max(self.bar.done, min(row["frames"], self.config.frames))
        due = self.bar.move(done, f"{self.latest}{speed}")
        if due and row["kind"] != "evaluation":
            steps = (self.config.frames - done) / self.config.frame_skip
            left = f", about {duration(steps / self.rate)} left" if self.rate else ""
            self.line(f"frame {done:,} of {self.config.frames:,}{left}", row)

    def estimate(self, rate: float) -> None:
        """Say how long the run will take, after the first updates were timed."""
        self.rate = rate
        seconds = (self.config.frames - self.bar.done) / self.config.frame_skip / rate
        say(
            f"{self.config.title}: {rate:,.{0 if rate >= 10 else 1}f} updates/s, so about "
            f"{duration(seconds)} to frame {self.config.frames:,}, evaluations not counted"
        )

    def measure(self, updates: int) -> None:
        """Updates per second since the last row."""
        now = time.monotonic()
        if self.last_step is None:
            self.last_step = (now, updates)
        elif updates > self.last_step[1]:
            self.rate = (updates - self.last_step[1]) / max(now - self.last_step[0], 1e-9)
            self.last_step = (now, updates)

    def line(self, message: str, row: dict[str, Any]) -> None:
        """One line of text with the rate and the time since the start of the run."""
        rate = f"{self.rate:,.{0 if self.rate >= 10 else 1}f} updates/s" if self.rate else ""
        self.bar.line(message, rate, f"{duration(row['seconds'])} so far")

    def __enter__(self) -> "TrainingProgress":
        self.bar.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.bar.stop()


@contextlib.contextmanager
def stage(what: str, total: int, unit: str, first: str = "") -> Iterator[Callable[..., None]]:
    """Progress of one stage of a command; yields `advance(count, figures)`.

    `first` names what is done before the first unit, where that takes long.
    """
    bar, start = Bar(what, total, unit, first, pause=15.0), time.monotonic()

    def advance(count: int, figures: str = "") -> None:
        if bar.move(bar.done + count, figures):
            seconds = f"{time.monotonic() - start:,.0f} s"
            bar.line(f"{bar.done:,} of {total:,} {unit}", figures, seconds)

    with bar.bar:
        yield advance
