import errno
import json
import math
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastr import checkpoints, runs
from fastr.checkpoints import Checkpoint, Segment, Snapshot
from fastr.errors import UserError
from fastr.runs import RunDirectory, RunWriter

CONFIG = {"train": {"task": "walk", "agent": {"rate": 0.1, "sizes": (4, 4)}}, "provenance": {}}
CAPACITY = 6
SEEDS, ROW_DIM = 2, 3
NO_DEADLINE = settings(deadline=None, max_examples=60)


def replay_rows(start: int, end: int, branch: int = 0) -> np.ndarray:
    """Rows whose numbers tell their step, their place and their branch."""
    steps = np.arange(start, end, dtype=np.float32)[:, None, None]
    places = np.arange(SEEDS * ROW_DIM, dtype=np.float32).reshape(1, SEEDS, ROW_DIM)
    return steps * 100 + places + branch * 1e6


def arrays_at(frames: int, branch: int = 0) -> dict[str, np.ndarray]:
    return {
        "weights": np.full((2, 5), frames + branch / 2, np.float32),
        "clock": np.asarray(frames, np.int32),
        "strided": np.arange(12).reshape(3, 4).T + frames,
        "key": np.array([[frames, branch]], np.uint32),
        "none": np.zeros((0, 2), np.float16),
    }


def snapshot(step: int, since: int, *, branch: int = 0, capacity: int = CAPACITY) -> Snapshot:
    """What a run hands over at an agent step, when the last checkpoint was made at `since`."""
    return Snapshot(
        frames=step * 10,
        arrays=arrays_at(step * 10, branch),
        host={"step": step, "generator": 2**127 + step, "best": math.nan, "branch": branch},
        replay_rows=replay_rows(since, step, branch),
        replay_start=since,
        capacity=capacity,
    )


def assert_holds(checkpoint: Checkpoint, step: int, branch: int = 0) -> None:
    """The checkpoint is the one made at this step, in every number."""
    assert checkpoint.frames == step * 10
    assert checkpoint.host["generator"] == 2**127 + step
    assert checkpoint.host["branch"] == branch
    assert math.isnan(checkpoint.host["best"])
    found, wanted = checkpoint.arrays(), arrays_at(step * 10, branch)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array)


def assert_replay(checkpoint: Checkpoint, start: int, wanted: np.ndarray) -> None:
    found_start, found = checkpoint.replay_rows()
    assert found_start == start
    assert found.dtype == np.float32
    assert np.array_equal(found, wanted)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*"))


def leftovers(run: Path) -> list[Path]:
    return list(run.rglob(".tmp*"))


def rewrite_index(run: Path, saved: int, **changes) -> None:
    """Change an index as an attacker would, with a checksum that is right."""
    path = run / "checkpoints" / f"{saved:09d}" / "index.json"
    content = json.loads(path.read_text()) | changes
    content.pop("sha256")
    content["sha256"] = checkpoints.content_checksum(content)
    path.write_text(json.dumps(content))


def restamp(run: Path, frames: int, name: str) -> None:
    """Record a file's present size and checksum in an index, as an attacker would."""
    files = checkpoints.read_index(run, frames).files
    path = run / "checkpoints" / f"{frames:09d}" / name
    path = path if path.exists() else run / "replay" / name
    files[name] = checkpoints.file_record(path)
    entries = {key: {"bytes": file.size, "sha256": file.sha256} for key, file in files.items()}
    rewrite_index(run, frames, files=entries)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """Checkpoints at steps 5 and 9, a row before each and one after them; nothing to be written."""
    path = tmp_path_factory.mktemp("pristine") / "run"
    with RunWriter.create(path, CONFIG) as writer:
        writer.append({"frames": 50})
        writer.save(snapshot(5, 0), keep=3)
        writer.append({"frames": 90})
        writer.save(snapshot(9, 5), keep=3)
        writer.append({"frames": 95})
    return path


