"""One attempt at a unit: a process of its own, in a session of its own, with its log."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

PROGRAM = ("-m", "fastr.cli")
"""What python runs with a unit's arguments."""


@dataclass(frozen=True)
class Attempt:
    """A command and where its output goes; plain values, which travel to another machine."""

    arguments: tuple[str, ...]
    log: Path
    output: Path | None
    """Where stdout goes; None for the log."""
    program: tuple[str, ...] = PROGRAM

    def start(
        self, environment: dict[str, str] | None = None, cores: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        """The process, begun. Ctrl-C at the terminal does not reach it."""
        now = datetime.now().isoformat(" ", "seconds")
        with self.log.open("ab") as log, contextlib.ExitStack() as stack:
            line = shlex.join(("fastr", *self.arguments))
            log.write(f"# {now} {socket.gethostname()}: {line}\n".encode())
            log.flush()
            stdout = stack.enter_context(self.output.open("wb")) if self.output else log
            child = ("-m", "fastr.sweep.child", str(os.getpid()), ",".join(map(str, cores)))
            return subprocess.Popen(
                [sys.executable, *child, *self.program, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=log,
                env=os.environ | (environment or {}),
                start_new_session=True,
            )


def ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    """Let a training save and end."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End at once whatever is left of a process and of those that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: Path, since: int, lines: int = 12) -> str:
    """The last lines that a log has gained since it had this size."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since, size - 2**16))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-lines:])
