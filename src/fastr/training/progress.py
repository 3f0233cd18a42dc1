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

MINUTE = 60.0
"""Between two lines of a training without a terminal, apart from evaluations."""
LINE_SECONDS = 15.0
"""Between two lines of a stage without a terminal."""


def say(*parts: str) -> None:
    """One line on stderr; work goes on when its reader has ended (`2>&1 | tee` and Ctrl-C)."""
    with contextlib.suppress(OSError):
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)


def bar_of(unit: str, console: Console) -> Progress:
    """A bar that counts in these units, shown on a terminal alone."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, in the unit that reads best."""
    if seconds < 90:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:,.1f} h"


class TrainingProgress:
    """Shows the rows of a run as they are measured."""

    def __init__(self, config: TrainConfig):
        self.config = config
        self.console = Console(file=sys.stderr)
        self.bar = bar_of("frames", self.console)
        self.task = self.bar.add_task(config.task, total=config.frames, figures="compiling ...")
        self.evaluated: dict[int, list[float]] = {}
        self.mean = ""
        self.last_step: tuple[float, int] | None = None
        self.rate = 0.0
        self.last_line = time.monotonic()

    def __call__(self, row: dict[str, Any]) -> None:
        """Take in one row of the run."""
        if row["kind"] == "evaluation":
            returns = self.evaluated.setdefault(row["frames"], [])
            returns.append(row["return"])
            if len(returns) == len(self.config.seeds):
                # Training has continued meanwhile: the frame is the evaluation's, not training's.
                mean = sum(returns) / len(returns)
                self.mean = f"return {mean:.0f}  "
                seeds = f" over {counted(len(returns), 'seed')}" if len(returns) > 1 else ""
                message = f"return {mean:.1f}{seeds} at frame {row['frames']:,}"
                self.print_line(message, row["seconds"])
        else:
            self.measure(row["updates"])
            if time.monotonic() > self.last_line + MINUTE:
                steps = (self.config.frames - row["frames"]) / self.config.frame_skip
                left = f"about {duration(steps / self.rate)} left" if self.rate else ""
                place = f"frame {row['frames']:,} of {self.config.frames:,}"
                self.print_line(place, row["seconds"], left)
        # Evaluations come in later than the frame they belong to.
        frames = max(self.bar.tasks[0].completed, min(row["frames"], self.config.frames))
        speed = f"{self.rate:,.0f} updates/s" if self.rate else "collecting random frames"
        self.bar.update(self.task, completed=frames, figures=f"{self.mean}{speed}")

    def measure(self, updates: int) -> None:
        """Updates per second since the last row."""
        now = time.monotonic()
        if self.last_step is None:
            self.last_step = (now, updates)
        elif updates > self.last_step[1]:
            self.rate = (updates - self.last_step[1]) / max(now - self.last_step[0], 1e-9)
            self.last_step = (now, updates)

    def print_line(self, message: str, seconds: float, left: str = "") -> None:
        """One line of text, unless a terminal shows the bar."""
        if self.console.is_terminal:
            return
        self.last_line = time.monotonic()
        rate = f"{self.rate:,.{0 if self.rate >= 10 else 1}f} updates/s" if self.rate else ""
        say(f"{self.config.task}: {message}", left, rate, f"{duration(seconds)} so far")

    def __enter__(self) -> "TrainingProgress":
        config, held = self.config, counted(self.config.frame_skip, "frame")
        frames = f"{counted(len(config.seeds), 'seed')}, {counted(config.frames, 'frame')}"
        say(f"{config.task}: {frames} (simulator steps); an agent step holds one action for {held}")
        self.bar.start()
        if not self.console.is_terminal:
            say(f"{self.config.task}: starting and compiling")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


@contextlib.contextmanager
def stage(what: str, total: int, unit: str, first: str = "") -> Iterator[Callable[..., None]]:
    """Progress of one stage of a command; yields `advance(count, figures)`.

    `first` names what is done before the first unit, where that takes long.
    """
    console = Console(file=sys.stderr)
    bar = bar_of(unit, console)
    task = bar.add_task(what, total=total, figures=first)
    if first and not console.is_terminal:
        say(f"{what}: {first}")
    start = last_line = time.monotonic()
    done = 0

    def advance(count: int, figures: str = "") -> None:
        nonlocal done, last_line
        done += count
        bar.update(task, completed=done, figures=figures)
        now, over = time.monotonic(), done >= total > done - count
        if not console.is_terminal and (now - last_line > LINE_SECONDS or over):
            last_line = now
            say(f"{what}: {done:,} of {total:,} {unit}", figures, f"{now - start:,.0f} s")

    with bar:
        yield advance