@pytest.fixture
def run(pristine, tmp_path) -> Path:
    """A copy of the pristine run, to be maltreated."""
    return Path(shutil.copytree(pristine, tmp_path / "run"))


# Configuration


def test_create_then_open(tmp_path):
    with RunWriter.create(tmp_path / "deep" / "run", CONFIG) as writer:
        assert writer.config["train"]["agent"]["sizes"] == [4, 4]
    opened = RunDirectory.open(tmp_path / "deep" / "run")
    assert opened.config == writer.config
    assert opened.rows() == []
    with pytest.raises(UserError, match="has no checkpoint yet"):
        opened.latest()


def test_create_again_is_allowed_until_something_is_recorded(tmp_path):
    RunWriter.create(tmp_path, CONFIG).close()
    (tmp_path / "rows.jsonl").write_bytes(b'{"torn": 1')
    with RunWriter.create(tmp_path, CONFIG | {"provenance": {"commit": "new"}}) as writer:
        writer.append({"frames": 1})
    assert RunDirectory.open(tmp_path).config["provenance"] == {"commit": "new"}
    assert writer.rows() == [{"frames": 1}]
    with pytest.raises(UserError, match="has rows but no checkpoint: delete it"):
        RunWriter.create(tmp_path, CONFIG)


def test_create_on_a_recorded_run_points_to_resume(run):
    with pytest.raises(UserError, match=f"use `fastr resume {run}` or choose another --out"):
        RunWriter.create(run, CONFIG)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"rate": 0.2, "sizes": [4, 4]}, "agent.rate is 0.1 there and 0.2 here"),
        ({"rate": 0.1, "sizes": [4, 5]}, r"agent.sizes is \[4, 4\] there and \[4, 5\] here"),
        ({"rate": 0.1}, "agent.sizes is only there"),
        ({"rate": 0.1, "sizes": [4, 4], "new": None}, "agent.new is only here"),
        (None, "agent is .* there and null here"),
    ],
)
def test_create_with_another_config_names_the_field_and_overwrites_nothing(
    tmp_path, agent, message
):
    RunWriter.create(tmp_path, CONFIG).close()
    before = (tmp_path / "config.json").read_bytes()
    other = {"train": {"task": "walk", "agent": agent}, "provenance": {}}
    with pytest.raises(UserError, match=message):
        RunWriter.create(tmp_path, other)
    assert (tmp_path / "config.json").read_bytes() == before
    RunWriter.create(tmp_path, CONFIG).close()


def test_create_refuses_what_is_not_a_run(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(UserError, match="is a file"):
        RunWriter.create(file, CONFIG)
    with pytest.raises(UserError, match="neither empty nor a run"):
        RunWriter.create(tmp_path, CONFIG)
    assert names(tmp_path) == ["file"]
    with pytest.raises(UserError, match="cannot be written"):
        RunWriter.create(file / "below", CONFIG)
    with pytest.raises(UserError, match="cannot be written"):
        RunWriter.create("/proc/fastr-run", CONFIG)
    with pytest.raises(UserError, match='needs "train" and "provenance"'):
        RunWriter.create(tmp_path / "new", {"train": {}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "needs"),
        (b'{"train": [], "provenance": {}}', "needs"),
    ],
)
def test_open_refuses_a_bad_config(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)
    for opening in (
        RunDirectory.open,
        RunWriter.resume,
        lambda path: RunWriter.create(path, CONFIG),
    ):
        with pytest.raises(UserError, match=message):
            opening(tmp_path)
    assert (tmp_path / "config.json").read_bytes() == content


