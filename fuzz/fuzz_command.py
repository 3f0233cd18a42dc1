"""The command line up to the command that it means, which is not run."""

import contextlib
import io

from harness import atheris, fuzz

with atheris.instrument_imports(include=["fastr"]):
    import fastr.training.config
    from fastr.cli import command

# It would load the task's simulator.
fastr.training.config.grounded = lambda config: config


def read(data: bytes) -> None:
    """Arguments end with a newline each. --import is left out: it executes what it names."""
    arguments = data.decode(errors="replace").split("\n")
    if not arguments[0] or "--import" in arguments:
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            command(*arguments)
        except SystemExit as stop:
            if stop.code not in (0, 2, None):
                raise AssertionError(f"exit code {stop.code}") from stop


if __name__ == "__main__":
    fuzz(read)
