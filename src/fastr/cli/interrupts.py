"""Ctrl-C and SIGTERM: heard once and for all, whatever the process is at when they come."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

AGAIN_SECONDS = 0.05
LONGEST_SECONDS = 5.0
"""An import that takes longer is interrupted all the same."""
SHOW_CURSOR = "\x1b[?25h"
"""To a terminal: a live display hides the cursor, and whoever is ended at once does not tidy up."""


def stopped_by(number: int) -> int:
    """The exit code of what has ended because of this signal, as of shells.

    0 is for what has come to its end.
    """
    return 128 + number


def audible() -> list[int]:
    """Of Ctrl-C and SIGTERM, what this process was not started to be deaf to (nohup)."""
    return [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]


@contextlib.contextmanager
def stop_requests(answer: str, then: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """The signals, Ctrl-C or SIGTERM, that have asked to stop so far; the first gets an answer.

    After each of them `then` is called. What this process was started to be deaf to stays unheard.
    """
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        asked.append(number)
        then()
        if len(asked) == 1:
            # Not by print: this may run in the middle of another one. And the same Ctrl-C may have
            # ended whoever reads it.
            with contextlib.suppress(OSError):
                cursor = SHOW_CURSOR if os.isatty(2) else ""
                os.write(2, f"\n{cursor}fastr: {answer}\n".encode())

    before = {number: signal.signal(number, ask) for number in audible()}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_once() -> None:
    """From now on Ctrl-C ends the process, unless it was started to be deaf to it.

    By the system, whatever the process is at: no compilation is waited for. Its workers end when it
    is gone.
    """
    if signal.SIGINT in audible():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_where_heard() -> list[int]:
    """From now on Ctrl-C and SIGTERM raise KeyboardInterrupt, but only where nobody swallows it.

    Imports of compiled modules turn it into other errors or pass it over, and JAX's callback on
    garbage collection prints and forgets it. There it is put off for a moment, in which a second
    Ctrl-C ends the process at once. The signals stand in the list once they have come.
    """
    asked: list[int] = []
    since: list[float] = []

    def interrupted(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            asked.append(number)
        since.append(time.monotonic())
        if not swallowed(frame) or since[-1] - since[0] > LONGEST_SECONDS:
            raise KeyboardInterrupt
        end_at_once()
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)

    for number in (*audible(), signal.SIGALRM):
        signal.signal(number, interrupted)
    return asked


def swallowed(frame: FrameType | None) -> bool:
    """Whether an exception raised here may never arrive."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib"):
            return True
        if code.co_name in ("_xla_gc_callback", "__del__"):
            return True
        frame = frame.f_back
    return False
