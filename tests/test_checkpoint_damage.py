"""Files that are not what they were, or never were a checkpoint's."""

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
from fastr.runs.checkpoints import Snapshot, read_index, saved_frames
from fastr.runs.checkpoints import checkpoint as checkpoint_module
from fastr.runs.checkpoints.array_files import write_arrays
from fastr.runs.checkpoints.segments import Segment
from fastr.runs.directory import RunDirectory, RunWriter

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
        checkpoint = RunDirectory.open(path).latest()
    except UserError:
        return
    step = checkpoint.host["step"]
    assert step in (5, 9)
    assert_holds(checkpoint, step)
    first = max(0, step - CAPACITY)
    assert_replay(checkpoint, first, replay_rows(first, step))
    if victim.parts[:2] == ("checkpoints", "000000090"):
        assert step == 5
        assert "checkpoint 000000090 is damaged" in checkpoint.skipped[0]


@pytest.mark.parametrize(
    ("victim", "kind"),
    [
        ("checkpoints/000000090/state.safetensors", "state.safetensors: checksum"),
        ("checkpoints/000000090/state.safetensors", "state.safetensors: size"),
        ("checkpoints/000000090/state.safetensors", "state.safetensors: missing"),
        ("checkpoints/000000090/index.json", "index.json: not JSON"),
        ("checkpoints/000000090/index.json", "index.json: missing"),
        ("replay/000000005-000000009.safetensors", "000000005-000000009.safetensors: checksum"),
        ("rows.jsonl", "rows.jsonl: shorter than recorded"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(run, victim, kind):
    file = run / victim
    content = file.read_bytes()
    if "checksum" in kind:
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif "missing" in kind:
        file.unlink()
    else:
        file.write_bytes(content[:20])
    checkpoint = RunDirectory.open(run).latest()
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


@pytest.mark.parametrize("operation", ["open", "stat"])
@pytest.mark.parametrize(
    "victim",
    [
        "checkpoints/000000090/state.safetensors",
        "checkpoints/000000090/index.json",
        "replay/000000005-000000009.safetensors",
        "rows.jsonl",
    ],
)
def test_a_file_that_the_system_keeps_back_is_not_damage(run, victim, operation, monkeypatch):
    """The disk may answer tomorrow: what it holds must still be there then."""
    original = getattr(Path, operation)

    def refused(path, *arguments, **options):
        if path == run / victim:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(path, *arguments, **options)

    before = sorted(run.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, operation, refused)
        with pytest.raises(UserError) as refusal:
            RunWriter.resume(run)
    assert str(refusal.value) == f"{run / victim} cannot be read (Input/output error)."
    assert sorted(run.rglob("*")) == before
    writer, checkpoint = RunWriter.resume(run)
    writer.close()
    assert checkpoint.frames == 90


def test_checkpoints_that_cannot_be_listed_are_not_absent(run, monkeypatch):
    """A run that seems to have none starts again, and its rows are cut off."""
    rows = (run / "rows.jsonl").read_bytes()

    def refused(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(UserError, match=r"checkpoints cannot be read \(Permission denied\)"):
        RunWriter.resume(run)
    assert (run / "rows.jsonl").read_bytes() == rows


def test_a_file_that_vanishes_while_it_is_looked_at_is_missing(run, monkeypatch):
    """A reader beside the writer, which deletes what is no longer kept."""
    original = checkpoint_module.file_record

    def vanished(path):
        if path.parent.name == "000000090":
            path.unlink()
        return original(path)

    monkeypatch.setattr(checkpoint_module, "file_record", vanished)
    checkpoint = RunDirectory.open(run).latest()
    assert "000000090 is damaged (state.safetensors: missing)" in checkpoint.skipped[0]


@pytest.mark.parametrize(("victim", "says"), [
    ("rows.jsonl", "no usable checkpoint: .*rows.jsonl: checksum"),
    ("config.json", "config.json is not what it was when checkpoint 000000090 was made"),
])  # fmt: skip
def test_a_digit_that_turned_into_another_is_noticed(run, victim, says):
    """A file that still parses but no longer says what was measured, or what was asked for."""
    content = (run / victim).read_text()
    digit = next(i for i, letter in enumerate(content) if letter.isdigit())
    flipped = chr(ord(content[digit]) ^ 1)
    (run / victim).write_text(content[:digit] + flipped + content[digit + 1 :])
    with pytest.raises(UserError, match=says):
        RunWriter.resume(run)
    (run / victim).write_text(content)
    writer, checkpoint = RunWriter.resume(run)
    writer.close()
    assert checkpoint.frames == 90


def test_a_flipped_bit_in_the_format_is_damage(run):
    index = run / "checkpoints" / "000000090" / "index.json"
    index.write_bytes(index.read_bytes().replace(b'"format": 3', b'"format": 2'))
    assert RunDirectory.open(run).latest().frames == 50


@pytest.mark.parametrize("missing", ["rows_sha256", "config_sha256"])
def test_an_index_without_a_checksum_is_damage(run, missing):
    rewrite_index(run, 90, **{missing: None})
    assert RunDirectory.open(run).latest().frames == 50


def test_a_dead_branch_is_replaced(run):
    state = run / "checkpoints" / "000000090" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
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


def test_a_segment_of_the_same_name_that_no_checkpoint_needs_is_overwritten(run):
    writer, _ = RunWriter.resume(run)
    (run / "replay" / "000000009-000000012.safetensors").write_bytes(b"stale")
    with writer:
        save_and_wait(writer, snapshot(12, 9), keep=3)
    assert_replay(writer.latest(), 6, replay_rows(6, 12))


def test_segments_are_kept_while_an_index_cannot_say_what_it_needs(run):
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


@settings(deadline=None, max_examples=25)
@given(
    moves=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["go", "stop", "damage"])), max_size=7
    ),
    capacity=st.integers(1, 12),
    keep=st.integers(1, 3),
)
def test_any_history_restores_the_last_rows(tmp_path_factory, moves, capacity, keep):
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


# Hostile files


def test_another_format_is_named(run):
    rewrite_index(run, 90, format=1)
    with pytest.raises(
        UserError, match="has checkpoint format 1; this version of fastr reads format 3"
    ):
        RunDirectory.open(run).latest()
    rewrite_index(run, 90, format="x" * 1000)
    with pytest.raises(UserError, match="format 'xxxxxx"):
        RunDirectory.open(run).latest()


FILE = {"bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "name",
    [
        "../../config.json",
        "/etc/passwd",
        "..",
        "",
        "a\0b",
        "000000000-000000005.safetensors/../x",
        "0000000000-000000005.safetensors",
        "000000005-000000005.safetensors",
        "٠00000000-000000005.safetensors",
        "9" * 5000 + "-000000005.safetensors",
    ],
)
def test_names_outside_the_run_are_refused(run, name):
    rewrite_index(run, 90, files={"state.safetensors": FILE, name: FILE})
    with pytest.raises(UserError, match="which is no file of a checkpoint"):
        RunDirectory.open(run).latest()


STATE_ONLY = {"state.safetensors": FILE}
REPLAY = {"start": 3, "end": 9}


@pytest.mark.parametrize(
    "changes",
    [
        {"frames": -1},
        {"frames": True},
        {"frames": 91},
        {"frames": "90"},
        {"rows_bytes": 1.5},
        {"rows_bytes": 10**30},
        {"seeds": None},
        {"row_dim": []},
        {"host": []},
        {"replay": []},
        {"replay": {"start": 0}},
        {"replay": {"start": 3, "end": 10**17}},
        {"replay": {"start": 9, "end": 3}},
        {"files": []},
        {"files": {}},
        {"files": STATE_ONLY},
        {"files": {"state.safetensors": None}},
        {"files": {"state.safetensors": {"bytes": 1}}},
        {"files": {"state.safetensors": FILE | {"sha256": "x"}}},
        {
            "files": {"state.safetensors": FILE | {"bytes": 10**25}},
            "replay": {"start": 0, "end": 0},
        },
        {"files": STATE_ONLY | {"000000000-000000009.safetensors": FILE | {"bytes": -5}}},
        {"files": STATE_ONLY | {"000000000-000000009.safetensors": FILE}},
    ],
)
def test_an_index_of_the_wrong_shape_is_damage(run, changes):
    rewrite_index(run, 90, **changes)
    checkpoint = RunDirectory.open(run).latest()
    assert_holds(checkpoint, 5)
    assert "checkpoint 000000090 is damaged" in checkpoint.skipped[0]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"7", b"\xff", b"[" * 100_000, b"1" * 10_000, b'{"format": 3}']
)
def test_an_index_that_is_no_object_is_damage(run, content):
    (run / "checkpoints" / "000000090" / "index.json").write_bytes(content)
    assert_holds(RunDirectory.open(run).latest(), 5)


