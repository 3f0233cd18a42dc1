"""Help texts that break where the terminal does, not where the lines of a docstring do."""

import re
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

Help = str | Callable[[], str | None] | None
"""A text, or what gives it once it is asked for."""


class Paragraphs(ConstructorRegistry):
    """The parser's own rules, but for the help of each option, whose paragraphs are joined."""

    def __init__(self):
        super().__init__()
        self.asking = False
        self.struct_rule(self.with_joined_help)

    def with_joined_help(self, info: StructTypeInfo) -> StructConstructorSpec | None:
        """What the other rules make of a dataclass, its options' help joined."""
        # The question comes back here before it gets to the others.
        if self.asking:
            return None
        self.asking = True
        try:
            spec = self.get_struct_spec(info)
        finally:
            self.asking = False
        if not isinstance(spec, StructConstructorSpec):
            return None
        fields = [replace(f, helptext=partial(joined_help, f.helptext)) for f in spec.fields]
        return replace(spec, fields=tuple(fields))


def joined_help(text: Help) -> str | None:
    """A help text, if there is one, with its paragraphs joined."""
    said = text() if callable(text) else text
    return None if said is None else joined(said)


def joined(text: str) -> str:
    """Every paragraph in one line."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))


def wrapped(text: str) -> str:
    """Every paragraph in lines of the terminal's width: the parser breaks none above the options.

    It joins a line that begins with a letter to the one before, hence the hanging indent.
    """
    width = shutil.get_terminal_size().columns
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n\n".join(map(wrapper.fill, joined(text).split("\n\n")))
