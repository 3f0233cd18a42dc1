"""requirements/ci.txt is what pyproject.toml asks for, and nothing in it goes without a hash."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def locked():
    """Versions and the text of each entry, by name; some have one per version of Python."""
    text = (ROOT / "requirements" / "ci.txt").read_text()
    found = {}
    for entry in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]:
        name, version = re.match(r"([\w.-]+)(?:\[[\w,]+\])?==([^\s;\\]+)", entry).groups()
        found.setdefault(canonicalize_name(name), []).append((version, entry))
    return found


def wanted():
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *extras["dev"], *extras["docs"]]
    return [Requirement(line) for line in lines if not line.startswith("fastr-rl[")]


@pytest.mark.parametrize("requirement", wanted(), ids=lambda requirement: requirement.name)
def test_every_dependency_is_locked_within_its_bounds(requirement):
    versions = locked().get(canonicalize_name(requirement.name), [])
    assert versions, f"{requirement} is not in requirements/ci.txt: run `make lock`"
    for version, _ in versions:
        assert requirement.specifier.contains(version), f"{requirement}: run `make lock`"


def test_every_entry_has_hashes():
    assert len(locked()) > 100
    for entries in locked().values():
        for version, entry in entries:
            assert HASH.search(entry), f"{version}: {entry[:60]}"
