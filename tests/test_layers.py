"""Imports point down, and what must stay light does not load JAX."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fastr

SOURCE = Path(fastr.__file__).parent
# A room may import from those before it.
ROOMS = [
    "core",
    "envs",
    "runs",
    "nn",
    "transition",
    "representations",
    "agents",
    "training",
    "data",
]
ROOMS += ["report", "studies", "sweep", "export", "library", "cli", "__init__"]
LIGHT = ["envs", "runs.directory", "report.page", "sweep", "cli"]


def room(name: str) -> int:
    return ROOMS.index(name.split(".")[0])


def imported(path: Path) -> set[str]:
    """Rooms that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fastr."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "fastr":
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("path", list(SOURCE.rglob("*.py")), ids=str)
def test_imports_point_to_earlier_rooms(path):
    place = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    assert all(room(other) <= room(place) for other in imported(path)), imported(path)


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_do_not_load_jax(module):
    code = f"import fastr.{module}, sys; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
