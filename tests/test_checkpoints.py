"""What is saved comes back, and what is kept suffices."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkpointing import (
    CAPACITY,
    CONFIG,
    ROW_DIM,
    SEEDS,
    assert_holds,
    assert_replay,
    file_size_limit,
    names,
    replay_rows,
    save_and_wait,
    snapshot,
)
from fastr.runs.checkpoints import Snapshot, saving
from fastr.runs.directory import RunDirectory, RunWriter


def test_a_checkpoint_returns_what_was_saved(run):
    checkpoint = RunDirectory.open(run).latest()
    assert checkpoint.skipped == ()
    assert_holds(checkpoint, 9)
    assert_replay(checkpoint, 3, replay_rows(3, 9))
    assert names(run) == ["checkpoints", "config.json", "lock", "replay", "rows.jsonl"]
    assert names(run / "checkpoints") == ["000000050", "000000090"]
    files = ["000000000-000000005.safetensors", "000000005-000000009.safetensors"]
    assert names(run / "replay") == files
    index = json.loads((run / "checkpoints" / "000000090" / "index.json").read_text())
    assert sorted(index["files"]) == [*files, "state.safetensors"]
    # Others may read what the run directory lets them read.
    for file in run.rglob("*.safetensors"):
        assert file.stat().st_mode & 0o777 == file.parent.stat().st_mode & 0o666


def test_resume_cuts_the_rows_after_the_checkpoint_and_goes_on(run):
    writer, checkpoint = RunWriter.resume(run)
    with writer:
        assert_holds(checkpoint, 9)
        assert writer.rows() == [{"frames": 50}, {"frames": 90}]
        writer.append({"frames": 100})
        save_and_wait(writer, snapshot(12, 9), keep=3)
    assert RunDirectory.open(run).rows() == [{"frames": 50}, {"frames": 90}, {"frames": 100}]
    assert_replay(writer.latest(), 6, replay_rows(6, 12))


def test_a_run_without_replay(tmp_path):
    with RunWriter.create(tmp_path, CONFIG) as writer:
        save_and_wait(writer, snapshot(0, 0), keep=1)
    assert_replay(writer.latest(), 0, np.zeros((0, SEEDS, ROW_DIM), np.float32))
    writer, checkpoint = RunWriter.resume(tmp_path)
    with writer:
        assert_holds(checkpoint, 0)
        save_and_wait(writer, snapshot(2, 0), keep=1)
    assert_replay(writer.latest(), 0, replay_rows(0, 2))


def test_no_new_rows_need_no_new_segment(run):
    writer, _ = RunWriter.resume(run)
    with writer:
        still = snapshot(9, 9)
        later = Snapshot(91, still.arrays, still.host, still.replay_rows, 9, CAPACITY)
        save_and_wait(writer, later, keep=1)
    assert len(names(run / "replay")) == 2
    assert writer.latest().frames == 91
    assert_replay(writer.latest(), 3, replay_rows(3, 9))


def test_a_ring_that_wrapped_between_checkpoints(run):
    writer, _ = RunWriter.resume(run)
    with writer:
        # 20 rows were added, of which the buffer holds the last 6.
        save_and_wait(writer, Snapshot(290, {}, {}, replay_rows(23, 29), 23, CAPACITY), keep=1)
    assert_replay(writer.latest(), 23, replay_rows(23, 29))
    assert names(run / "replay") == ["000000023-000000029.safetensors"]
    assert writer.latest().arrays() == {}


def test_a_replay_is_read_a_slice_at_a_time(tmp_path):
    rows = np.arange(100_000, dtype=np.float32).reshape(2_000, 2, 25)
    with RunWriter.create(tmp_path, CONFIG) as writer:
        save_and_wait(writer, Snapshot(1, {}, {}, rows[:1_500], 0, 1_900), keep=1)
        save_and_wait(writer, Snapshot(2, {}, {}, rows[1_500:], 1_500, 1_900), keep=1)
    before, end = bytes_read(), 100
    for first, part in writer.last.replay_slices(200):
        assert first == end
        assert len(part) <= 200
        assert np.array_equal(part, rows[first : first + len(part)])
        end += len(part)
    assert end == 2_000
    # Each row once, of the 400 kB that there are, and not a file for each slice of it.
    assert bytes_read() - before < 500_000


def bytes_read() -> int:
    """What this process has read until now, from files or wherever."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_pruning_keeps_what_the_kept_checkpoints_need(tmp_path):
    with RunWriter.create(tmp_path, CONFIG) as writer:
        for step in range(2, 22, 2):
            save_and_wait(writer, snapshot(step, step - 2), keep=2)
    assert names(tmp_path / "checkpoints") == ["000000180", "000000200"]
    # The older one ends at 18 and holds 6 rows, so the rows from 12 on are needed.
    assert names(tmp_path / "replay")[0] == "000000012-000000014.safetensors"
    assert len(names(tmp_path / "replay")) == 4
    shutil.rmtree(tmp_path / "checkpoints" / "000000200")
    assert_holds(writer.latest(), 18)
    assert_replay(writer.latest(), 12, replay_rows(12, 18))


