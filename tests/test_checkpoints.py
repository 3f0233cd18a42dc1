"""What is saved comes back; what is damaged is passed over; what is hostile is refused."""

import errno
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing import (
    CAPACITY,
    CONFIG,
    ROW_DIM,
    SEEDS,
    assert_holds,
    assert_replay,
    names,
    replay_of,
    replay_rows,
    restamp,
    rewrite_index,
    save_and_wait,
    snapshot,
)
from fastr.core import UserError
from fastr.runs import RunDirectory, RunWriter, Snapshot, saved_frames
from fastr.runs.checkpoints import Segment, read_index, write_arrays

STATE = "checkpoints/000000090/state.safetensors"
INDEX = "checkpoints/000000090/index.json"
SEGMENT = "000000005-000000009.safetensors"

# What is saved


def test_a_checkpoint_returns_what_was_saved(run):
    checkpoint = RunDirectory.open(run).latest()
    assert checkpoint.skipped == ()
    assert_holds(checkpoint, 9)
    assert_replay(checkpoint, 3, replay_rows(3, 9))
    assert names(run) == ["checkpoints", "config.json", "lock", "replay", "rows.jsonl"]
    assert names(run / "checkpoints") == ["000000050", "000000090"]
    files = ["000000000-000000005.safetensors", SEGMENT]
    assert names(run / "replay") == files
    assert sorted(json.loads((run / INDEX).read_text())["files"]) == [*files, "state.safetensors"]
    # Others may read what the run directory lets them read.
    for file in run.rglob("*.safetensors"):
        assert file.stat().st_mode & 0o777 == file.parent.stat().st_mode & 0o666


def test_resume_cuts_the_rows_after_the_checkpoint_and_continues(run):
    writer, checkpoint = RunWriter.resume(run)
    with writer:
        assert_holds(checkpoint, 9)
        assert writer.rows() == [{"frames": 50}, {"frames": 90}]
        writer.append({"frames": 100})
        save_and_wait(writer, snapshot(12, 9), keep=3)
    assert RunDirectory.open(run).rows() == [{"frames": 50}, {"frames": 90}, {"frames": 100}]
    assert_replay(writer.latest(), 6, replay_rows(6, 12))


@settings(deadline=None, max_examples=25)
@given(
    moves=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["go", "stop", "damage"])), max_size=7
    ),
    capacity=st.integers(1, 12),
    keep=st.integers(1, 3),
)
def test_any_history_restores_the_last_rows(tmp_path_factory, moves, capacity, keep):
    """Rings that wrap, checkpoints without new rows, dead branches; only used segments are kept."""
    path = tmp_path_factory.mktemp("history")
    writer = RunWriter.create(path, CONFIG)
    history = [(0, np.zeros((0, SEEDS, ROW_DIM), np.float32))]  # each checkpoint's frames, log
    for branch, (length, event) in enumerate(moves):
        frames, log = history[-1]
        log = np.concatenate([log, replay_rows(len(log), len(log) + length, branch)])
        start = len(history[-1][1])
        save_and_wait(writer, Snapshot(frames + 1, {}, {}, log[start:], start, capacity), keep=keep)
        history.append((frames + 1, log))
        if event != "go":
            writer.close()
            if event == "damage" and len(saved_frames(path)) > 1:
                (path / "checkpoints" / f"{frames + 1:09d}" / "index.json").write_text("{}}")
                history.pop()
            writer, _ = RunWriter.resume(path)
        frames, log = history[-1]
        checkpoint = writer.latest()
        assert checkpoint.frames == frames
        assert_replay(checkpoint, max(0, len(log) - capacity), log[-capacity:])
        kept = [read_index(path, saved) for saved in saved_frames(path)]
        for older in kept:
            older.verify()
        used = {segment.name for older in kept for segment in older.segments}
        assert set(names(path / "replay")) == used
    writer.close()
    shutil.rmtree(path)


# Damage


