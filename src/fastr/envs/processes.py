"""How worker processes start and end: light, alone on their core, deaf to Ctrl-C, never orphans."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from multiprocessing import resource_tracker

# One core per worker: threads for its small matrices would only fight over the others.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# When this process is ended at once, multiprocessing's tracker tidies up what it leaves; that it
# says so helps nobody.
QUIET_TRACKER = "ignore:resource_tracker:UserWarning"
PATIENCE_SECONDS = 120.0
"""How long a simulator may be silent within one agent step before it is taken to be stuck."""
START_SECONDS = 300.0
"""The same while it starts: many that import at once on few cores are slow without being stuck."""


@contextlib.contextmanager
def light_start(**environment: str) -> Iterator[None]:
    """Set what processes started in here inherit, then put everything back."""
    # Spawn runs the parent's main module again in the child. That would import JAX there, and
    # would start the training again from a script that does not guard its main part.
    main = sys.modules["__main__"]
    # The first process spawned starts multiprocessing's tracker, which lets the signals below
    # through again: that has to be over before they are blocked.
    warnings = filter(None, (os.environ.get("PYTHONWARNINGS"), QUIET_TRACKER))
    with _environment({"PYTHONWARNINGS": ",".join(warnings)}):
        resource_tracker.ensure_running()
    # Ctrl-C, and the SIGTERM of a batch system, reach the whole process group: the parent saves and
    # needs its workers for that, so they must not answer even while they are importing.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        with _environment(ONE_THREAD | environment):
            yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Environment variables for a moment."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def end_with_parent() -> None:
    """End this worker when its parent is gone, however that ended: nobody waits for its work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def how_it_ended(code: int | None) -> str:
    """A process's exit code in words."""
    if code is not None and code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"