def test_what_can_be_gone_on_with_counts_the_checkpoint_being_written(run, monkeypatch):
    write, writer = saving.write_checkpoint, RunWriter.resume(run)[0]

    def slowly(*arguments):
        time.sleep(0.2)
        return write(*arguments)

    monkeypatch.setattr(saving, "write_checkpoint", slowly)
    with writer:
        assert writer.standing() == f"the last good checkpoint is 000000090 in {run}"
        writer.begin_save(snapshot(12, 9), keep=1)
        assert writer.standing() == f"the last good checkpoint is 000000120 in {run}"
        writer.begin_save(snapshot(15, 12), keep=1)
        with file_size_limit(10):
            said = writer.standing()
        assert said.startswith("Checkpoint 000000150 could not be written (")
        assert said.endswith(
            f"the last good one is 000000120, to continue with `fastr resume {run}`"
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": 90}, "checkpoint at 90 frames after one at 90"),
        ({"replay_start": 8}, "were saved before"),
        ({"replay_start": 10}, "rows are missing"),
        ({"replay_start": -1}, "replay"),
        ({"capacity": 0}, "capacity 0"),
        ({"capacity": 100}, "rows are missing"),
        ({"replay_rows": np.zeros((1, SEEDS, ROW_DIM))}, "float64"),
        ({"replay_rows": np.zeros((1, SEEDS), np.float32)}, r"of shape \(1, 2\)"),
        ({"replay_rows": np.zeros((1, SEEDS, 4), np.float32)}, r"after \(2, 3\)"),
        ({"arrays": {"__metadata__": np.zeros(1)}}, "cannot be named"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused(run, changes, message):
    # With a capacity of 100, the first checkpoint's rows must all be there: drop them.
    if changes.get("capacity") == 100:
        writer, _ = RunWriter.resume(run)
        with writer:
            save_and_wait(writer, Snapshot(290, {}, {}, replay_rows(23, 29), 23, CAPACITY), keep=1)
        base = snapshot(31, 29)
    else:
        base = snapshot(11, 9)
    writer, _ = RunWriter.resume(run)
    before = sorted(run.rglob("*"))
    with writer, pytest.raises(ValueError, match=message):
        save_and_wait(writer, replace(base, **changes), keep=1)
    assert sorted(run.rglob("*")) == before


def test_keep_and_host_are_checked_before_anything_is_written(run):
    writer, _ = RunWriter.resume(run)
    before = sorted(run.rglob("*"))
    with writer:
        with pytest.raises(ValueError, match="keep=0"):
            save_and_wait(writer, snapshot(11, 9), keep=0)
        with pytest.raises(TypeError):
            save_and_wait(writer, replace(snapshot(11, 9), host={"x": {1}}), keep=1)
        assert sorted(run.rglob("*")) == before
        # Keys that JSON turns into strings do not upset the checksum.
        save_and_wait(
            writer, replace(snapshot(11, 9), host={"x": {2: "a", 1: "b", "2": "c"}}), keep=1
        )
    assert writer.latest().host == {"x": {"2": "c", "1": "b"}}
