"""What is printed arrives, whichever letters the reader knows, or harms nothing if it is gone."""

import codecs
import contextlib
import io
import os
import sys
from typing import TextIO

HANDLER = "fastr-spelled"
SPELLED = {"±": "+-", "–": "-", "…": "...", "\N{MINUS SIGN}": "-", "×": "x"}
"""What stands for a letter that an encoding lacks; a question mark for all others."""

RESERVED: list[TextIO] = []
"""Stdout where it is kept for results; empty where anybody may print there."""


def replacement(error: UnicodeError) -> tuple[str, int]:
    """What to write where a letter cannot be, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(SPELLED.get(letter, "?") for letter in missing), error.end


def open_closed() -> None:
    """Let stdin, stdout and stderr lead nowhere if they were closed (`fastr ... >&-`).

    Else the next file to be opened would have their number, and whatever is printed would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def spell_out() -> None:
    """From now on nothing printed can fail for its letters: ASCII, or names of any bytes.

    On stderr nothing can, ever: Python itself escapes there what it cannot write.
    """
    codecs.register_error(HANDLER, replacement)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=HANDLER)


def reserve_stdout() -> None:
    """From now on stdout has results alone: what anybody else prints there goes to stderr.

    Simulators print, and so do modules that are imported, in this process and in others.
    """
    kept = os.dup(sys.stdout.fileno())
    RESERVED.append(os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors=HANDLER))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def print_result(text: str) -> None:
    """A result on stdout, reserved or not."""
    print(text, file=RESERVED[0] if RESERVED else sys.stdout, flush=True)


def as_printed(text: str) -> str:
    """The text as stdout will have it: a table must know how wide its cells become."""
    encoding, errors = sys.stdout.encoding or "utf-8", sys.stdout.errors or "strict"
    return text.encode(encoding, errors).decode(encoding, errors)


def say(*parts: str) -> None:
    """One line on stderr; if whoever reads it is gone (`2>&1 | tee`), the work goes on."""
    with contextlib.suppress(OSError):
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)