@settings(deadline=None, max_examples=250)
@given(
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    cut=st.booleans(),
    data=st.data(),
)
def test_damage_anywhere_never_yields_wrong_arrays(
    pristine, tmp_path_factory, where, bit, cut, data
):
    files = sorted(path.relative_to(pristine) for path in pristine.rglob("*") if path.is_file())
    victim = data.draw(st.sampled_from(files))
    path = Path(shutil.copytree(pristine, tmp_path_factory.mktemp("damage") / "run"))
    content = bytearray((path / victim).read_bytes())
    position = int(where * len(content))
    if cut:
        del content[position:]
    else:
        content[position] ^= 1 << bit
    (path / victim).write_bytes(content)
    try:
        run = RunDirectory.open(path)
        checkpoint, complete = run.latest(), run.latest_complete()
    except UserError:
        return
    for found in (checkpoint, complete):
        step = found.host["step"]
        assert step in (5, 9)
        assert_holds(found, step)
        if victim.parts[:2] == ("checkpoints", "000000090"):
            assert step == 5
            assert "checkpoint 000000090 is damaged" in found.skipped[0]
    first = max(0, step - CAPACITY)
    assert_replay(complete, first, replay_rows(first, step))


@pytest.mark.parametrize(
    ("victim", "kind"),
    [
        (STATE, "state.safetensors: checksum"),
        (STATE, "state.safetensors: size"),
        (STATE, "state.safetensors: missing"),
        (INDEX, "index.json: not JSON"),
        (INDEX, "index.json: missing"),
        (f"replay/{SEGMENT}", f"{SEGMENT}: checksum"),
        ("rows.jsonl", "rows.jsonl: checksum"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(run, victim, kind):
    file = run / victim
    content = file.read_bytes()
    if victim == "rows.jsonl":
        file.write_bytes(content[:20])
    elif "checksum" in kind:
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif "missing" in kind:
        file.unlink()
    else:
        file.write_bytes(content[:20])
    checkpoint = RunDirectory.open(run).latest_complete()
    message = f"checkpoint 000000090 is damaged ({kind}); using 000000050"
    assert checkpoint.skipped == (message,)
    assert_holds(checkpoint, 5)
    # The oldest rows are shared: without them neither checkpoint is sound.
    (run / "replay" / "000000000-000000005.safetensors").unlink()
    with pytest.raises(
        UserError, match="has no usable checkpoint: checkpoint 000000090 is damaged"
    ):
        RunWriter.resume(run)
    assert names(run / "checkpoints") == ["000000050", "000000090"]


def test_arrays_are_read_without_replay_and_rows(run):
    """A policy can be loaded although transitions are damaged; whoever reads those is told."""
    segment = run / "replay" / SEGMENT
    segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    (run / "rows.jsonl").unlink()
    checkpoint = RunDirectory.open(run).latest()
    assert_holds(checkpoint, 9)
    with pytest.raises(UserError, match=f"cannot be read \\({SEGMENT}: checksum\\)"):
        replay_of(checkpoint)
    shutil.rmtree(run / "replay")
    assert_holds(RunDirectory.open(run).latest(), 9)


@pytest.mark.parametrize("victim", [STATE, INDEX, f"replay/{SEGMENT}", "rows.jsonl"])
def test_a_file_that_the_system_withholds_is_not_damage(run, victim, monkeypatch):
    """The disk may answer tomorrow: its content must still be there then."""
    original = Path.open

    def refused(path, *arguments, **options):
        if path == run / victim:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(path, *arguments, **options)

    before = sorted(run.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused)
        with pytest.raises(UserError) as refusal:
            RunWriter.resume(run)
    assert str(refusal.value) == f"{run / victim} cannot be read (Input/output error)."
    assert sorted(run.rglob("*")) == before


def test_an_altered_configuration_is_noticed(run):
    """It still parses."""
    content = (run / "config.json").read_text()
    (run / "config.json").write_text(content.replace("0.1", "0.2"))
    with pytest.raises(UserError, match=r"config\.json is not what it was at checkpoint 000000090"):
        RunWriter.resume(run)


def test_a_flipped_bit_in_the_format_is_damage_and_another_format_is_named(run):
    content = (run / INDEX).read_bytes()
    (run / INDEX).write_bytes(content.replace(b'"format": 4', b'"format": 3'))
    assert RunDirectory.open(run).latest().frames == 50
    (run / INDEX).write_bytes(content)
    rewrite_index(run, 90, format=1)
    with pytest.raises(UserError, match="has checkpoint format 1; this version of fastr reads"):
        RunDirectory.open(run).latest()


def test_a_dead_branch_is_replaced(run):
    (run / STATE).write_bytes((run / STATE).read_bytes()[:-1])
    stale = run / "replay" / "000000005-000000007.safetensors"
    stale.write_bytes(b"from a writer killed before its index")
    writer, checkpoint = RunWriter.resume(run)
    with writer:
        assert_holds(checkpoint, 5)
        assert names(run / "replay") == ["000000000-000000005.safetensors"]
        assert names(run / "checkpoints") == ["000000050"]
        assert writer.rows() == [{"frames": 50}]
        # The same name as on the dead branch, with another content.
        save_and_wait(writer, snapshot(9, 5, branch=1), keep=2)
    assert_holds(writer.latest(), 9, branch=1)
    wanted = np.concatenate([replay_rows(3, 5), replay_rows(5, 9, branch=1)])
    assert_replay(writer.latest(), 3, wanted)


def test_segments_are_kept_while_an_index_is_unreadable(run):
    writer, _ = RunWriter.resume(run)
    with writer:
        save_and_wait(writer, snapshot(15, 9), keep=1)
        save_and_wait(writer, snapshot(21, 15), keep=2)
        # Only the first of these needs the rows from 9 to 15.
        (run / "checkpoints" / "000000150" / "index.json").write_text("{")
        save_and_wait(writer, snapshot(27, 21), keep=3)
        assert names(run / "replay")[0] == "000000009-000000015.safetensors"
        save_and_wait(writer, snapshot(33, 27), keep=1)
    assert names(run / "replay") == ["000000027-000000033.safetensors"]


# Hostile files

FILE = {"bytes": 1, "sha256": "0" * 64}
STATE_ONLY = {"state.safetensors": FILE}
OUTSIDE = ("../../config.json", "/etc/passwd", "", "a\0b", f"{SEGMENT}/../x")


@pytest.mark.parametrize(
    "changes",
    [
        {"frames": True},
        {"frames": 91},
        {"rows_bytes": 1.5},
        {"rows_bytes": 10**30},
        {"rows_sha256": None},
        {"row_dim": -1},
        {"host": []},
        {"replay": {"start": 0}},
        {"replay": {"start": 3, "end": 10**17}},
        {"replay": {"start": 9, "end": 3}},
        {"files": []},
        {"files": {}},
        {"files": {"state.safetensors": None}},
        {"files": {"state.safetensors": FILE | {"sha256": "x"}}},
        {"files": STATE_ONLY | {"000000000-000000009.safetensors": FILE | {"bytes": -5}}},
        *({"files": STATE_ONLY | {name: FILE}} for name in OUTSIDE),
    ],
)
def test_an_index_of_the_wrong_shape_is_damage(run, changes):
    rewrite_index(run, 90, **changes)
    checkpoint = RunDirectory.open(run).latest()
    assert_holds(checkpoint, 5)
    assert "checkpoint 000000090 is damaged (index.json: content)" in checkpoint.skipped[0]


def tensor(dtype: str, shape: list[int], offsets: list[int]) -> dict:
    return {"rows": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    "header",
    [
        tensor("F32", [2**62, 4], [0, 16]),
        tensor("F32", [2**40], [0, 2**42]),
        tensor("F32", [-1], [0, 16]),
        tensor("F32", [0, 2**63], [0, 0]) | {"x": tensor("F32", [4], [0, 16])["rows"]},
        tensor("F8_E4M3", [16], [0, 16]),
        tensor("pickle", [4], [0, 16]),
        [],
    ],
)
def test_a_hostile_header_is_a_user_error(run, header):
    text = json.dumps(header).encode()
    for path in (run / STATE, run / "replay" / SEGMENT):
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
        restamp(run, 90, path.name)
    checkpoint = RunDirectory.open(run).latest()
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.arrays()
    with pytest.raises(UserError, match=r"cannot be read|is not a replay segment"):
        replay_of(checkpoint)


def test_a_segment_that_holds_more_than_its_rows_is_refused(run):
    """Rows are read from the file's end, where something else would lie."""
    write_arrays(run / "replay" / SEGMENT, {"rows": replay_rows(5, 9), "x": replay_rows(0, 4)})
    restamp(run, 90, SEGMENT)
    with pytest.raises(UserError, match="is not a replay segment of this run"):
        replay_of(RunDirectory.open(run).latest())


def test_a_segment_that_promises_more_than_it_holds_is_refused_before_memory_is_taken(run):
    promised = Segment(5, 10**15)
    (run / "replay" / SEGMENT).rename(run / "replay" / promised.name)
    files = json.loads((run / INDEX).read_text())["files"]
    files[promised.name] = files.pop(SEGMENT)
    rewrite_index(run, 90, files=files, replay={"start": 3, "end": 10**15})
    checkpoint = RunDirectory.open(run).latest_complete()
    assert checkpoint.skipped == ()
    with pytest.raises(UserError, match="is not a replay segment of this run"):
        replay_of(checkpoint)
