"""What the documentation says is so: its code runs, its commands parse, its names exist."""

import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from markdown_it import MarkdownIt

from fastr.cli import after_imports, command, run
from fastr.core import EnvSpec
from fastr.training.config import preset
from fastr.training.learner import Engine
from saved_runs import save_run

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]
SHELL = ("", "bash", "console", "sh")
COMMAND = re.compile(r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*fastr (.+?)(?: > .+| &)?$", re.MULTILINE)
TINY = shlex.split(
    "--frames 40 --random-frames 20 --eval-frames 20 --eval-episodes 1 --checkpoint-frames 20 "
    "--batch-size 8 --feature-dim 8 --hidden-dim 8 --blocks 0 --noise-levels 2 --fourier-dim 8 "
    "--head-dim 8 --actor-dim 8"
)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    title: str
    body: str
    runs: bool
    """Whether its commands are to be run, and not only parsed."""


def blocks(page: Path) -> list[Block]:
    found, marked = [], False
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "html_block":
            marked = token.content.strip() == "<!-- run -->"
        elif token.type == "fence":
            language, _, options = token.info.partition(" ")
            title = re.search(r'title="([^"]+)"', options)
            name = title[1] if title else ""
            found.append(Block(page, token.map[0] + 1, language, name, token.content, marked))
            marked = False
    return found


BLOCKS = [block for page in sorted(PAGES) for block in blocks(page)]


def commands(block: Block) -> list[tuple[str, ...]]:
    joined = block.body.replace("\\\n", " ")
    return [tuple(shlex.split(line, comments=True)) for line in COMMAND.findall(joined)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


PYTHON = [block for block in BLOCKS if block.language == "python"]
COMMANDS = {c: b for b in BLOCKS if b.language in SHELL for c in commands(b)}
RUN = [block for block in BLOCKS if block.runs]
CHOSEN = "own-representation"


@pytest.fixture
def desk(tmp_path, monkeypatch, with_examples):  # noqa: ARG001
    """An empty directory in which the examples and the results can be read."""
    for folder in ("examples", "results"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_documentation_is_read():
    assert len(PYTHON) >= 6
    assert len(COMMANDS) >= 60
    assert len(RUN) >= 3


@pytest.fixture
def exported(desk, monkeypatch):
    """What docs/export.md speaks of: a run, and beside it the policy exported from it."""
    save_run(desk / "runs" / "gait", seeds=(0, 1, 2))
    arguments = "export runs/gait --format safetensors --out gait --episodes 0"
    assert run(arguments.split()) == 0
    for file in (desk / "gait").iterdir():
        file.rename(desk / file.name)
    monkeypatch.syspath_prepend(desk)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("page", dict.fromkeys(block.page for block in PYTHON), ids=name)
def test_python_blocks_run(page, request):
    if page.name == "export.md":
        request.getfixturevalue("exported")
    namespace = {"__name__": "page"}
    for block in PYTHON:
        if block.page == page and not block.title:
            # Errors then name the page and its line.
            code = "\n" * block.line + block.body
            exec(compile(code, name(page), "exec"), namespace)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.title], ids=lambda block: block.title)
def test_a_titled_block_is_its_file(block):
    assert block.body == (ROOT / block.title).read_text()


@pytest.mark.usefixtures("with_examples")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_commands_are_the_command_lines_own(arguments, capsys):
    if "--help" in arguments:
        with pytest.raises(SystemExit, match="0"):
            command(*arguments)
        assert capsys.readouterr().out
    else:
        words = [word.replace("$task", "walker-walk") for word in arguments]
        assert command(*after_imports(words)) is not None


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    "page",
    [
        # By default one page runs, with what nothing else tests.
        pytest.param(page, id=name(page), marks=() if page.stem == CHOSEN else pytest.mark.slow)
        for page in dict.fromkeys(block.page for block in RUN)
    ],
)
def test_marked_commands_run(page):
    for arguments in [c for block in RUN if block.page == page for c in commands(block)]:
        sizes = TINY if "train" in arguments[:3] else ()
        assert run([*arguments, *sizes]) == 0, arguments


@pytest.mark.parametrize("method", ["fastr", "diff-sr", "sac", "td7", "td3"])
def test_every_metric_is_explained(method):
    config = preset("walker-walk", method, "laptop")
    engine = Engine(config.agent, EnvSpec(3, 2), (0,), capacity=8, random_steps=1)
    text = (ROOT / "docs" / "reading-metrics.md").read_text()
    assert engine.metric_names
    for metric in engine.metric_names:
        assert f"`{metric}`" in text


def test_files_named_at_the_root_exist():
    links = re.compile(r"\]\(([^)#:]+)\)|`((?:docs|examples|results|tools|tests)/[\w/.-]+)`")
    for page in [page for page in PAGES if page.parent == ROOT]:
        for link, path in links.findall(page.read_text()):
            assert (ROOT / (link or path)).exists(), f"{page.name} names {link or path}"


def test_versions_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert version in (ROOT / "CHANGELOG.md").read_text()
    assert sys.modules["fastr"].__version__ == version
