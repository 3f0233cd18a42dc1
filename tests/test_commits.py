"""Which commit the code is: in a checkout, in a package built from one, and where nothing tells."""

import json
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from fastr.runs import commits

ROOT = Path(__file__).parent.parent
RECORDED = {"revision": "abc", "dirty": True}


def test_commit_is_that_of_the_source_tree(monkeypatch):
    answers: dict[str, str | None] = {"ls-files": "__init__.py", "rev-parse": "abc", "status": ""}
    monkeypatch.setattr(commits, "git", lambda command, *_: answers[command])
    assert commits.commit() == {"revision": "abc", "dirty": False}
    answers["status"] = " M src/fastr/runs.py"
    assert commits.commit() == {"revision": "abc", "dirty": True}


def test_git_may_be_missing(monkeypatch, tmp_path):
    assert commits.git("no-such-command") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commits.git("status") is None


@pytest.mark.parametrize("recorded", [None, RECORDED])
def test_an_installed_copy_knows_what_was_recorded(recorded, tmp_path):
    for name in ("__init__.py", "commits.py"):
        shutil.copy(Path(commits.__file__).parent / name, tmp_path)
    if recorded is not None:
        (tmp_path / "commit.json").write_text(json.dumps(recorded))
    assert runpy.run_path(str(tmp_path / "commits.py"))["commit"]() == recorded


def call(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def build(folder: Path, kind: str) -> Path:
    """What the backend's own hook makes in this folder, as pip and build call it."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}('dist')"
    call(folder, sys.executable, "-c", code)
    (made,) = (folder / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def recorded_in(wheel: Path) -> dict[str, object]:
    return json.loads(zipfile.ZipFile(wheel).read("fastr/runs/commit.json"))


@pytest.mark.skipif(
    int(version("setuptools").split(".")[0]) < 77 or shutil.which("git") is None,
    reason="builds with git and the setuptools that pyproject.toml asks for",
)
def test_a_package_remembers_the_commit_it_was_built_from(tmp_path):
    checkout = tmp_path / "checkout"
    (checkout / "src" / "fastr" / "runs").mkdir(parents=True)
    names = ["pyproject.toml", "setup.py", "README.md", "LICENSE", ".gitignore"]
    for name in [
        *names,
        "src/fastr/__init__.py",
        "src/fastr/runs/__init__.py",
        "src/fastr/runs/commits.py",
    ]:
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
