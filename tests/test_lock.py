"""requirements/ci.txt is what pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked():
    """Versions by name; some packages have one per version of Python."""
    text = (ROOT / "requirements" / "ci.txt").read_text()
    found = {}
    for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;\\]+)", text, re.MULTILINE):
        found.setdefault(canonicalize_name(name), []).append(version)
    return found


def wanted():
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *extras["dev"], *extras["docs"]]
    return [Requirement(line) for line in lines if not line.startswith("fastr-rl[")]


@pytest.mark.parametrize("requirement", wanted(), ids=lambda requirement: requirement.name)
def test_every_dependency_is_locked_within_its_bounds(requirement):
    versions = locked().get(canonicalize_name(requirement.name), [])
    assert versions, f"{requirement} is not in requirements/ci.txt: run `make lock`"
    for version in versions:
        assert requirement.specifier.contains(version), f"{requirement}: run `make lock`"
