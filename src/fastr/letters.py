"""What is printed arrives, whichever letters the reader knows, or harms nothing if it is gone."""

import codecs
import contextlib
import io
import sys

HANDLER = "fastr-spelled"
SPELLED = {"±": "+-", "–": "-", "…": "...", "\N{MINUS SIGN}": "-", "×": "x"}
"""What stands for a letter that an encoding lacks; a question mark for all others."""


def replacement(error: UnicodeError) -> tuple[str, int]:
    """What to write where a letter cannot be, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(SPELLED.get(letter, "?") for letter in missing), error.end


def spell_out() -> None:
    """From now on nothing printed can fail for its letters: ASCII, or names of any bytes.

    On stderr nothing can, ever: Python itself escapes there what it cannot write.
    """
    codecs.register_error(HANDLER, replacement)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=HANDLER)


def as_printed(text: str) -> str:
    """The text as stdout will have it: a table must know how wide its cells become."""
    encoding, errors = sys.stdout.encoding or "utf-8", sys.stdout.errors or "strict"
    return text.encode(encoding, errors).decode(encoding, errors)


def say(*parts: str) -> None:
    """One line on stderr; if whoever reads it is gone (`2>&1 | tee`), the work goes on."""
    with contextlib.suppress(OSError):
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)
