"""Real trainings, broken and resumed: tests/harness/faults.py in short, and in full where slow."""

import subprocess
import sys
from pathlib import Path

import pytest

from fastr.cli import run

HARNESS = Path(__file__).parent / "harness"


def injected(tmp_path, count: int, *kinds: str) -> str:
    """The harness's table, if nothing was lost, doubled or changed."""
    command = [sys.executable, HARNESS / "faults.py", "--faults", count]
    command += ["--keep", tmp_path / "work", *(["--only", *kinds] if kinds else [])]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_survives_a_few_faults(tmp_path):
    kinds = ("SIGKILL during a checkpoint", "worker killed")
    table = injected(tmp_path, 2, *kinds)
    for kind in kinds:
        assert f"| {kind} | 1 | 1 | 0 | 0 | 1 | 1 |" in table


@pytest.mark.slow
def test_runs_survive_two_hundred_faults(tmp_path):
    assert "| all | 200 | 200 | 0 | 0 | 200 | 200 |" in injected(tmp_path, 200)


@pytest.mark.slow
def test_a_soak_ends(tmp_path):
    command = [sys.executable, HARNESS / "soak.py", "--agent-steps", "20000", "--every", "2000"]
    subprocess.run([*command, "--out", tmp_path / "soak.csv"], check=True)
    lines = (tmp_path / "soak.csv").read_text().splitlines()
    head, *samples = [line.split(",") for line in lines]
    for name in ("rss_mib", "handles"):
        values = [float(sample[head.index(name)]) for sample in samples]
        assert max(values[2:]) <= 1.05 * values[1]


@pytest.mark.parametrize("patience", ["0", "nan", "1e9"])
def test_a_patience_that_makes_no_sense_is_refused(patience, capsys):
    assert run(["resume", "nowhere", "--patience", patience]) == 2
    assert "--patience" in capsys.readouterr().err