@pytest.mark.parametrize("name", ["0000000100", "99", "notes", "000000099"])
def test_other_things_among_the_checkpoints_are_ignored(run, name):
    if name == "000000099":
        (run / "checkpoints" / name).touch()
    else:
        (run / "checkpoints" / name).mkdir()
    assert_holds(RunDirectory.open(run).latest(), 9)


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
        {"other": 3},
    ],
)
def test_a_hostile_header_is_a_user_error(run, header):
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(16)
    segment = "000000005-000000009.safetensors"
    (run / "checkpoints" / "000000090" / "state.safetensors").write_bytes(content)
    (run / "replay" / segment).write_bytes(content)
    restamp(run, 90, "state.safetensors")
    restamp(run, 90, segment)
    checkpoint = RunDirectory.open(run).latest()
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.arrays()
    with pytest.raises(UserError, match=r"cannot be read|is not a replay segment"):
        replay_of(checkpoint)


def test_a_segment_with_something_beside_its_rows_is_refused(run):
    """Rows are read from the file's end, where something else would lie."""
    segment = "000000005-000000009.safetensors"
    write_arrays(run / "replay" / segment, {"rows": replay_rows(5, 9), "x": replay_rows(0, 4)})
    restamp(run, 90, segment)
    with pytest.raises(UserError, match="is not a replay segment of this run"):
        replay_of(RunDirectory.open(run).latest())


def test_a_segment_that_promises_more_than_it_holds_is_refused_before_memory_is_taken(run):
    promised = Segment(5, 10**15)
    (run / "replay" / "000000005-000000009.safetensors").rename(run / "replay" / promised.name)
    index = json.loads((run / "checkpoints" / "000000090" / "index.json").read_text())
    files = index["files"]
    files[promised.name] = files.pop("000000005-000000009.safetensors")
    rewrite_index(run, 90, files=files, replay={"start": 3, "end": 10**15})
    checkpoint = RunDirectory.open(run).latest()
    assert checkpoint.skipped == ()
    with pytest.raises(UserError, match="is not a replay segment of this run"):
        replay_of(checkpoint)
