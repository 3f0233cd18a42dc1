"""Drawing with MuJoCo: which renderer, and what is said when there is none."""

import contextlib
import os
import sys
from collections.abc import Iterator

from fastr.core import UserError
from fastr.envs.names import GymTask, SuiteTask

TALLEST, WIDEST = 1_080, 1_920
DISABLED = ("disable", "disabled", "off", "false", "0")


@contextlib.contextmanager
def renderer(name: SuiteTask | GymTask, render_mode: str | None) -> Iterator[None]:
    """Choose MuJoCo's renderer, which is fixed by the environment variable at its import."""
    if render_mode is None:
        chosen = os.environ.get("MUJOCO_GL")
        os.environ.setdefault("MUJOCO_GL", "disable")
        try:
            yield
        finally:
            # Processes started from here may want to draw, and inherit the variable.
            if chosen is None:
                del os.environ["MUJOCO_GL"]
        return
    os.environ.setdefault("MUJOCO_GL", "egl")
    imported = sys.modules.get("dm_control._render")
    backend = os.environ["MUJOCO_GL"] if imported is None else imported.BACKEND
    if isinstance(name, SuiteTask) and backend in DISABLED:
        raise UserError(
            f"{name} cannot be drawn in a process that has loaded dm_control with rendering "
            "disabled: draw it in a new process with MUJOCO_GL=egl."
        )
    with reported_rendering(name):
        yield


@contextlib.contextmanager
def reported_rendering(name: SuiteTask | GymTask) -> Iterator[None]:
    """Turn a failure to draw into one sentence with the usual fix."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if type(error).__name__ == "DependencyNotInstalled":  # Gymnasium's own, with its own fix
            raise UserError(f"{name} cannot be drawn: {one_line(error)}") from None
        raise UserError(
            f"{name} cannot be drawn ({one_line(error)}): install the Debian packages libegl1 and "
            "libgl1 (apt-get install libegl1 libgl1) and set MUJOCO_GL=egl."
        ) from None


def one_line(error: Exception) -> str:
    """Its message on one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
