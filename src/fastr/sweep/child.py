"""What a command's process does before it becomes the command: die with its parent, keep its cores.

Run as `python -m fastr.sweep.child PARENT CORES ARGUMENT...`; CORES is a list like 0,1 or empty.
"""

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become python with the arguments."""
    parent, cores, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if sys.platform == "linux":
        # A sweep killed at one stroke leaves nobody behind: its trainings save and end.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("The sweep has gone.")
    if cores:
        with contextlib.suppress(AttributeError, OSError):
            os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
