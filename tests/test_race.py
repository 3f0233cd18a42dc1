"""`fastr bench race`: returns at equal processor times, by real trainings of a few seconds."""

import csv
import json

from fastr.cli import run
from fastr.studies.race import Lap, at_mark, standings


def test_a_mark_counts_what_was_learned_before_it():
    laps = [Lap("td3", "walker-walk", 0, 2 * i, 30.0 * i, 100.0 * i) for i in (1, 2, 3)]
    assert [at_mark(laps, mark) for mark in (29, 30, 89, 90, 1_000)] == [0, 100, 200, 300, 300]
    other = Lap("td3", "walker-walk", 1, 2, 10.0, 20.0)
    (row,) = standings([*laps, other], (60,)).cells
    assert [cell.text for cell in row] == ["walker-walk", "td3", "110 (200, 20)"]


def test_a_race_is_gone_on_with(tmp_path, capsys):
    arguments = ["bench", "race", "walker-walk", "--against", "td3", "--seeds", "0"]
    arguments += ["--marks", "1", "--out", str(tmp_path), "--json"]
    assert run(arguments) == 0
    laps = json.loads(capsys.readouterr().out)["laps"]
    assert {lap["program"] for lap in laps} == {"fastr", "td3"}
    assert all(0 <= lap["mean_return"] <= 1_000 for lap in laps)
    assert max(lap["processor_seconds"] for lap in laps) < 20
    before = (tmp_path / "laps.csv").read_bytes()
    assert run(arguments) == 0
    assert (tmp_path / "laps.csv").read_bytes() == before
    assert len(list(csv.reader((tmp_path / "standings.csv").open()))) == 3
    assert json.loads((tmp_path / "race.json").read_text())["frame_skip"] == 2


def test_unknown_programs_are_refused(refused):
    refused(["bench", "race", "walker-walk", "--against", "sbx-ppo"], "sbx-ppo", "sbx-crossq")
