"""Live views of what takes long: frames, return, updates per second, time left."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fastr.core import counted
from fastr.runs.letters import say
from fastr.training.config import TrainConfig

MINUTE = 60.0
"""Between two lines of a training where there is no terminal, evaluations aside."""
LINE_SECONDS = 15.0
"""Between two lines of a stage where there is no terminal."""


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


class TrainingProgress:
    """Listens to a run's rows; a bar on a terminal, elsewhere a line per evaluation and minute."""

    def __init__(self, config: TrainConfig):
        self.config = config
        self.console = Console(file=sys.stderr)
        self.bar = bar_of("frames", self.console)
        self.task = self.bar.add_task(config.task, total=config.frames, figures="compiling ...")
        self.evaluated: dict[int, dict[int, float]] = {}
        self.last_step: tuple[float, int] | None = None
        self.rate = 0.0
        self.said = time.monotonic()

    def __call__(self, row: dict[str, Any]) -> None:
        """Take in one row of the run."""
        if row["kind"] == "evaluation":
            self.evaluated.setdefault(row["frames"], {})[row["seed"]] = row["return"]
            returns = self.evaluated[row["frames"]]
            if not self.console.is_terminal and len(returns) == len(self.config.seeds):
                mean = sum(returns.values()) / len(returns)
                said = f"mean return {mean:.1f} over {counted(len(returns), 'seed')}"
                self.print_line(row["frames"], row["seconds"], said)
        else:
            self.measure(row["updates"])
            if not self.console.is_terminal and time.monotonic() > self.said + MINUTE:
                self.print_line(row["frames"], row["seconds"], self.left(row["frames"]))
        self.bar.update(self.task, completed=self.frames(row), figures=self.figures())

    def frames(self, row: dict[str, Any]) -> int:
        """Frames reached: evaluations come in later than the frame they belong to."""
        known = int(self.bar.tasks[0].completed)
        return max(known, min(row["frames"], self.config.frames))

    def measure(self, updates: int) -> None:
        """Updates per second since the last row."""
        now = time.monotonic()
        if self.last_step is not None and updates > self.last_step[1]:
            self.rate = (updates - self.last_step[1]) / max(now - self.last_step[0], 1e-9)
        if self.last_step is None or updates > self.last_step[1]:
            self.last_step = (now, updates)

    def figures(self) -> str:
        """The latest mean evaluation return and the rate."""
        speed = f"{self.rate:,.0f} updates/s" if self.rate else "collecting random frames"
        if not self.evaluated:
            return speed
        latest = self.evaluated[max(self.evaluated)].values()
        return f"return {sum(latest) / len(latest):.0f}  {speed}"

    def left(self, frames: int) -> str:
        """How long the rest will take at this pace; nothing before there is one."""
        steps = (self.config.frames - frames) / self.config.frame_skip
        return f"about {steps / self.rate / 3600:,.1f} h left" if self.rate else ""

    def print_line(self, frames: int, seconds: float, said: str) -> None:
        """How far it is, as a line of text."""
        self.said = time.monotonic()
        place = f"{self.config.task}: frame {frames:,} of {self.config.frames:,}"
        rate = f"{self.rate:,.{0 if self.rate >= 10 else 1}f} updates/s" if self.rate else ""
        say(place, said, rate, f"{seconds:,.0f} s")

    def __enter__(self) -> "TrainingProgress":
        self.bar.start()
        if not self.console.is_terminal:
            seeds = counted(len(self.config.seeds), "seed")
            say(f"{self.config.task}: {seeds}, starting and compiling")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


@contextlib.contextmanager
def stage(what: str, total: int, unit: str, first: str = "") -> Iterator[Callable[..., None]]:
    """A bar for one stage of a command, or a line now and then; yields `advance(count, figures)`.

    Everything goes to stderr. What comes first is named where it takes long.
    """
    console = Console(file=sys.stderr)
    bar = bar_of(unit, console)
    task = bar.add_task(what, total=total, figures=first)
    if first and not console.is_terminal:
        say(f"{what}: {first}")
    begun = said = time.monotonic()
    done = 0

    def advance(count: int, figures: str = "") -> None:
        nonlocal done, said
        done += count
        bar.update(task, completed=done, figures=figures)
        now = time.monotonic()
        if not console.is_terminal and (now - said > LINE_SECONDS or done >= total > done - count):
            said = now
            say(f"{what}: {done:,} of {total:,} {unit}", figures, f"{now - begun:,.0f} s")

    with bar:
        yield advance
