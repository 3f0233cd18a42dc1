"""What a report reads: sound files give back what was put in, all others one sentence."""

import csv
import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from fastr.core import UserError
from fastr.report.reading import (
    LARGEST_FILE,
    external,
    file_evaluations,
    read,
    read_misfits,
    read_sidecar,
)
from fastr.report.series import finals
from fastr.report.table import csv_cell, latex, markdown
from report_inputs import misfit_report, write_run

QUICKLY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
CURVES = some.dictionaries(
    some.integers(0, 2**31).map(str),
    some.dictionaries(some.integers(0, 10**9), some.floats(-1e9, 1e9), min_size=1, max_size=5),
    min_size=1,
    max_size=3,
)
ABOUT = {
    "kind": "returns",
    "task": "walker-walk",
    "method": "fastr",
    "command": "fastr train walker-walk",
    "commit": "abc",
    "hardware": "2 cores",
    "seeds": [0, 1],
}


def test_what_never_ends_is_named_and_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "device.csv").symlink_to("/dev/zero")
    said = read([tmp_path]).left_out
    assert [line.count(" is neither a file nor") for line in said] == [1, 1]


def test_an_external_curve_may_come_through_a_pipe():
    """As of `--compare NAME TASK <(zcat curve.csv.gz)`, which a shell makes a pipe of."""
    reading_end, writing_end = os.pipe()
    with open(reading_end), open(writing_end, "w") as pipe:
        pipe.write("frames,seed,return\n0,0,1\n10000,0,5\n")
        pipe.close()
        series = external("X", "humanoid-walk", Path(f"/dev/fd/{reading_end}"))
    assert series.curves == {"0": ((0, 1.0), (10_000, 5.0))}


