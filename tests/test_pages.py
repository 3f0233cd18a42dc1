"""The page: names are text, nothing is fetched or run, light and dark."""

import csv
import re
from html.parser import HTMLParser

import pytest

from fastr.report.page import (
    Axes,
    Bar,
    Curve,
    Marker,
    Page,
    Section,
    curves,
    intervals,
    markers,
    write_page,
)
from fastr.report.table import Cell, Table
from report_inputs import HOSTILE

FIGURES = (
    curves(
        "curves",
        HOSTILE,
        [
            Curve(HOSTILE, [1, 10, 100], [1.0, 2.0, 3.0], [0.5] * 3, [4.0] * 3),
            Curve("_b", [1], [2]),
        ],
        Axes("size", "error", "log"),
        [("chance", 1.5)],
    ),
    intervals(
        "bars", "Estimates", [Bar(HOSTILE, 1.0, 0.5, 2.0), Bar("one seed", 2.0)], "nats", 0.0
    ),
    markers("points", "Gain", [Marker(HOSTILE, 0.1, 0.0, 0.2, -3.0, 6)], Axes("a", "b"), "dim A"),
)
TABLE = Table(
    "claims",
    f"Claims {HOSTILE}",
    ("claim", *["a long heading"] * 8),
    [
        [HOSTILE, 0.123456, 1_000_000, None, *["text"] * 4, Cell("holds", tone="good")],
        [Cell("b", bold=True, notes=(HOSTILE, "note")), 2.0, 3, *[""] * 6],
    ],
    [HOSTILE],
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    sections = [
        Section("x", HOSTILE, [HOSTILE], FIGURES, [TABLE], code=HOSTILE),
        Section("y", "Another", ["text"]),
    ]
    page = Page(HOSTILE, HOSTILE, sections, f"fastr {HOSTILE}", "fastr 0")
    write_page(page, folder / "index.html")
    return folder / "index.html"


def test_every_figure_and_table_has_its_files(path):
    for figure in FIGURES:
        for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            file = path.parent / "figures" / f"{figure.name}.{form}"
            assert file.read_bytes().startswith(start)
    with (path.parent / "figures" / "curves.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["curve", "size", "error", "low", "high"]
    assert rows[1][1:] == ["1", "1.0", "0.5", "4.0"]
    assert rows[-1] == ["chance", "", "1.5", "", ""]
    with (path.parent / "tables" / "claims.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[1][1:4] == ["0.123456", "1000000", ""]
    assert rows[2][-1] == f"{HOSTILE}; note"


def test_the_page_needs_nothing_else(path):
    text = path.read_text()
    assert "default-src 'none'" in text
    assert "script" not in re.sub("[Cc]ontent-[Ss]ecurity", "", text).lower()
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", text)
    # Light and dark: no colour of a picture is fixed but those of a colour map.
    assert not re.findall("(?:fill|stroke): #(?:000000|ffffff|0072b2)", text)


def test_names_are_text(path):
    """The page has no element, attribute or entity from a name: all are written as text."""
    page = Elements()
    page.feed(path.read_text())
    assert not page.found & {"img", "script", "iframe", "object", "embed"}
    assert not [name for name in page.attributes if name.startswith("on")]
    assert HOSTILE in "".join(page.text)
    assert page.ids >= {link.removeprefix("#") for link in page.links if link.startswith("#")}


class Elements(HTMLParser):
    """What a browser would make of the page."""

    def __init__(self):
        super().__init__()
        self.found, self.attributes, self.ids = set(), set(), set()
        self.text, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids |= {value for name, value in attrs if name == "id"}
        self.links += [value for name, value in attrs if name == "href"]

    def handle_data(self, data):
        self.text.append(data)
