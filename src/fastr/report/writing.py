"""A report on disk: its page with the files of every figure and table; the table in a README."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import fastr
from fastr.core import UserError, counted, write_errors
from fastr.report.evaluations import read_text
from fastr.report.page import FIGURES, PAGE, TABLES, Page, Section, write_page
from fastr.report.sections import returns_table
from fastr.report.series import Final, labels
from fastr.report.table import markdown, shown
from fastr.runs.provenance import commit

MARK = "report.txt"
"""Lies in every report's folder: only such a folder may be overwritten by another report."""
BEGIN = "<!-- fastr report: begin; written by `fastr report`, not by hand -->"
END = "<!-- fastr report: end -->"


def write(
    parts: Sequence[Section], numbers: Sequence[Final], arguments: Sequence[str], out: Path
) -> None:
    """All files of a report."""
    claim(out)
    command = shown(shlex.join(["fastr", *arguments]), 2_000)
    revision = ((commit() or {}).get("revision") or "")[:12]
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    version = f"fastr {' '.join(filter(None, (fastr.__version__, revision)))}, {date}"
    tasks = counted(len({final.task for final in numbers}), "task")
    lead = f"{counted(len(labels(numbers)), 'method')} on {tasks}."
    write_page(Page("Measured results", lead, parts, command, version), out / PAGE)
    (out / MARK).write_text(f"{command}\n{version}\n", encoding="utf-8")


def claim(out: Path) -> None:
    """Create the folder, or empty an earlier report; UserError if something else is there."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out.")
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise UserError(f"{out} is neither empty nor a report; choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    for old in [*(out / FIGURES).glob("*"), *(out / TABLES).glob("*")]:
        if old.suffix in (".png", ".svg", ".pdf", ".csv", ".tex"):
            old.unlink()


def around(readme: Path) -> tuple[str, str]:
    """Text before and after the two comments; UserError unless both are there once."""
    text = read_text(readme)
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(
            f"{readme} needs the two lines {BEGIN} and {END}, once each, in this order."
        )
    return text.split(BEGIN)[0], text.split(END)[1]


def update(readme: Path, numbers: Sequence[Final], left_out: Sequence[str]) -> None:
    """Write the table of measured returns between the two comments of a Markdown file."""
    before, after = around(readme)
    table = returns_table(numbers)
    notes = [f"- {letter}: {markdown(note)}" for note, letter in table.notes.items()]
    notes += [f"- left out: {markdown(text)}" for text in left_out]
    remarks = " ".join(map(markdown, table.remarks))
    lines = [BEGIN, *table.markdown(), "", *notes, "", remarks, END]
    with write_errors(readme):
        readme.write_text(before + "\n".join(lines) + after, encoding="utf-8")
