"""Ctrl-C and SIGTERM as requests to stop: save first, then end."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

SHOW_CURSOR = "\x1b[?25h"
"""For a terminal: a live display hides the cursor, and a second Ctrl-C ends without tidying up."""


def stopped_by(number: int) -> int:
    """The exit code of a process that this signal ended, as shells give it."""
    return 128 + number


def end_at_once() -> None:
    """From now on Ctrl-C ends the process, unless it ignores Ctrl-C."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def stop_requests(answer: str, then: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM, calling `then` after each; the first prints the answer."""
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        asked.append(number)
        then()
        if len(asked) == 1:
            # os.write, not print: this may interrupt another print. The reader of stderr may have
            # been ended by the same Ctrl-C.
            with contextlib.suppress(OSError):
                cursor = SHOW_CURSOR if os.isatty(2) else ""
                os.write(2, f"\n{cursor}fastr: {answer}\n".encode())

    # Under nohup, or in the background of a script, a signal that is ignored stays ignored.
    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
