"""Where a result comes from: packages, machine, and the commit of a checkout or a package."""

import json
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from fastr.runs import provenance

ROOT = Path(__file__).parent.parent
SOURCES = ["pyproject.toml", "setup.py", "README.md", "LICENSE", ".gitignore"]
SOURCES += ["src/fastr/__init__.py", "src/fastr/runs/__init__.py", "src/fastr/runs/provenance.py"]


def test_provenance_names_code_machine_and_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fastr", "train"])
    found = provenance.provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["command"] == ["fastr", "train"]
    assert found["packages"]["numpy"] == np.__version__
    assert found["cores"] >= 1
    assert found["cpu"]
    assert found["started"].endswith("+00:00")


def test_commit_is_that_of_the_source_tree(monkeypatch):
    answers: dict[str, str | None] = {"ls-files": "provenance.py", "rev-parse": "abc", "status": ""}
    monkeypatch.setattr(provenance, "git", lambda command, *_: answers[command])
    assert provenance.commit() == {"revision": "abc", "dirty": False}
    answers["status"] = " M src/fastr/core.py"
    assert provenance.commit() == {"revision": "abc", "dirty": True}


@pytest.mark.parametrize("recorded", [None, {"revision": "abc", "dirty": True}])
def test_an_installed_copy_has_the_recorded_commit_without_git(recorded, tmp_path, monkeypatch):
    shutil.copy(provenance.__file__, tmp_path)
    if recorded is not None:
        (tmp_path / "commit.json").write_text(json.dumps(recorded))
    assert runpy.run_path(str(tmp_path / "provenance.py"))["commit"]() == recorded
    monkeypatch.setenv("PATH", str(tmp_path))
    assert runpy.run_path(str(tmp_path / "provenance.py"))["commit"]() == recorded


def call(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def build(folder: Path, kind: str) -> Path:
    """A package built in this folder by the backend's own hook, as pip and build call it."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}('dist')"
    call(folder, sys.executable, "-c", code)
    (package,) = (folder / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return package


def recorded_in(wheel: Path) -> dict[str, object]:
    return json.loads(zipfile.ZipFile(wheel).read("fastr/runs/commit.json"))


@pytest.mark.skipif(
    int(version("setuptools").split(".")[0]) < 77 or shutil.which("git") is None,
    reason="builds with git and the setuptools that pyproject.toml asks for",
)
def test_a_package_records_the_commit_it_was_built_from(tmp_path):
    checkout = tmp_path / "checkout"
    (checkout / "src" / "fastr" / "runs").mkdir(parents=True)
    for name in SOURCES:
        shutil.copy(ROOT / name, checkout / name)
    call(checkout, "git", "init", "--quiet")
    call(checkout, "git", "add", ".")
    author = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    call(checkout, "git", *author, "commit", "--quiet", "--message", "first")
    revision = call(checkout, "git", "rev-parse", "HEAD")

    packed = build(checkout, "sdist")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / packed.name.removesuffix(".tar.gz")
    assert recorded_in(build(unpacked, "wheel")) == {"revision": revision, "dirty": False}

    (checkout / "README.md").write_text("changed")
    assert recorded_in(build(checkout, "wheel")) == {"revision": revision, "dirty": True}
    assert call(checkout, "git", "status", "--porcelain") == "M README.md"
