"""One command as a process group that ends with the process that started it.

Run as a script, `process.py PARENT ARGUMENT...` ties itself to its parent and becomes python with
the arguments.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PROGRAM = ("-m", "fastr.cli")
"""What python runs with a unit's arguments."""
LOOK_SECONDS = 0.3
SAVE_SECONDS = 600.0
"""For a training to write its checkpoint after SIGTERM."""
PR_SET_PDEATHSIG = 1
Ending = Callable[[], signal.Signals | None]
"""The signal for a command that is to end."""


def run(command: Sequence[str], log: Path, environment: dict[str, str], ending: Ending) -> int:
    """Exit code of python with these arguments; negative for the signal that killed it.

    `ending` is called a few times a second and gives the signal that ends the command: SIGTERM lets
    a training save first.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    try:
        number = None
        while process.poll() is None and not number:
            time.sleep(LOOK_SECONDS)
            number = ending()
        if number:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SAVE_SECONDS)
    finally:
        # Also the simulators of a training that was killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    return code


def main() -> None:
    """Tie this process to its parent, then become python with the arguments."""
    parent, arguments = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        # SIGKILL: on another node the run may be resumed at once, so nothing may write to it here.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
