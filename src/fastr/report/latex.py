"""Tables for a paper: booktabs, with every name escaped."""

from fastr.report.content import Cell, Grid
from fastr.report.text import latex, shown

HEAD = "% Needs \\usepackage{booktabs} and \\usepackage{graphicx}. Made by: "


def latex_table(grid: Grid, command: str) -> str:
    """One table environment."""
    spec = f"@{{}}l {'c' * (len(grid.columns) - 1)}@{{}}"
    below = [*grid.remarks, *(f"{mark}: {note}." for mark, note in grid.notes)]
    lines = [
        # A comment ends with its line, which `shown` keeps to one.
        f"{HEAD}{shown(command, 2_000)}",
        r"\begin{table}[h]",
        r"\centering",
        rf"\caption{{{latex(grid.title)}}}",
        rf"\label{{tab:{grid.name}}}",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{{spec}}}",
        r"\toprule",
        *group_lines(grid),
        f"{' & '.join(latex(column) for column in grid.columns)} \\\\",
        r"\midrule",
        *(f"{' & '.join(latex_cell(grid, cell) for cell in row)} \\\\" for row in grid.rows),
        r"\bottomrule",
        r"\end{tabular}}",
        *(rf"\par\footnotesize {latex_text(text)}" for text in below),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def group_lines(grid: Grid) -> list[str]:
    """Headings over columns, with their rules."""
    if not grid.groups:
        return []
    heads = [rf"\multicolumn{{{g.columns}}}{{c}}{{{latex(g.label)}}}" for g in grid.groups]
    rules, first = [], 1
    for group in grid.groups:
        if group.label:
            rules.append(rf"\cmidrule(lr){{{first}-{first + group.columns - 1}}}")
        first += group.columns
    return [f"{' & '.join(heads)} \\\\", " ".join(rules)]


def latex_cell(grid: Grid, cell: Cell) -> str:
    """Text or a number, bold and marked where it is."""
    text = latex_text(cell.text)
    marks = grid.marks(cell)
    bold = rf"\textbf{{{text}}}" if cell.bold else text
    return rf"{bold}\textsuperscript{{{marks}}}" if marks else bold


def latex_text(text: str) -> str:
    """Escaped text with LaTeX's own signs for plus-minus, dashes and dots."""
    return latex(text)
