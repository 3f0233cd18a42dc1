"""fastr report from the command line: what it writes, what it marks, what it refuses."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from fastr.cli import run
from fastr.cli.report import Report
from fastr.report.colors import looks
from fastr.report.finals import finals
from fastr.report.plots import CROWDED, picture
from fastr.report.published import published
from fastr.report.reading import read
from fastr.report.returns import published_rows
from fastr.report.sections import efficiency_section
from fastr.report.series import united
from fastr.report.writing import Choices, sections
from report_inputs import EVALUATIONS, grid_of_runs, misfit_report, write_run

ROOT = Path(__file__).parent.parent


def numbers(*paths):
    return {(final.task, final.label): final for final in finals(united(read(paths).series))[0]}


def shown_of(path):
    """The numbers of every chart and of every table, by name, without drawing any."""
    parts, _ = sections(read([path]), Choices())
    charts = {chart.name: chart.lines_of_csv() for part in parts for chart in part.charts}
    return charts, {grid.name: grid.lines() for part in parts for grid in part.grids}


def lines(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report on a small grid with hostile names, and an external curve."""
    folder = tmp_path_factory.mktemp("report")
    runs = grid_of_runs(folder / "runs")
    peer = folder / "peer.csv"
    peer.write_text("frames,seed,return\n0,=1+1,0\n11000,=1+1,500\n")
    arguments = ["--import", "json", "report", str(runs), "--out", str(folder / "out")]
    arguments += ["--price-per-hour", "3", "--compare", "=cmd()", "walker-walk", str(peer)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fastr", *arguments])
        assert run(arguments) == 0
    return folder / "out"


def test_every_figure_has_its_pictures_numbers_and_command(report):
    stems = {path.stem for path in (report / "figures").iterdir()}
    assert {"curves-walker-walk", "iqm-1", "improvement", "misfit-nce"} <= stems
    assert {"misfit-gain-nce", "misfit-gain-moment"} <= stems
    for stem in stems:
        for form in ("png", "svg", "pdf", "csv", "txt"):
            assert (report / "figures" / f"{stem}.{form}").stat().st_size > 20
        assert (
            (report / "figures" / f"{stem}.txt")
            .read_text()
            .startswith(f"fastr --import json report {report.parent}/runs --out {report}")
        )


def test_curves_as_numbers(report):
    head, *rows = lines(report / "figures" / "curves-walker-walk.csv")
    assert head == [
        "curve",
        "frames (simulator steps)",
        "return of the greedy policy",
        "low",
        "high",
    ]
    ours = [row for row in rows if row[0] == "FaStR"]
    assert len(ours) == len(EVALUATIONS)
    # Seeds end at 600 and 601.
    assert [float(cell) for cell in ours[-1][1:]] == [11_000, 600.5, 600.0, 601.0]


def test_the_table_marks_what_is_missing(report):
    head, *rows = lines(report / "tables" / "returns.csv")
    by_name = {row[1]: dict(zip(head, row, strict=True)) for row in rows if row[0] == "walker-walk"}
    # The last ten of twelve evaluations on a line from 0 to 600.5 at 11,000.
    assert float(by_name["FaStR"]["last 10 evaluations"]) == pytest.approx(600.5 * 6.5 / 11)
    assert by_name["FaStR"]["notes"] == ""
    odd = next(row for name, row in by_name.items() if "onerror" in name)
    assert "seed 0 ends at 5,000 of 11,000 frames" in odd["notes"]
    assert "1 seed where another method has 2" in odd["notes"]
    assert "at 5,000 frames where another method reaches 11,000" in odd["notes"]
    assert "only 6 evaluations" in odd["notes"]


def test_names_stay_text_in_every_file(report):
    page = (report / "index.html").read_text()
    assert "&lt;img src=x onerror=" in page
    assert "<img" not in page
    for path in (report / "tables").glob("*.csv"):
        for row in lines(path):
            assert not any(cell.startswith(("=", "+", "@")) for cell in row), path
    assert any(row[1] == "'=cmd()" for row in lines(report / "tables" / "returns.csv"))
    table = (report / "tables" / "returns.tex").read_text()
    assert r"=cmd(){}" not in table
    assert r"\textless{}img src=x onerror=''window.broken=1''\textgreater{}=cmd()" in table
    assert r"\$x\$\%\&\_../../../etc" in table
    for path in report.rglob("*"):
        assert re.fullmatch(r"[a-z0-9.-]+", path.name)
    assert sorted(path.name for path in report.iterdir()) == [
        "figures",
        "index.html",
        "report.txt",
        "tables",
    ]


def test_the_page_asks_for_nothing(report):
    page = (report / "index.html").read_text()
    assert "default-src &#39;none&#39;" in page
    assert "http://www.w3.org/2000/svg" in page
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page)


