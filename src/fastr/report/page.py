"""One page of sections: offline HTML without scripts, with the files of its figures and tables.

`fastr report`, `fastr misfit` and `fastr theory` write their pages with it. All text is escaped,
and a content security policy lets the page fetch and run nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.progress import track

from fastr.core import UserError, write_errors
from fastr.report.plots import Figure
from fastr.report.table import Table

PAGE, FIGURES, TABLES = "index.html", "figures", "tables"
MARK = "report.txt"
"""Lies in every report's folder: only such a folder may be overwritten by another report."""


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, then figures, then tables; the name is the address in the page."""

    name: str
    title: str
    paragraphs: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    code: str = ""
    """Text in a fixed width, at the end."""


@dataclass(frozen=True)
class Page:
    """A title, what the page is about, how it was made, and its sections."""

    title: str
    lead: str
    sections: Sequence[Section]
    command: str
    version: str = ""

    def html(self) -> str:
        """The page as text."""
        from jinja2 import Environment, StrictUndefined

        template = resources.files("fastr.report").joinpath("page.html").read_text("utf-8")
        environment = Environment(
            autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
        )
        return environment.from_string(template).render(page=self)


def claim(out: Path) -> None:
    """Create the folder, or empty an earlier report; UserError if something else is there."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out.")
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise UserError(f"{out} is neither empty nor a report; choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    # Every figure and table has its CSV file; what has none is not of a report.
    for old in [*(out / FIGURES).glob("*.csv"), *(out / TABLES).glob("*.csv")]:
        for form in (".png", ".svg", ".md", ".tex", ".csv"):
            old.with_suffix(form).unlink(missing_ok=True)


def write_page(page: Page, path: Path) -> None:
    """Write the page, and beside it figures/NAME.* and tables/NAME.* with all numbers as CSV."""
    figures, tables = path.parent / FIGURES, path.parent / TABLES
    with write_errors(path):
        for folder in (figures, tables):
            folder.mkdir(parents=True, exist_ok=True)
        every = [figure for section in page.sections for figure in section.figures]
        for figure in track(every, "drawing", console=Console(stderr=True), transient=True):
            figure.save(*(figures / f"{figure.name}.{form}" for form in ("png", "svg")))
            (figures / f"{figure.name}.csv").write_text(figure.numbers.csv(), "utf-8")
        for table in [table for section in page.sections for table in section.tables]:
            (tables / f"{table.name}.csv").write_text(table.csv(), "utf-8")
            (tables / f"{table.name}.md").write_text(table.markdown(), "utf-8")
            (tables / f"{table.name}.tex").write_text(table.latex(page.command), "utf-8")
        path.write_text(page.html(), encoding="utf-8")