def test_open_refuses_what_is_not_a_run(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        RunDirectory.open(tmp_path / "nowhere")
    with RunWriter.create(tmp_path / "reach", CONFIG):
        pass
    with pytest.raises(UserError, match=r"Did you mean .*reach"):
        RunDirectory.open(tmp_path / "raech")
    with pytest.raises(UserError, match="Runs below it: reach"):
        RunDirectory.open(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        RunDirectory.open(tmp_path)


# Rows

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@NO_DEADLINE
@given(rows=st.lists(st.dictionaries(st.text(), JSON_VALUES, max_size=4), max_size=5))
def test_any_rows_round_trip(tmp_path_factory, rows):
    with RunWriter.create(tmp_path_factory.mktemp("rows"), CONFIG) as writer:
        for row in rows:
            writer.append(row)
    assert RunDirectory.open(writer.path).rows() == rows


def test_numbers_that_json_lacks_become_null(tmp_path):
    row = {
        "loss": math.nan,
        "returns": [np.float32(np.inf), np.float32(0.5)],
        "spread": np.array([1.0, -np.inf]),
        "pair": (1, np.int64(2)),
        "deep": {"x": np.float64("nan")},
    }
    with RunWriter.create(tmp_path, CONFIG) as writer:
        writer.append(row)
    assert writer.rows() == [
        {"loss": None, "returns": [None, 0.5], "spread": [1.0, None], "pair": [1, 2]}
        | {"deep": {"x": None}}
    ]
    assert b"NaN" not in (tmp_path / "rows.jsonl").read_bytes()


def test_a_torn_last_line_is_left_out_and_a_torn_middle_is_an_error(tmp_path):
    RunWriter.create(tmp_path, CONFIG).close()
    rows = tmp_path / "rows.jsonl"
    whole = b'{"frames": 1}\n{"frames": 2}\n'
    for length in range(len(whole)):
        rows.write_bytes(whole[:length])
        assert len(RunDirectory.open(tmp_path).rows()) == whole[:length].count(b"\n")
    for bad in (b'{"frames"\n', b"[1]\n", b"\xff\n", b"[" * 100_000 + b"\n"):
        rows.write_bytes(whole + bad + whole)
        with pytest.raises(UserError, match="line 3 is not"):
            RunDirectory.open(tmp_path).rows()
    rows.unlink()
    assert RunDirectory.open(tmp_path).rows() == []
    rows.mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        RunDirectory.open(tmp_path).rows()


@contextmanager
def file_size_limit(limit: int):
    """Let the system refuse to write more than so many bytes to any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_row_that_the_disk_refuses_leaves_no_part_of_itself(tmp_path):
    with RunWriter.create(tmp_path, CONFIG) as writer:
        writer.append({"frames": 1})
        size = (tmp_path / "rows.jsonl").stat().st_size
        for room in (0, 5):
            with file_size_limit(size + room), pytest.raises(UserError, match=r"rows.jsonl cannot"):
                writer.append({"frames": 2})
            assert (tmp_path / "rows.jsonl").stat().st_size == size
        writer.append({"frames": 3})
    assert writer.rows() == [{"frames": 1}, {"frames": 3}]


# Save and load


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
        writer.save(snapshot(12, 9), keep=3)
    assert RunDirectory.open(run).rows() == [{"frames": 50}, {"frames": 90}, {"frames": 100}]
    assert_replay(writer.latest(), 6, replay_rows(6, 12))


def test_a_run_without_replay(tmp_path):
    with RunWriter.create(tmp_path, CONFIG) as writer:
        writer.save(snapshot(0, 0), keep=1)
    assert_replay(writer.latest(), 0, np.zeros((0, SEEDS, ROW_DIM), np.float32))
    writer, checkpoint = RunWriter.resume(tmp_path)
    with writer:
        assert_holds(checkpoint, 0)
        writer.save(snapshot(2, 0), keep=1)
    assert_replay(writer.latest(), 0, replay_rows(0, 2))


def test_no_new_rows_need_no_new_segment(run):
    writer, _ = RunWriter.resume(run)
    with writer:
        still = snapshot(9, 9)
        later = Snapshot(91, still.arrays, still.host, still.replay_rows, 9, CAPACITY)
        writer.save(later, keep=1)
    assert len(names(run / "replay")) == 2
    assert writer.latest().frames == 91
    assert_replay(writer.latest(), 3, replay_rows(3, 9))


def test_a_ring_that_wrapped_between_checkpoints(run):
    writer, _ = RunWriter.resume(run)
    with writer:
        # 20 rows were added, of which the buffer holds the last 6.
        writer.save(Snapshot(290, {}, {}, replay_rows(23, 29), 23, CAPACITY), keep=1)
    assert_replay(writer.latest(), 23, replay_rows(23, 29))
    assert names(run / "replay") == ["000000023-000000029.safetensors"]
    assert writer.latest().arrays() == {}


def test_pruning_keeps_what_the_kept_checkpoints_need(tmp_path):
    with RunWriter.create(tmp_path, CONFIG) as writer:
        for step in range(2, 22, 2):
            writer.save(snapshot(step, step - 2), keep=2)
    assert names(tmp_path / "checkpoints") == ["000000180", "000000200"]
    # The older one ends at 18 and holds 6 rows, so the rows from 12 on are needed.
    assert names(tmp_path / "replay")[0] == "000000012-000000014.safetensors"
    assert len(names(tmp_path / "replay")) == 4
    shutil.rmtree(tmp_path / "checkpoints" / "000000200")
    assert_holds(writer.latest(), 18)
    assert_replay(writer.latest(), 12, replay_rows(12, 18))


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
            writer.save(Snapshot(290, {}, {}, replay_rows(23, 29), 23, CAPACITY), keep=1)
        base = snapshot(31, 29)
    else:
        base = snapshot(11, 9)
    writer, _ = RunWriter.resume(run)
    before = sorted(run.rglob("*"))
    with writer, pytest.raises(ValueError, match=message):
        writer.save(replace(base, **changes), keep=1)
    assert sorted(run.rglob("*")) == before


def test_keep_and_host_are_checked_before_anything_is_written(run):
    writer, _ = RunWriter.resume(run)
    before = sorted(run.rglob("*"))
    with writer:
        with pytest.raises(ValueError, match="keep=0"):
            writer.save(snapshot(11, 9), keep=0)
        with pytest.raises(TypeError):
            writer.save(replace(snapshot(11, 9), host={"x": {1}}), keep=1)
        assert sorted(run.rglob("*")) == before
        # Keys that JSON turns into strings do not upset the checksum.
        writer.save(replace(snapshot(11, 9), host={"x": {2: "a", 1: "b", "2": "c"}}), keep=1)
    assert writer.latest().host == {"x": {"2": "c", "1": "b"}}


# Kills and write errors


class Killed(BaseException):
    """The process is gone: nothing after this runs."""


WRITES = (
    (os, "replace"),
    (os, "rename"),
    (os, "fsync"),
    (shutil, "rmtree"),
    (checkpoints, "save_file"),
    (Path, "write_bytes"),
    (Path, "unlink"),
    (Path, "mkdir"),
    (Path, "chmod"),
)


@contextmanager
def failure_at(call: int, error: BaseException):
    """Make the given write to the file system fail half way, counting from 0."""
    calls = iter(range(1_000_000))
    originals = [(owner, name, getattr(owner, name)) for owner, name in WRITES]

    def failing(name, original):
        def wrapper(*arguments, **options):
            if next(calls) != call:
                return original(*arguments, **options)
            if name == "save_file":
                (arguments[1].parent / ".tmpA1b2C3").touch()
            if name == "write_bytes":
                original(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if name == "rmtree":
                next(iter(arguments[0].iterdir())).unlink()
            raise error

        return wrapper

    try:
        for owner, name, original in originals:
            setattr(owner, name, failing(name, original))
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def failures(prepare, action, error: BaseException, tmp_path: Path):
    """What was prepared and what was raised, for a failure at the first write, the second, ..."""
    for call in range(1000):
        subject = prepare(tmp_path / str(call))
        try:
            with failure_at(call, error):
                action(subject)
        except (Killed, UserError) as raised:
            yield subject, raised
        else:
            assert call > 3
            return


def test_a_kill_at_any_write_of_a_save_leaves_a_sound_run(pristine, tmp_path):
    def save(path):
        writer, _ = RunWriter.resume(path)
        with writer:
            writer.append({"frames": 100})
            writer.save(snapshot(12, 9), keep=1)

    def prepare(path):
        return Path(shutil.copytree(pristine, path))

    steps = []
    for path, _ in failures(prepare, save, Killed(), tmp_path):
        reader = RunDirectory.open(path).latest()
        writer, checkpoint = RunWriter.resume(path)
        with writer:
            step = checkpoint.host["step"]
            assert reader.files == checkpoint.files
            # Nothing half-made ever has a checkpoint's name.
            assert reader.skipped == ()
            assert_holds(checkpoint, step)
            assert_replay(checkpoint, step - CAPACITY, replay_rows(step - CAPACITY, step))
            assert [row["frames"] for row in writer.rows()] == [50, 90, 100][: 2 + (step == 12)]
            assert not leftovers(path)
            writer.save(snapshot(14, step, branch=1), keep=1)
        assert_holds(writer.latest(), 14, branch=1)
        assert names(path / "checkpoints") == ["000000140"]
        steps.append(step)
    assert steps == sorted(steps)
    assert set(steps) == {9, 12}


def test_a_kill_at_any_write_of_a_resume_leaves_a_sound_run(pristine, tmp_path):
    def prepare(path):
        shutil.copytree(pristine, path)
        (path / "checkpoints" / "000000090" / "state.safetensors").write_bytes(b"")
        (path / "replay" / ".tmpXyZ").touch()
        return path

    def resume(path):
        RunWriter.resume(path)[0].close()

    for path, _ in failures(prepare, resume, Killed(), tmp_path):
        writer, checkpoint = RunWriter.resume(path)
        writer.close()
        assert_holds(checkpoint, 5)
        assert_replay(checkpoint, 0, replay_rows(0, 5))
        assert writer.rows() == [{"frames": 50}]
        assert names(path / "replay") == ["000000000-000000005.safetensors"]
        assert not leftovers(path)


def test_a_kill_at_any_write_of_a_create_can_be_repeated(tmp_path):
    def create(path):
        RunWriter.create(path, CONFIG).close()

    for path, _ in failures(lambda path: path, create, Killed(), tmp_path):
        with RunWriter.create(path, CONFIG) as writer:
            writer.append({"frames": 1})
        assert not leftovers(path)
        assert RunDirectory.open(path).rows() == [{"frames": 1}]


def test_a_full_disk_at_any_write_of_a_save_is_reported_and_survived(pristine, tmp_path):
    def prepare(path):
        return RunWriter.resume(shutil.copytree(pristine, path))[0]

    def save(writer):
        writer.save(snapshot(12, 9), keep=1)

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    steps = []
    for writer, raised in failures(prepare, save, full, tmp_path):
        step = writer.latest().host["step"]
        assert_holds(writer.latest(), step)
        assert "No space left on device" in str(raised)
        if step == 9:
            assert "Checkpoint 000000120 could not be written" in str(raised)
            assert "the last good one is 000000090" in str(raised)
            assert not leftovers(writer.path)
            assert names(writer.path / "checkpoints") == ["000000050", "000000090"]
            assert len(names(writer.path / "replay")) == 2
        # The same writer goes on once there is room.
        writer.save(snapshot(13, step), keep=1)
        assert_holds(writer.latest(), 13)
        writer.close()
        steps.append(step)
    assert set(steps) == {9, 12}


def test_everything_is_on_the_disk_before_it_gets_its_name(run, monkeypatch):
    events = []
    original_sync, originals = checkpoints.sync, {"replace": os.replace, "rename": os.rename}

    def sync(path):
        events.append(("sync", path))
        original_sync(path)

    def renaming(name):
        def wrapper(source, target):
            events.append(("name", target))
            originals[name](source, target)

        return wrapper

    writer, _ = RunWriter.resume(run)
    monkeypatch.setattr(checkpoints, "sync", sync)
    for name in originals:
        monkeypatch.setattr(os, name, renaming(name))
    with writer:
        writer.save(snapshot(12, 9), keep=3)
    segment, state = run / "replay", run / "checkpoints"
    unfinished = state / ".tmp-000000120"
    assert events == [
        ("sync", run / "rows.jsonl"),
        ("sync", segment / ".tmp-000000009-000000012.safetensors"),
        ("name", segment / "000000009-000000012.safetensors"),
        ("sync", segment),
        ("sync", unfinished / "state.safetensors"),
        ("sync", unfinished / ".tmp-index.json"),
        ("name", unfinished / "index.json"),
        ("sync", unfinished),
        ("name", state / "000000120"),
        ("sync", state),
        ("sync", run),
    ]


def test_the_systems_own_write_error_is_reported(tmp_path):
    with RunWriter.create(tmp_path, CONFIG) as writer:
        large = replace(snapshot(2, 0), arrays={"x": np.zeros(10_000)})
        with file_size_limit(20_000), pytest.raises(UserError, match="there is no earlier one"):
            writer.save(large, keep=1)
        assert not leftovers(tmp_path)
        assert names(tmp_path / "replay") == names(tmp_path / "checkpoints") == []
        writer.save(large, keep=1)
    assert writer.latest().arrays()["x"].shape == (10_000,)


LOOP = """
import sys
import numpy as np
from fastr.checkpoints import Snapshot
from fastr.runs import RunWriter
path, step = sys.argv[1], 0
try:
    writer, checkpoint = RunWriter.resume(path)
    step = checkpoint.host["step"]
except Exception:
    writer = RunWriter.create(path, {"train": {}, "provenance": {}})
while True:
    step += 1
    writer.append({"step": step})
    rows = np.full((1, 2, 3), step, np.float32)
    arrays = {"x": np.full(50_000, step)}
    writer.save(Snapshot(step, arrays, {"step": step}, rows, step - 1, 4), keep=2)
"""


def test_a_killed_process_leaves_a_sound_run(tmp_path):
    path = tmp_path / "run"
    reached = 0
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", LOOP, str(path)])
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            done = checkpoints.saved_frames(path)
            if done and done[-1] >= reached + 3:
                break
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.wait()
        checkpoint = RunDirectory.open(path).latest()
        step = checkpoint.host["step"]
        assert step >= reached + 2
        assert np.array_equal(checkpoint.arrays()["x"], np.full(50_000, step))
        start, rows = checkpoint.replay_rows()
        assert (start + 1 + np.arange(len(rows))).tolist() == rows[:, 0, 0].tolist()
        assert start + len(rows) == step
        kept = (path / "rows.jsonl").read_bytes()[: checkpoint.rows_bytes].splitlines()
        assert [json.loads(line)["step"] for line in kept] == list(range(1, step + 1))
        reached = step


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
    index.write_bytes(index.read_bytes().replace(b'"format": 2', b'"format": 3'))
    assert RunDirectory.open(run).latest().frames == 50


def test_indices_of_earlier_versions_lack_two_checksums(run):
    for frames in (50, 90):
        rewrite_index(run, frames, rows_sha256=None, config_sha256=None)
    assert RunDirectory.open(run).latest().frames == 90


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
        writer.save(snapshot(9, 5, branch=1), keep=2)
    assert_holds(writer.latest(), 9, branch=1)
    wanted = np.concatenate([replay_rows(3, 5), replay_rows(5, 9, branch=1)])
    assert_replay(writer.latest(), 3, wanted)


def test_a_segment_of_the_same_name_that_no_checkpoint_needs_is_overwritten(run):
    writer, _ = RunWriter.resume(run)
    (run / "replay" / "000000009-000000012.safetensors").write_bytes(b"stale")
    with writer:
        writer.save(snapshot(12, 9), keep=3)
    assert_replay(writer.latest(), 6, replay_rows(6, 12))


def test_segments_are_kept_while_an_index_cannot_say_what_it_needs(run):
    writer, _ = RunWriter.resume(run)
    with writer:
        writer.save(snapshot(15, 9), keep=1)
        writer.save(snapshot(21, 15), keep=2)
        # Only the first of these needs the rows from 9 to 15.
        (run / "checkpoints" / "000000150" / "index.json").write_text("{")
        writer.save(snapshot(27, 21), keep=3)
        assert names(run / "replay")[0] == "000000009-000000015.safetensors"
        writer.save(snapshot(33, 27), keep=1)
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
        writer.save(Snapshot(frames + 1, {}, {}, log[start:], start, capacity), keep=keep)
        history.append((frames + 1, log))
        if event != "go":
            writer.close()
            if event == "damage" and len(checkpoints.saved_frames(path)) > 1:
                (path / "checkpoints" / f"{frames + 1:09d}" / "index.json").write_text("{}}")
                history.pop()
            writer, _ = RunWriter.resume(path)
        frames, log = history[-1]
        checkpoint = writer.latest()
        assert checkpoint.frames == frames
        assert_replay(checkpoint, max(0, len(log) - capacity), log[-capacity:])
        kept = [checkpoints.read_index(path, saved) for saved in checkpoints.saved_frames(path)]
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
        UserError, match="has checkpoint format 1; this version of fastr reads format 2"
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
    "content", [b"", b"[]", b"7", b"\xff", b"[" * 100_000, b"1" * 10_000, b'{"format": 2}']
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
        checkpoint.replay_rows()


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
        checkpoint.replay_rows()


# Lock

ATTEMPT = """
import sys
from fastr.errors import UserError
from fastr.runs import RunWriter
def create(path):
    RunWriter.create(path, {"train": {}, "provenance": {}})
for attempt in (RunWriter.resume, create):
    try:
        attempt(sys.argv[1])
    except UserError as error:
        print(error)
assert "jax" not in sys.modules
"""


def test_a_second_process_cannot_write(run):
    before = (run / "rows.jsonl").read_bytes()
    (run / "checkpoints" / ".tmp-000000100").mkdir()
    lock = runs.locked(run)
    command = [sys.executable, "-c", ATTEMPT, str(run)]
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    message = f"{run} is in use by process {os.getpid()}; stop it or choose another --out."
    assert second.stdout.splitlines() == [message, message]
    # It did not clean up behind the first one's back.
    assert leftovers(run)
    assert (run / "rows.jsonl").read_bytes() == before
    lock.close()
    writer, _ = RunWriter.resume(run)
    writer.close()
    assert not leftovers(run)


def test_a_lock_is_released_after_a_failed_start(run):
    for _ in range(2):
        with pytest.raises(UserError, match="use `fastr resume"):
            RunWriter.create(run, CONFIG)
    for index in run.glob("checkpoints/*/index.json"):
        index.write_text("torn")
    for _ in range(2):
        with pytest.raises(UserError, match="has no usable checkpoint"):
            RunWriter.resume(run)


def test_a_run_without_a_checkpoint_starts_again(run):
    shutil.rmtree(run / "checkpoints")
    writer, checkpoint = RunWriter.resume(run)
    with writer:
        assert checkpoint is None
        assert writer.rows() == []


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(runs.fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"lock cannot be written \(No locks available"):
        RunWriter.create(tmp_path, CONFIG)


# Provenance


def test_provenance_names_what_made_a_run(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fastr", "train"])
    found = runs.provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["command"] == ["fastr", "train"]
    assert found["packages"]["numpy"] == np.__version__
    assert found["cores"] >= 1
    assert found["cpu"]
    assert found["started"].endswith("+00:00")


def test_provenance_does_without_packages_and_cpuinfo(monkeypatch):
    assert runs.package_version("no-such-package") is None

    def refuse(*_):
        raise OSError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert runs.cpu_model() == runs.platform.processor()
