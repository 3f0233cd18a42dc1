"""fastr report from the command line: what it writes, what it marks, what it refuses."""

import csv
import json
import re
import shutil
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest

from fastr.cli import run
from fastr.cli.comparing import Report
from fastr.report.reading import read
from fastr.report.sections import published_rows, returns_table, sections
from fastr.report.series import finals, united
from fastr.report.stats import gains, published
from report_inputs import EVALUATIONS, grid_of_runs, misfit_report, write_run

ROOT = Path(__file__).parent.parent
SHARE = 6.5 / 11
"""The mean of the last ten of twelve evaluations on a line from 0 to 1."""


def numbers(*paths):
    return {(final.task, final.label): final for final in finals(united(read(paths).series))[0]}


def tables_of(path):
    """The rows of every figure and table of a report, by name, without drawing any."""
    parts, _ = sections(read([path]))
    tables = {table.name: table for part in parts for table in part.tables}
    return tables | {figure.name: figure.numbers for part in parts for figure in part.figures}


def lines(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report on a small grid with hostile names, and an external curve."""
    folder = tmp_path_factory.mktemp("report")
    runs = grid_of_runs(folder / "runs")
    peer = folder / "peer.csv"
    peer.write_text("frames,seed,return\n0,=1+1,0\n11000,=1+1,500\n")
    arguments = ["report", str(runs), "--out", str(folder / "out")]
    arguments += ["--compare", "=cmd()", "walker-walk", str(peer)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fastr", *arguments])
        assert run(arguments) == 0
    return folder / "out"


def test_the_files_of_a_report(report):
    assert sorted(path.name for path in report.iterdir()) == [
        "figures",
        "index.html",
        "report.txt",
        "tables",
    ]
    assert all(re.fullmatch(r"[a-z0-9.-]+", path.name) for path in report.rglob("*"))
    stems = {path.stem for path in (report / "figures").iterdir()}
    assert {"curves-walker-walk", "iqm-1", "improvement", "misfit-nce", "misfit-gain-nce"} <= stems
    command = f"fastr report {report.parent}/runs --out {report}"
    assert (report / "report.txt").read_text().startswith(command)
    assert "&lt;img src=x onerror=" in (report / "index.html").read_text()
    rows = lines(report / "figures" / "curves-walker-walk.csv")
    ours = [[*row.values()] for row in rows if row["curve"] == "FaStR"]
    assert len(ours) == len(EVALUATIONS)
    # Seeds end at 600 and 601.
    assert [float(cell) for cell in ours[-1][1:]] == [11_000, 600.5, 600.0, 601.0]


def test_the_table_marks_what_is_missing(report):
    rows = lines(report / "tables" / "returns.csv")
    here = {row["method"]: row for row in rows if row["task"] == "walker-walk"}
    assert float(here["FaStR"]["last 10 evaluations"]) == pytest.approx(600.5 * SHARE)
    assert here["FaStR"]["notes"] == ""
    odd = next(row for name, row in here.items() if "onerror" in name)
    assert "seed 0 ends at 5,000 of 11,000 frames" in odd["notes"]
    assert "1 seed where another method has 2" in odd["notes"]
    assert "at 5,000 frames where another method reaches 11,000" in odd["notes"]
    assert "only 6 evaluations" in odd["notes"]


def test_another_report_takes_its_place_and_nothing_else(report, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(report, copy)
    (copy / "tables" / "mine.md").write_text("kept")
    write_run(tmp_path / "runs" / "a", "dog-run", "td3", (0, 1))
    assert run(["report", str(tmp_path / "runs"), "--out", str(copy), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(line["task"], line["method"]) for line in result["returns"]] == [("dog-run", "TD3")]
    assert not (copy / "figures" / "curves-walker-walk.csv").exists()
    assert (copy / "tables" / "mine.md").read_text() == "kept"
    # A report below the runs is not taken for results.
    shutil.move(copy, tmp_path / "runs" / "report")
    assert read([tmp_path / "runs"]).left_out == []
    assert run(["report", str(tmp_path / "runs"), "--out", str(tmp_path)]) == 2
    assert "neither empty nor a report" in capsys.readouterr().err


def test_runs_of_other_seeds_are_one_method(tmp_path):
    write_run(tmp_path / "a", "walker-walk", "fastr", (0, 1), 600.0)
    write_run(tmp_path / "b", "walker_walk", "fastr", (2,), 600.0)
    ((key, final),) = numbers(tmp_path).items()
    assert key == ("walker-walk", "FaStR")
    assert final.series.seeds == ("0", "1", "2")
    assert final.notes == ()
    write_run(tmp_path / "c", "dog-run", "fastr", (0,))
    chosen = Report(paths=(tmp_path,), tasks=("walker_walk",)).found().series
    assert [series.task for series in chosen] == ["walker-walk", "walker-walk"]


def test_runs_with_other_options_are_other_methods(tmp_path):
    write_run(tmp_path / "a", "walker-walk", "fastr", (0,))
    write_run(tmp_path / "b", "walker-walk", "fastr", (1,), preset="laptop")
    write_run(tmp_path / "c", "walker-walk", "fastr", (2,), eval_episodes=3)
    labels = {label for _, label in numbers(tmp_path)}
    assert labels == {"FaStR, eval_episodes=10", "FaStR, laptop", "FaStR, eval_episodes=3"}
    # A run repeated is not averaged with itself.
    write_run(tmp_path / "d", "dog-run", "td3", (0,))
    write_run(tmp_path / "e", "dog-run", "td3", (0,))
    assert {label for task, label in numbers(tmp_path) if task == "dog-run"} == {"TD3, d", "TD3, e"}


def test_bold_needs_a_gap_of_more_than_one_deviation(tmp_path):
    """Means of the last ten: 0.59 times the end; seeds 0 and 40 deviate by 0.59 * 20."""
    write_run(tmp_path / "a", "walker-walk", "fastr", (0, 40), 600.0)
    write_run(tmp_path / "b", "walker-walk", "ctrl-sr", (0, 1), 619.0)
    write_run(tmp_path / "c", "dog-run", "fastr", (0, 40), 600.0)
    write_run(tmp_path / "d", "dog-run", "ctrl-sr", (0, 1), 605.0)
    write_run(tmp_path / "e", "cheetah-run", "fastr", (0, 1), 600.0)
    write_run(tmp_path / "f", "cheetah-run", "td3", (0, 1), 300.0, EVALUATIONS[:11])
    write_run(tmp_path / "g", "walker-run", "fastr", (0,), 600.0)
    write_run(tmp_path / "h", "walker-run", "td3", (0, 1), 300.0)
    assert {key for key, final in numbers(tmp_path).items() if final.best} == set()
    write_run(tmp_path / "i", "dog-run", "sac", (0, 1), 900.0)
    best = {key for key, final in numbers(tmp_path).items() if final.best}
    assert best == {("dog-run", "SAC (3-layer)")}


def test_the_papers_numbers_and_its_bold_cells():
    assert len({entry.method for entry in published() if entry.of_the_paper}) == 6
    rows = {row[0]: row[3:] for row in published_rows()}
    ours = "903 ± 8,974 ± 3,809 ± 17,949 ± 9,936 ± 9,877 ± 28,591 ± 15,168 ± 7,951 ± 24,560 ± 50"
    assert ",".join(cell.text for cell in rows["FaStR"]) == ours
    assert [cell.bold for cell in rows["FaStR"]] == [False] * 5 + [True] * 5
    assert [cell.bold for cell in rows["Diff-SR"]] == [True, False, True, *[False] * 7]


def test_transfers_and_tables_of_other_commands(tmp_path):
    kept = write_run(tmp_path / "fastr-keep-state-factor", "walker-walk@latency=2", "fastr", (0, 1))
    config = json.loads((kept / "config.json").read_text())
    config["train"]["agent"]["keep"] = "state-factor"
    (kept / "config.json").write_text(json.dumps(config))
    write_run(tmp_path / "fastr-scratch", "walker-walk@latency=2", "fastr", (0, 1))
    (tmp_path / "table.csv").write_text(
        "condition,frozen_parameters,unadapted_return\nfastr-keep-state-factor,6,77.5\n"
    )
    (tmp_path / "moved.csv").write_text("condition,seed,what,value\nfastr-keep,0,CKA,0.5\n")
    (tmp_path / "curves.csv").write_text("x\n1\n")
    found = tables_of(tmp_path)
    curves = found["curves-walker-walk-latency-2"].rows
    assert {row[0] for row in curves} == {"FaStR", "FaStR, keep state-factor"}
    (moved,) = [table for name, table in found.items() if name.endswith("-moved")]
    assert moved.rows == [["fastr-keep", 0, "CKA", 0.5]]
    # A shifted task is no row of Table 1, and the stray file is named.
    assert "table1" not in found
    assert "curves.csv" in str(found["left-out"].rows)


def test_misfit_against_gain(tmp_path):
    misfit_report(tmp_path / "misfit", "walker_walk")
    ((name, *_, gain, _),) = tables_of(tmp_path)["misfit-gain-nce"].rows
    # The paper's 974 and 978, as there is no run.
    assert (name, gain) == ("walker-walk (paper)", -4)
    write_run(tmp_path / "a", "walker-walk", "fastr", (0, 1), 600.0)
    write_run(tmp_path / "b", "walker-walk", "ctrl-sr", (0, 1), 400.0)
    ((name, *_, gain, _),) = tables_of(tmp_path)["misfit-gain-nce"].rows
    assert (name, gain) == ("walker-walk", pytest.approx(200 * SHARE))


def test_gains_are_of_the_runs_most_alike_in_whatever_order_they_are_named(tmp_path):
    odd = {"frame_skip": 1, "eval_episodes": 7, "replay_capacity": 99}
    runs = [
        write_run(tmp_path / "a", "walker-walk", "fastr", (0,), 300.0, **odd),
        write_run(tmp_path / "b", "walker-walk", "fastr", (0,), 200.0),
        write_run(tmp_path / "c", "walker-walk", "fastr", (0,), 800.0, frames=22_000),
        write_run(tmp_path / "d", "walker-walk", "ctrl-sr", (0,), 100.0),
    ]
    for order in permutations(runs):
        assert gains([*numbers(*order).values()]) == {"walker-walk": pytest.approx(100 * SHARE)}
    short = write_run(tmp_path / "e", "walker-walk", "ctrl-sr", (0,), 9.0, EVALUATIONS[:11])
    quick = write_run(tmp_path / "f", "walker-walk", "ctrl-sr", (0,), preset="laptop")
    for unlike in (short, quick):
        assert gains([*numbers(runs[1], unlike).values()]) == {}


WRONG = {
    "nothing": ([], "RUNS"),
    "seed": (["runs", "--bootstrap-seed", "-1"], "--bootstrap-seed"),
    "task": (["runs", "--tasks", "dog-run"], "--tasks dog-run"),
    "compare": (["runs", "--compare", "a", "dog-run", "none.csv"], "none.csv cannot be read"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_reports_get_one_sentence(arguments, message, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "a", "walker-walk", "td3", (0,))
    refused(["report", *arguments], message)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_damaged_run_is_left_out_and_named(tmp_path, capsys):
    write_run(tmp_path / "good", "gym:Pendulum-v1", "td3", (0, 1), -900.0)
    bad = write_run(tmp_path / "bad", "walker-walk", "fastr", (0, 1))
    (bad / "rows.jsonl").write_text("{]\n")
    empty = write_run(tmp_path / "empty", "walker-walk", "sac", (0, 1), evaluations=())
    assert run(["report", str(tmp_path), "--out", str(tmp_path / "out"), "--json"]) == 0
    printed = capsys.readouterr()
    assert f"{bad / 'rows.jsonl'} line 1 is not a JSON object" in printed.err
    assert f"{empty} has no evaluation yet" in printed.err
    assert len(json.loads(printed.out)["left_out"]) == 2
    assert run(["report", str(bad), "--out", str(tmp_path / "out")]) == 2


def test_a_report_never_loads_jax(tmp_path):
    """The whole command, from a run, results and a misfit to figures, tables and page."""
    results = ROOT / "results" / "cpu"
    paths = [results / "coverage.csv", results / "misfit-walker-walk-random-quick"]
    run_directory = write_run(tmp_path / "run", "gym:Pendulum-v1", "td3", (0, 1))
    arguments = ["report", str(run_directory), *map(str, paths), "--out", str(tmp_path / "out")]
    code = (
        "import sys\nfrom fastr.cli import run\n"
        f"assert run({arguments!r}) == 0\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert (tmp_path / "out" / "tables" / "cpu-coverage.csv").exists()


@pytest.mark.parametrize(
    ("source", "page", "row"),
    [
        ("results/h200/humanoid-walk", "README.md", "| humanoid-walk | CTRL-SR | 1,000,000 | 3 |"),
        ("results", "results/README.md", "| walker-walk | FaStR, quick | 25,000 | 3 |"),
    ],
)
def test_the_tables_of_results_are_up_to_date(source, page, row, monkeypatch):
    """If this fails, copy tables/returns.md of `fastr report SOURCE` into PAGE."""
    monkeypatch.chdir(ROOT)
    found = read([Path(source)])
    table = returns_table(finals(united(found.series))[0]).markdown()
    assert row in table
    assert table in Path(page).read_text()
    assert found.left_out == []
    assert all(origin.commit for series in found.series for origin in series.origins)