def test_a_page_of_a_task_without_returns_above_zero(tmp_path, capsys):
    write_run(tmp_path / "run", "gym:Pendulum-v1", "td3", (0,), -900.0)
    assert run(["report", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    page = (tmp_path / "out" / "index.html").read_text()
    assert not re.search(r"<tbody>\s*</tbody>", page)
    assert "no mean is above zero: gym:Pendulum-v1" in page
    assert ">gym:Pendulum-v1</th>" in page


def test_hours_and_cost(report):
    head, *rows = lines(report / "tables" / "clock.csv")
    ours = next(dict(zip(head, row, strict=True)) for row in rows if row[1] == "FaStR")
    assert float(ours["hours"]) == pytest.approx(110 / 3600)
    assert float(ours["cost"]) == pytest.approx(3 * 110 / 3600)
    assert float(ours["frames per second"]) == pytest.approx(2 * 11_000 / 110)
    assert ours["hardware"] == "cpu, 2 cores"


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
    write_run(tmp_path / "b", "walker-walk", "fastr", (2,), 600.0)
    ((key, final),) = numbers(tmp_path).items()
    assert key == ("walker-walk", "FaStR")
    assert final.series.seeds == ("0", "1", "2")
    assert final.series.seconds == 220
    assert final.notes == ()


def test_earlier_spellings_of_a_task_are_that_task(tmp_path):
    write_run(tmp_path / "a", "walker-walk", "fastr", (0, 1), 600.0)
    write_run(tmp_path / "b", "walker_walk", "fastr", (2,), 600.0)
    ((key, final),) = numbers(tmp_path).items()
    assert key == ("walker-walk", "FaStR")
    assert final.series.seeds == ("0", "1", "2")
    write_run(tmp_path / "c", "dog-run", "fastr", (0,))
    chosen = Report(paths=(tmp_path,), tasks=("walker_walk",)).found().series
    assert [series.task for series in chosen] == ["walker-walk", "walker-walk"]


def test_runs_with_other_options_are_other_methods(tmp_path):
    write_run(tmp_path / "a", "walker-walk", "fastr", (0,))
    write_run(tmp_path / "b", "walker-walk", "fastr", (1,), preset="quick")
    write_run(tmp_path / "c", "walker-walk", "fastr", (2,), eval_episodes=3)
    labels = {label for _, label in numbers(tmp_path)}
    assert labels == {"FaStR, eval_episodes=10", "FaStR, quick", "FaStR, eval_episodes=3"}


def test_runs_that_differ_in_much_are_numbered(tmp_path):
    changes = {"eval_episodes": 3, "frame_skip": 1, "random_frames": 5}
    write_run(tmp_path / "a", "walker-walk", "fastr", (0,))
    write_run(tmp_path / "b", "walker-walk", "fastr", (1,), **changes)
    write_run(tmp_path / "c", "walker-walk", "fastr", (2,), **changes)
    found = numbers(tmp_path)
    assert found.keys() == {("walker-walk", f"FaStR, settings {i}") for i in (1, 2)}
    other = found["walker-walk", "FaStR, settings 2"]
    assert other.series.seeds == ("1", "2")
    assert "settings 2: frame_skip=1, random_frames=5, eval_episodes=3" in other.notes


def test_the_same_number_is_the_same_settings_whatever_the_method(tmp_path):
    usual = {"eval_episodes": 10, "frame_skip": 2, "random_frames": 10_000}
    other, third = (dict.fromkeys(usual, n) for n in (1, 4))
    for method, both in (("fastr", (usual, other)), ("td3", (third, other))):
        for i, options in enumerate(both):
            write_run(tmp_path / f"{method}-{i}", "walker-walk", method, (i,), **options)
    found = {label: final.notes for (_, label), final in numbers(tmp_path).items()}
    said = {
        i: {note for notes in found.values() for note in notes if f"settings {i}:" in note}
        for i in (1, 2, 3)
    }
    assert {label.partition(", ")[2] for label in found} == {
        "settings 1",
        "settings 2",
        "settings 3",
    }
    assert [len(notes) for notes in said.values()] == [1, 1, 1]


def test_tasks_without_returns_above_zero_are_left_out_of_efficiency_by_name(tmp_path):
    write_run(tmp_path / "a", "walker-walk", "fastr", (0,), -5.0)
    found = tuple(numbers(tmp_path).values())
    section = efficiency_section(found, ())
    assert section.grids == ()
    assert section.paragraphs == (
        "Left out, as no mean is above zero: walker-walk. --reach names returns.",
    )
    (grid,) = efficiency_section(found, (-3.0,)).grids
    assert [row[0].text for row in grid.rows] == ["walker-walk"]
    write_run(tmp_path / "b", "dog-run", "fastr", (0,), 5.0)
    both = efficiency_section(tuple(numbers(tmp_path).values()), ())
    assert {row[0].text for row in both.grids[0].rows} == {"dog-run"}
    assert both.paragraphs == section.paragraphs


def test_a_run_repeated_is_not_averaged_with_itself(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, "walker-walk", "fastr", (0,))
    assert {label for _, label in numbers(tmp_path)} == {"FaStR, a", "FaStR, b"}


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
    best = {key for key, final in numbers(tmp_path).items() if final.best}
    assert best == set()
    write_run(tmp_path / "i", "dog-run", "sac", (0, 1), 900.0)
    best = {key for key, final in numbers(tmp_path).items() if final.best}
    assert best == {("dog-run", "SAC (3-layer)")}


def test_the_papers_numbers_and_its_bold_cells():
    assert len({entry.method for entry in published() if entry.of_the_paper}) == 6
    rows = {row[0].text: row for row in published_rows()}
    assert [cell.text for cell in rows["FaStR"][3:]] == [
        "903 ± 8",
        "974 ± 3",
        "809 ± 17",
        "949 ± 9",
        "936 ± 9",
        "877 ± 28",
        "591 ± 15",
        "168 ± 7",
        "951 ± 24",
        "560 ± 50",
    ]
    bold = {name: [cell.bold for cell in row[3:]] for name, row in rows.items()}
    assert bold["FaStR"] == [False] * 5 + [True] * 5
    assert bold["Diff-SR"] == [True, False, True, *[False] * 7]
    assert not any(bold["TD7"] + bold["CTRL-SR"])


def test_ablation_and_transfer_from_their_folders(tmp_path):
    for method in ("ctrl-sr", "tucker", "fastr"):
        write_run(tmp_path / "ablation" / method, "walker-walk", method, (0, 1))
    (tmp_path / "ablation" / "table.csv").write_text(
        "method,parameters,multiply_adds_per_update,nce_dimension,return_mean\nfastr,9,8,7,6.5\n"
    )
    (tmp_path / "ablation" / "curves.csv").write_text("x\n1\n")
    shifted = tmp_path / "transfer"
    kept = write_run(shifted / "fastr-keep-state-factor", "walker-walk@latency=2", "fastr", (0, 1))
    config = json.loads((kept / "config.json").read_text())
    config["train"]["agent"]["keep"] = "state-factor"
    (kept / "config.json").write_text(json.dumps(config))
    write_run(shifted / "fastr-scratch", "walker-walk@latency=2", "fastr", (0, 1))
    (shifted / "table.csv").write_text(
        "condition,trainable_parameters,frozen_parameters,unadapted_return\n"
        "fastr-keep-state-factor,5,6,77.5\nfastr-scratch,5,6,77.5\n"
    )
    (shifted / "moved.csv").write_text("condition,seed,what,value\nfastr-keep,0,CKA,0.5\n")
    charts, grids = shown_of(tmp_path)
    curves = {row[0] for row in charts["ablation-walker-walk"][1:]}
    assert curves == {"CTRL-SR", "Tucker", "FaStR"}
    adapted = charts["transfer-walker-walk-latency-2"]
    assert {row[0] for row in adapted[1:]} == {
        "FaStR",
        "FaStR, keep state-factor",
        "FaStR, unadapted",
    }
    assert adapted[-1][2] == 77.5
    assert grids["ablation-table-1"][1][:3] == ["fastr", 9.0, 8.0]
    assert grids["transfer-moved-1"][1][3] == 0.5
    # A shifted task is no row of Table 1, and the stray file is named.
    assert "latency" not in str(grids["table1"])
    assert "curves.csv" in str(grids["left-out"])


@pytest.mark.parametrize("diagnosed", ["walker-walk", "walker_walk"])
def test_misfit_gain_needs_both_methods_run_alike(diagnosed, tmp_path):
    misfit_report(tmp_path / "misfit", diagnosed)
    write_run(tmp_path / "a", "walker-walk", "fastr", (0, 1), 600.0)
    joint = write_run(tmp_path / "b", "walker-walk", "ctrl-sr", (0, 1), 400.0, EVALUATIONS[:11])
    assert "misfit-gain-nce" not in shown_of(tmp_path)[0]
    shutil.rmtree(joint)
    write_run(joint, "walker-walk", "ctrl-sr", (0, 1), 400.0)
    (head, row) = shown_of(tmp_path)[0]["misfit-gain-nce"]
    gain = row[head.index("return gain: FaStR less CTRL-SR")]
    assert gain == pytest.approx(200 * 6.5 / 11)
    # A run with another option, elsewhere or here, leaves the gain as it is.
    for task in ("gym:HalfCheetah-v5", "walker-walk"):
        write_run(tmp_path / task, task, "fastr", (0,), frame_skip=1)
        assert shown_of(tmp_path)[0]["misfit-gain-nce"] == [head, row]


WRONG = {
    "nothing": ([], "RUNS"),
    "nowhere": (["nowhere"], "nowhere does not exist"),
    "price": (["runs", "--price-per-hour", "-1"], "--price-per-hour"),
    "seed": (["runs", "--bootstrap-seed", "-1"], "--bootstrap-seed"),
    "task": (["runs", "--tasks", "dog-run"], "--tasks dog-run"),
    "compare": (["runs", "--compare", "a", "all", "none.csv"], "none.csv cannot be read"),
    "readme": (["runs", "--readme", "none.md"], "none.md cannot be read"),
    "markers": (["runs", "--readme", "plain.md"], "plain.md needs the two lines"),
    "option": (["runs", "--outt", "x"], "--out"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_reports_get_one_sentence(arguments, said, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "a", "walker-walk", "td3", (0,))
    (tmp_path / "plain.md").write_text("# Nothing\n")
    refused(["report", *arguments], said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain.md", "runs"]


def test_a_damaged_run_is_left_out_and_said(tmp_path, capsys):
    write_run(tmp_path / "good", "walker-walk", "td3", (0, 1))
    bad = write_run(tmp_path / "bad", "walker-walk", "fastr", (0, 1))
    (bad / "rows.jsonl").write_text("{]\n")
    empty = write_run(tmp_path / "empty", "walker-walk", "sac", (0, 1), evaluations=())
    assert run(["report", str(tmp_path), "--out", str(tmp_path / "out"), "--json"]) == 0
    said = capsys.readouterr()
    assert f"{bad / 'rows.jsonl'} line 1 is not JSON" in said.err
    assert f"{empty} has no evaluation yet" in said.err
    assert len(json.loads(said.out)["left_out"]) == 2
    assert run(["report", str(bad), "--out", str(tmp_path / "out")]) == 2


def test_a_report_never_loads_jax(tmp_path):
    """The whole command, from a run, results and a diagnosis to figures, page and README."""
    readme = tmp_path / "README.md"
    shutil.copy(ROOT / "README.md", readme)
    results = ROOT / "results" / "cpu"
    paths = [results / "coverage.csv", results / "misfit-walker-walk-random-quick"]
    run_directory = write_run(tmp_path / "run", "gym:Pendulum-v1", "td3", (0, 1))
    arguments = ["report", str(run_directory), *map(str, paths), "--out", str(tmp_path / "out")]
    code = (
        "import sys\nfrom fastr.cli import run\n"
        f"assert run({[*arguments, '--readme', str(readme)]!r}) == 0\n"
        "assert run(['--help']) == 0\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert (tmp_path / "out" / "figures" / "coverage-humanoid-walk.pdf").exists()


@pytest.mark.parametrize(
    ("source", "page", "row"),
    [
        ("results/h200/humanoid-walk", "README.md", "| humanoid-walk | CTRL-SR | 1,000,000 | 3 |"),
        ("results", "results/README.md", "| walker-walk | FaStR, quick | 25,000 | 3 |"),
    ],
)
def test_the_tables_of_results_are_up_to_date(source, page, row, tmp_path, monkeypatch):
    """Made by `fastr report SOURCE --readme PAGE`; run that if this fails."""
    monkeypatch.chdir(ROOT)
    copy = tmp_path / "README.md"
    shutil.copy(page, copy)
    assert run(["report", source, "--readme", str(copy)]) == 0
    assert copy.read_text() == Path(page).read_text()
    assert row in copy.read_text()


def test_all_results_with_returns_are_read(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = read([Path("results")])
    assert found.left_out == []
    assert all(origin.commit for series in found.series for origin in series.origins)


def test_nine_lines_of_a_method_differ_in_dashes_however_many_the_report_has():
    methods = [f"m{i}{kind}" for i in range(9) for kind in ("", *(f", {n}" for n in range(40)))]
    for method in ("m0", "m8"):
        of_method = [name for name in methods if name.split(",")[0] == method]
        for others in (of_method[1:9], of_method[5:40:5]):
            seen = looks([method, *others], methods)
            assert len(set(seen.values())) == len(seen)
            assert len({place for place, _ in seen.values()}) == 1
    assert looks(["m0", "m0, 39"], methods)["m0"] == (0, "")


def test_the_names_of_many_lines_stand_beside_them(tmp_path):
    widths = []
    for count in (CROWDED, CROWDED + 1):
        path = tmp_path / f"{count}.png"
        with picture(path) as axes:
            for i in range(count):
                axes.plot([0, 1], [i, i], label=f"line {i}")
        widths.append(Image.open(path).width)
        # Left of the axes' right end, or to the right of it.
        inside = axes.get_legend().get_window_extent().x0 < axes.get_window_extent().x1
        assert inside == (count == CROWDED)
    assert widths[1] > widths[0]


def test_methods_differ_in_colour_and_their_variants_in_dashes():
    methods = [f"m{i}{kind}" for i in range(16) for kind in ("", ", quick", ", raw")]
    seen = list(looks(methods, methods).values())
    assert len(set(seen)) == len(seen)
    assert all(len({place for place, _ in seen[i : i + 3]}) == 1 for i in range(0, 48, 3))
    assert len({place for place, _ in seen[:24]}) == 8
    assert {dash for _, dash in seen[:24:3]} == {""}