def put(folder, name, text, **about):
    """A CSV file with its sidecar."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.csv").write_text(text)
    content = {key: value for key, value in (ABOUT | about).items() if value is not None}
    (folder / f"{name}.json").write_text(json.dumps(content))
    return folder / f"{name}.csv"


@QUICKLY
@given(CURVES)
def test_a_csv_gives_back_its_curves(tmp_path, curves):
    path = tmp_path / "curve.csv"
    lines = [f"{f},{s},{v!r}" for s, points in curves.items() for f, v in points.items()]
    path.write_text("\n".join(["frames,seed,return", *lines, ""]))
    expected = {seed: tuple(sorted(points.items())) for seed, points in curves.items()}
    assert file_evaluations(path) == ({("", ""): expected}, 0)


JSON = some.recursive(
    some.none() | some.booleans() | some.floats() | some.integers() | some.text(max_size=9),
    lambda inner: (
        some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
SIDECARS = some.dictionaries(some.sampled_from([*ABOUT, "note", "frames", "odd"]), JSON)
ROWS = some.lists(some.dictionaries(some.sampled_from(["seed", "frames", "return"]), JSON))
FILES = {
    "curve.csv": (file_evaluations, some.binary(max_size=80).map(b"frames,seed,return\n".__add__)),
    "curve.json": (read_sidecar, SIDECARS.map(lambda changes: json.dumps(ABOUT | changes))),
    "rows.jsonl": (file_evaluations, ROWS.map(lambda rows: "\n".join(map(json.dumps, rows)))),
    "report.json": (
        read_misfits,
        (JSON | some.fixed_dictionaries({"datasets": JSON | some.lists(JSON)})).map(json.dumps),
    ),
}


@pytest.mark.parametrize("name", FILES)
@QUICKLY
@given(data=some.data())
def test_any_content_is_sound_or_one_sentence(tmp_path, data, name):
    reader, contents = FILES[name]
    content = data.draw(contents)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        found, said = reader(tmp_path / name), ""
    except UserError as error:
        found, said = None, str(error)
    assert name in said if found is None else found or name == "report.json"
    assert "\n" not in said


def test_no_file_is_read_beyond_a_bound(tmp_path):
    path = put(tmp_path, "curve", "")
    os.truncate(path, LARGEST_FILE + 1)
    with pytest.raises(UserError, match="larger than"):
        read([path])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frames,seed\n1,2\n", "no column return"),
        ("frames,seed,return\n1,0,2\n1,0,3\n", "frame 1 of this seed occurs twice"),
        ("frames,seed,return\n1.5,0,2\n", "line 2: frames is '1.5'"),
        ("frames,seed,return\n1,0,nan\n", "return is 'nan'"),
        ("frames,seed,return\n1,0\n", "line 2"),
    ],
)
def test_a_wrong_table_is_said_with_its_place(tmp_path, text, said):
    path = tmp_path / "curve.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"curve\.csv") as error:
        file_evaluations(path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": [1]}, "seed 0, which its sidecar does not name"),
        ({"comand": "x"}, "Did you mean command"),
        ({"commit": None}, "lacks commit"),
        ({"method": None}, "method is in neither"),
    ],
)
def test_a_wrong_sidecar_is_said(tmp_path, change, said):
    path = put(tmp_path, "curve", "frames,seed,return\n0,0,1\n", **change)
    with pytest.raises(UserError) as error:
        read([path])
    assert said in str(error.value)
    with pytest.raises(UserError, match="both its column and its sidecar"):
        read([put(tmp_path, "curve", "task,frames,seed,return\ndog-run,0,0,1\n")])


def test_what_lies_behind_a_link_is_left_out_and_said(tmp_path):
    put(tmp_path / "elsewhere", "mine", "frames,seed,return\n0,0,1\n")
    put(tmp_path / "here", "other", "frames,seed,return\n0,0,1\n")
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere")
    found = read([tmp_path / "here"])
    assert len(found.series) == 1
    assert len(found.left_out) == 1
    assert f"{tmp_path}/here/link" in found.left_out[0]
    # A link to a run is that run.
    write_run(tmp_path / "elsewhere" / "run", "walker-walk", "td3", (0,))
    (tmp_path / "here" / "run").symlink_to(tmp_path / "elsewhere" / "run")
    assert {series.label for series in read([tmp_path / "here"]).series} == {"FaStR", "TD3"}


def test_below_a_folder_a_wrong_file_is_left_out_and_said(tmp_path):
    put(tmp_path / "deep" / "er", "good", "frames,seed,return\n0,0,1\n0,1,2\n")
    put(tmp_path, "bad", "frames,seed,return\nx,0,1\n")
    (tmp_path / "alone.csv").write_text("frames,seed,return\n0,0,1\n")
    # Of the tables of a misfit only its report is read.
    misfit_report(tmp_path / "misfit", "walker-walk")
    (tmp_path / "misfit" / "curves.csv").write_text("a table without a sidecar")
    found = read([tmp_path, tmp_path])
    assert [one.label for one in found.series] == ["FaStR"]
    assert len(found.misfits) == 1
    assert len(found.left_out) == 2
    assert "alone.csv has no alone.json" in found.left_out[0]
    assert "bad.csv, line 2" in found.left_out[1]


def one(tmp_path, text, **about):
    return read([put(tmp_path, "curve", text, **about)]).series[0]


def test_missing_seeds_frames_and_evaluations_are_named(tmp_path):
    text = "frames,seed,return\n0,0,1\n10,0,2\n20,0,3\n0,1,1\n20,1,5\n0,2,1\n10,2,1\n"
    (final,), _ = finals([one(tmp_path, text, seeds=[0, 1, 2, 3], frames=30)])
    assert final.notes == (
        "no evaluation of seed 3",
        "seed 0 ends at 20 of 30 frames",
        "seed 1 ends at 20 of 30 frames",
        "seed 2 ends at 10 of 30 frames",
        "only 1 evaluation, all averaged",
    )
    # Only where all seeds were evaluated is anything averaged.
    assert final.evaluated.tolist() == [0]
    found, without = finals([one(tmp_path, "frames,seed,return\n0,0,1\n10,1,2\n")])
    assert found == []
    assert "no frame at which all its seeds were evaluated" in without[0]


def test_tasks_of_files_have_their_one_spelling(tmp_path):
    text = "frames,seed,return\n0,0,1\n0,1,2\n"
    assert one(tmp_path / "sidecar", text, task="walker_walk").task == "walker-walk"
    columns = "task,frames,seed,return\ndog_run@latency=2,0,0,1\ndog-run@latency=2,0,1,1\n"
    found = one(tmp_path / "column", columns, task=None)
    assert (found.task, found.seeds) == ("dog-run@latency=2", ("0", "1"))
    path = tmp_path / "peer.csv"
    path.write_text("task,frames,seed,return\ndog_run,0,x,1\nwalker-walk,0,x,2\n")
    for typed in ("dog_run", "dog-run"):
        series = external("DR.Q", typed, path)
        assert (series.task, series.label, series.curves) == ("dog-run", "DR.Q", {"x": ((0, 1.0),)})
    with pytest.raises(UserError, match="must have one curve"):
        external("DR.Q", "humanoid-run", path)


FORMULAS = some.sampled_from(["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\x00=1"])


@given(FORMULAS | some.text())
def test_no_text_is_a_formula_in_a_spreadsheet(text):
    out = io.StringIO()
    csv.writer(out).writerow([csv_cell(text)])
    ((cell,),) = csv.reader(io.StringIO(out.getvalue()))
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))


def test_latex_and_markdown_are_text():
    hostile = r"\input{/etc/passwd} $x_1$ 50% & # ~ ^ {a} [b] *c*"
    assert latex(hostile) == (
        r"\textbackslash{}input\{/etc/passwd\} \$x\_1\$ 50\% \& \# \textasciitilde{} "
        r"\textasciicircum{} \{a\} {[}b{]} {*}c{*}"
    )
    assert markdown("a|b <i> [x](y) `c` @d https://e") == (
        r"a\|b &lt;i&gt; \[x\](y) \`c\` &#64;d https&#58;//e"
    )
