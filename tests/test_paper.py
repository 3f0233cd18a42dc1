"""The map from the paper to the code cannot rot."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"\| ([^|`]+) \| `(fastr\.[\w.]+)` \| `(test_\w+\.py)::(test_\w+)` \|")
ROWS = ROW.findall((ROOT / "docs" / "paper.md").read_text())


def symbol(path: str):
    """The module, class, function or method of this dotted name."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


def test_the_map_is_read():
    assert len(ROWS) >= 15


@pytest.mark.parametrize(("place", "path", "file", "test"), ROWS)
def test_row(place, path, file, test):
    documented = " ".join(symbol(path).__doc__.split())
    assert place in documented, f"the docstring of {path} does not name {place}"
    assert re.search(rf"^def {test}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
