"""Which unit next: after what it needs, again after a failure, never after it is finished."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fastr.cli.interrupts import stopped_by
from fastr.core import UserError, write_errors
from fastr.runs import user_of
from fastr.studies.units import Unit
from fastr.sweep import state
from fastr.sweep.attempt import PROGRAM, Attempt, tail
from fastr.sweep.engine import AbstractEngine, AbstractJob

State = Literal["waiting", "queued", "running", "retrying", "done", "failed", "blocked", "stopped"]
SETTLED: tuple[State, ...] = ("done", "failed", "blocked", "stopped")
USER_ERROR = 2
"""Exit code of a command that was asked for something impossible: again would not help."""
STOPPED = tuple(map(stopped_by, (signal.SIGINT, signal.SIGTERM)))
"""Exit codes of a training that has saved and ended because a signal asked it to."""
POLL_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 60.0


@dataclass
class Work:
    """A unit and what has become of it so far."""

    unit: Unit
    state: State = "waiting"
    note: str = ""
    """Why it is in this state, if there is something to say."""
    attempts: int = 0
    """Processes started for it by this sweep."""
    in_vain: int = 0
    """Attempts in a row that ended badly without a new checkpoint."""
    job: AbstractJob | None = None
    saved_before: int = 0
    """Frames of its newest checkpoint when the attempt began."""
    log_before: int = 0
    """Bytes of its log then."""
    not_before: float = 0.0
    """When to try again, by the monotonic clock."""

    @property
    def pause(self) -> float:
        """Seconds before the next attempt: longer each time, because some troubles pass."""
        return min(LONGEST_PAUSE_SECONDS, float(2 ** (self.in_vain - 1)))


@dataclass
class Scheduler:
    """Brings every unit to its end, as far as it goes."""

    out: Path
    units: Sequence[Unit]
    engine: AbstractEngine
    retries: int
    """Attempts after the first that may end badly in a row without a new checkpoint."""
    program: tuple[str, ...] = PROGRAM
    works: list[Work] = field(default_factory=list)
    stopping: bool = False

    def __post_init__(self):
        self.works = [Work(unit) for unit in self.units]
        for work in self.works:
            if state.finished(self.out, work.unit):
                work.state = "done"
                work.note = "finished before"

    def run(self, look: Callable[[Sequence[Work]], None], asked: Callable[[], int]) -> None:
        """Work until all is settled. `look` sees every round; `asked` counts requests to stop."""
        while not all(work.state in SETTLED for work in self.works):
            self.obey(asked())
            for work in self.works:
                if work.job is not None:
                    self.follow(work, work.job)
            if not self.stopping:
                for work in self.works:
                    self.consider(work)
            look(self.works)
            time.sleep(POLL_SECONDS)
        look(self.works)

    def obey(self, requests: int) -> None:
        """Stop at the first request, end everything at once at the second."""
        if requests and not self.stopping:
            self.stopping = True
            for work in self.works:
                if work.job is not None:
                    work.job.stop()
                    work.note = "asked to save and end"
                elif work.state not in SETTLED:
                    work.state = "stopped"
        if requests > 1:
            for work in self.works:
                if work.job is not None:
                    work.job.kill()

    def consider(self, work: Work) -> None:
        """Begin a unit, if it is its turn."""
        if work.state not in ("waiting", "retrying") or time.monotonic() < work.not_before:
            return
        needed = [other for other in self.works if other.unit in work.unit.needs]
        lost = [other.unit.name for other in needed if other.state in ("failed", "blocked")]
        if lost:
            work.state, work.note = "blocked", f"needs {lost[0]}"
        elif all(other.state == "done" for other in needed) and self.engine.has_room():
            user = user_of(work.unit.run) if work.unit.run else None
            if user is not None:
                # One that a lost machine or an earlier sweep has left may still be saving.
                work.note = f"in use by process {user}"
            else:
                self.try_to_begin(work)

    def try_to_begin(self, work: Work) -> None:
        """Begin a unit; one whose place cannot be written fails, and the others go on."""
        try:
            self.begin(work)
        except UserError as error:
            self.fail(work, str(error))

    def begin(self, work: Work) -> None:
        """Hand one attempt to the engine."""
        unit, out = work.unit, self.out
        log = state.log_file(out, unit)
        output = None if unit.run else state.output_file(out, unit)
        state.clear(out, unit)
        with write_errors(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            work.log_before = log.stat().st_size
            if output:
                output.parent.mkdir(parents=True, exist_ok=True)
        work.saved_before = state.saved_frames(unit)
        arguments = state.next_arguments(unit)
        work.job = self.engine.start(Attempt(arguments, log, output, self.program))
        work.attempts += 1
        work.state, work.note = "queued", ""

    def follow(self, work: Work, job: AbstractJob) -> None:
        """See whether an attempt has begun or ended, and what that means."""
        if work.state == "queued" and job.running():
            work.state = "running"
        code = job.exit_code()
        if code is None:
            return
        work.job = None
        problem = job.problem() or f"exit code {code}"
        try:
            if code == 0 and work.unit.run is None:
                state.keep_result(self.out, work.unit)
            done = state.finished(self.out, work.unit)
        except UserError as error:
            done, problem = False, str(error)
        if done:
            work.state, work.note = "done", ""
        elif self.stopping:
            work.state, work.note = "stopped", ""
        elif code == USER_ERROR:
            said = tail(state.log_file(self.out, work.unit), work.log_before, lines=1)
            self.fail(work, said or problem)
        else:
            self.retry(work, "stopped by somebody" if code in STOPPED else problem)

    def retry(self, work: Work, problem: str) -> None:
        """Try again after a pause, unless too many attempts have brought nothing."""
        if state.saved_frames(work.unit) > work.saved_before:
            work.in_vain = 0
        work.in_vain += 1
        if work.in_vain > self.retries:
            self.fail(work, problem)
            return
        work.state, work.note = "retrying", problem
        work.not_before = time.monotonic() + work.pause

    def fail(self, work: Work, problem: str) -> None:
        """Give a unit up, for this sweep."""
        work.state, work.note = "failed", problem
