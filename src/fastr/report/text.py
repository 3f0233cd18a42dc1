"""Names that others chose, as text: on a page, in a table, in a paper, in a file's name."""

import re
import unicodedata
from collections.abc import Collection

LIMIT = 200
"""Characters of a name that are shown."""
LONG = 10_000
"""Characters of a whole sentence or command."""
FORMULA = ("=", "+", "-", "@")
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    # After the end of a row these would be its options.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "±": r"$\pm$",
    "–": "--",
    "…": r"\dots{}",
}
MARKDOWN = re.compile(r"([\\`*_{}\[\]#!|~])")
LINKS = {"@": "&#64;", "://": "&#58;//", "www.": "www&#46;"}
"""What renderers make links of, unasked."""


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


def markdown(text: str) -> str:
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
