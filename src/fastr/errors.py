"""What a user did wrong, in one sentence that names the problem and the fix."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Bad input: the command line prints this one sentence and exits with code 2."""

    code = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """A question with up to three known names near this one, in any case; or nothing."""
    spelled = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), list(spelled), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(spelled[one] for one in close)}?" if close else ""


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn a failure of the file system into a UserError that names what could not be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}).") from error


class RunError(RuntimeError):
    """A run that cannot go on: the command line prints this one sentence and exits with code 1."""

    code = 1


class StoppedError(Exception):
    """Work that saved and ended because it was asked to: one sentence, and that signal's code."""

    def __init__(self, said: str, code: int):
        super().__init__(said)
        self.code = code
