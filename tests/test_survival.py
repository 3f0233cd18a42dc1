"""Real trainings, broken and resumed: tests/harness/faults.py in short, and in full where slow."""

import subprocess
import sys
from pathlib import Path

import pytest

from fastr.cli import run

HARNESS = Path(__file__).parent / "harness" / "faults.py"


def injected(count: int, *kinds: str) -> str:
    """The harness's table, if nothing was lost, doubled or changed."""
    only = ["--only", *kinds] if kinds else []
    command = [sys.executable, str(HARNESS), "--faults", str(count), *only]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_survives_a_few_faults():
    kinds = ("SIGKILL during a checkpoint", "worker killed")
    table = injected(2, *kinds)
    for kind in kinds:
        assert f"| {kind} | 1 | 1 | 0 | 0 | 1 | 1 |" in table


@pytest.mark.slow
def test_runs_survive_two_hundred_faults():
    assert "| all | 200 | 200 | 0 | 0 | 200 | 200 |" in injected(200)


@pytest.mark.parametrize("patience", ["0", "nan", "1e9"])
def test_a_patience_that_makes_no_sense_is_refused(patience, capsys):
    assert run(["resume", "nowhere", "--patience", patience]) == 2
    assert "--patience" in capsys.readouterr().err
