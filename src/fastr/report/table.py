"""A table as CSV, LaTeX and Markdown.

Names of tasks, methods and files are untrusted: no form takes one for markup or a command.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

LIMIT = 200
"""Characters of a name that are shown."""
LONG = 10_000
"""Characters of a whole sentence or command."""
NONE = "–"
"""A cell without a value; empty in the CSV file."""
FORMULA = ("=", "+", "-", "@")
SIGNS = ("less", "greater", "bar", "backslash", "asciicircum", "asciitilde")
LATEX = {
    **{sign: rf"\{sign}" for sign in "{}$&#%_"},
    # After the end of a row brackets and stars would be its options.
    **{sign: f"{{{sign}}}" for sign in "[]*"},
    **{sign: rf"\text{word}{{}}" for sign, word in zip("<>|\\^~", SIGNS, strict=True)},
    '"': "''",
    "±": r"$\pm$",
    "–": "--",
    "…": r"\dots{}",
}
MARKDOWN = re.compile(r"([\\`*_{}\[\]#!|~])")
LINKS = {"@": "&#64;", "://": "&#58;//", "www.": "www&#46;"}
"""Text that renderers turn into links."""


class Cell(NamedTuple):
    """One cell: its text, and what is known about it."""

    text: str
    value: int | float | None = None
    """The number in the CSV file; None for text."""
    bold: bool = False
    notes: tuple[str, ...] = ()
    """Caveats of the number, marked by letters and listed below the table."""
    tone: Literal["", "good", "bad"] = ""
    """Colour on the page."""


Value = Cell | str | int | float | None


def cell(value: Value) -> Cell:
    """A cell for a plain value: a number is rounded for readers, None becomes a dash."""
    if isinstance(value, Cell):
        return value
    if value is None:
        return Cell(NONE)
    if isinstance(value, str):
        return Cell(value)
    whole = value == value // 1 and (isinstance(value, int) or abs(value) >= 1)
    return Cell(f"{value:,.0f}" if whole else f"{value:,.4g}", value)


@dataclass(frozen=True)
class Table:
    """Columns and rows, with a file name, a title and remarks to stand below."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    remarks: Sequence[str] = ()

    @cached_property
    def cells(self) -> list[list[Cell]]:
        """The rows, each value as a cell."""
        return [[cell(value) for value in row] for row in self.rows]

    @cached_property
    def notes(self) -> dict[str, str]:
        """The letter of every note, in order of appearance."""
        notes = dict.fromkeys(note for row in self.cells for one in row for note in one.notes)
        return {note: letter(place) for place, note in enumerate(notes)}

    def marks(self, one: Cell) -> str:
        """The letters of a cell's notes."""
        return ",".join(self.notes[note] for note in dict.fromkeys(one.notes))

    @cached_property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        return [any(one.value is not None for one in column) for column in zip(*self.cells)]  # noqa: B905

    def csv(self) -> str:
        """All values in full, with a last column of notes if there are any."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        last = ["notes"] if self.notes else []
        writer.writerow([*map(csv_cell, self.columns), *last])
        for row in self.cells:
            values = [csv_cell(one.text if one.value is None else one.value) for one in row]
            values = ["" if value == NONE else value for value in values]
            notes = "; ".join(dict.fromkeys(note for one in row for note in one.notes))
            writer.writerow([*values, *([csv_cell(notes)] if last else [])])
        return text.getvalue()

    def latex(self, command: str) -> str:
        """A LaTeX table environment (booktabs, graphicx); the command that made it is a comment."""
        columns = "l" + "c" * (len(self.columns) - 1)
        below = [*self.remarks, *(f"{letter}: {note}." for note, letter in self.notes.items())]

        def form(one: Cell) -> str:
            text = rf"\textbf{{{latex(one.text)}}}" if one.bold else latex(one.text)
            return rf"{text}\textsuperscript{{{self.marks(one)}}}" if one.notes else text

        lines = [
            rf"% Needs \usepackage{{booktabs,graphicx}}. Made by: {shown(command, 2_000)}",
            r"\begin{table}[h]\centering",
            rf"\caption{{{latex(self.title)}}}\label{{tab:{self.name}}}",
            rf"\resizebox{{\textwidth}}{{!}}{{\begin{{tabular}}{{{columns}}}",
            rf"\toprule {' & '.join(map(latex, self.columns))} \\ \midrule",
            *(rf"{' & '.join(map(form, row))} \\" for row in self.cells),
            r"\bottomrule\end{tabular}}",
            *(rf"\par\footnotesize {latex(text)}" for text in below),
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        """A Markdown table, its notes as a list below it, its remarks as a paragraph."""

        def form(one: Cell) -> str:
            text = f"**{markdown(one.text)}**" if one.bold else markdown(one.text)
            return f"{text} ({self.marks(one)})" if one.notes else text

        head = [" | ".join(map(markdown, self.columns)), "---|" * len(self.columns)]
        rows = [f"| {' | '.join(map(form, row))} |" for row in self.cells]
        notes = [f"- {letter}: {markdown(note)}" for note, letter in self.notes.items()]
        table = [f"| {head[0]} |", f"|{head[1]}", *rows]
        return "\n".join([*table, "", *notes, "", " ".join(map(markdown, self.remarks)), ""])


def letter(place: int) -> str:
    """a to z, then aa and so on."""
    return (letter(place // 26 - 1) if place >= 26 else "") + chr(ord("a") + place % 26)


def shown(value: object, limit: int = LIMIT) -> str:
    """One line without control or direction characters, which could pass for something else."""
    text = "".join(
        "\ufffd" if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") else letter
        for letter in str(value)[: limit + 1]
    ).strip()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def csv_cell(value: object) -> object:
    """A cell that no spreadsheet runs: text that looks like a formula gets an apostrophe."""
    if not isinstance(value, str):
        return value
    text = shown(value, LONG)
    return f"'{text}" if text.startswith(FORMULA) else text


def latex(text: str) -> str:
    """Text for a LaTeX document; none of it is a command."""
    return "".join(LATEX.get(letter, letter) for letter in shown(text, LONG))


def markdown(text: object) -> str:
    """Text for a cell of a Markdown table; none of it is markup."""
    safe = shown(text, LONG).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    safe = MARKDOWN.sub(r"\\\1", safe)
    for sign, entity in LINKS.items():
        safe = safe.replace(sign, entity)
    return safe


def file_name(text: str, taken: Collection[str]) -> str:
    """A short name of letters, digits and hyphens, unlike those that are taken."""
    plain = re.sub(r"[^a-z0-9]+", "-", shown(text).lower()).strip("-")[:60] or "unnamed"
    name, count = plain, 1
    while name in taken:
        count += 1
        name = f"{plain}-{count}"
    return name
