"""A table and its forms: CSV for programs, LaTeX for papers, Markdown for READMEs, HTML in page.html.

The names in it come from files that others wrote: each form escapes them (text.py).
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fastr.report.text import csv_cell, latex, markdown, shown


class Cell(NamedTuple):
    """One cell: its text, and what is known about it."""

    text: str
    value: float | None = None
    """The number in the CSV file; None for text."""
    bold: bool = False
    notes: tuple[str, ...] = ()
    """Caveats of the number, marked by letters and listed below the table."""
    tone: Literal["", "good", "bad"] = ""
    """Colour on the page."""


Value = Cell | str | float | None


def cell(value: Value) -> Cell:
    """A cell for a plain value: a number is rounded for readers, None becomes a dash."""
    if isinstance(value, Cell):
        return value
    if value is None:
        return Cell("–")
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

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows, each value as a cell."""
        return [[cell(value) for value in row] for row in self.rows]

    @property
    def notes(self) -> dict[str, str]:
        """The letter of every note, in order of appearance."""
        notes = dict.fromkeys(note for row in self.cells for one in row for note in one.notes)
        return {note: letter(place) for place, note in enumerate(notes)}

    @property
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
            notes = "; ".join(dict.fromkeys(note for one in row for note in one.notes))
            writer.writerow([*values, *([csv_cell(notes)] if last else [])])
        return text.getvalue()

    def latex(self, command: str) -> str:
        """A LaTeX table environment (booktabs, graphicx); the command that made it is a comment."""
        marks, below = self.notes, [*self.remarks]
        below += [f"{letter}: {note}." for note, letter in marks.items()]

        def form(one: Cell) -> str:
            text = rf"\textbf{{{latex(one.text)}}}" if one.bold else latex(one.text)
            letters = ",".join(marks[note] for note in dict.fromkeys(one.notes))
            return rf"{text}\textsuperscript{{{letters}}}" if letters else text

        lines = [
            rf"% Needs \usepackage{{booktabs,graphicx}}. Made by: {shown(command, 2_000)}",
            r"\begin{table}[h]\centering",
            rf"\caption{{{latex(self.title)}}}\label{{tab:{self.name}}}",
            rf"\resizebox{{\textwidth}}{{!}}{{\begin{{tabular}}{{@{{}}l{'c' * (len(self.columns) - 1)}@{{}}}}",
            rf"\toprule {' & '.join(map(latex, self.columns))} \\ \midrule",
            *(rf"{' & '.join(map(form, row))} \\" for row in self.cells),
            r"\bottomrule\end{tabular}}",
            *(rf"\par\footnotesize {latex(text)}" for text in below),
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def markdown(self) -> list[str]:
        """Lines of a Markdown table; notes as letters in brackets."""
        marks = self.notes

        def form(one: Cell) -> str:
            text = f"**{markdown(one.text)}**" if one.bold else markdown(one.text)
            letters = ",".join(marks[note] for note in dict.fromkeys(one.notes))
            return f"{text} ({letters})" if letters else text

        head = [" | ".join(map(markdown, self.columns)), "---|" * len(self.columns)]
        rows = [f"| {' | '.join(map(form, row))} |" for row in self.cells]
        return [f"| {head[0]} |", f"|{head[1]}", *rows]


def letter(place: int) -> str:
    """a to z, then aa and so on."""
    return (letter(place // 26 - 1) if place >= 26 else "") + chr(ord("a") + place % 26)
