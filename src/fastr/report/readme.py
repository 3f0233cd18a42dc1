"""A README's results, written from the files they come from."""

from collections.abc import Sequence
from pathlib import Path

from fastr.core import UserError, write_errors
from fastr.report.content import Grid
from fastr.report.finals import Final
from fastr.report.returns import returns_grid
from fastr.report.tables import read_text
from fastr.report.text import markdown

BEGIN = "<!-- fastr report: begin; written by `fastr report`, not by hand -->"
END = "<!-- fastr report: end -->"


def surroundings(path: Path) -> tuple[str, str]:
    """What stands before and after the two comments; UserError unless both are there once."""
    text = read_text(path)
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{path} needs the two lines {BEGIN} and {END}, once each, in this order.")
    return text.split(BEGIN)[0], text.split(END)[1]


def update(path: Path, numbers: Sequence[Final], left_out: Sequence[str]) -> None:
    """Write the part between the two comments anew."""
    before, after = surroundings(path)
    with write_errors(path):
        path.write_text(
            f"{before}{BEGIN}\n{results(numbers, left_out)}{END}{after}", encoding="utf-8"
        )


def results(numbers: Sequence[Final], left_out: Sequence[str]) -> str:
    """The table of measured returns and its notes, in Markdown."""
    grid = returns_grid(numbers)
    lines = [*markdown_table(grid), ""]
    lines += [f"- {mark}: {markdown(note)}" for mark, note in grid.notes]
    lines += [f"- left out: {markdown(text)}" for text in left_out]
    remarks = " ".join(markdown(remark) for remark in grid.remarks)
    return "\n".join([*lines, "", remarks, ""])


def markdown_table(grid: Grid) -> list[str]:
    """Header, rule and rows; notes as letters in brackets."""
    rows = []
    for row in grid.rows:
        cells = []
        for cell in row:
            text = f"**{markdown(cell.text)}**" if cell.bold else markdown(cell.text)
            marks = grid.marks(cell)
            cells.append(f"{text} ({marks})" if marks else text)
        rows.append(f"| {' | '.join(cells)} |")
    head = f"| {' | '.join(markdown(column) for column in grid.columns)} |"
    return [head, "|" + "---|" * len(grid.columns), *rows]
