"""Saving, resuming and creating, interrupted at every write."""

import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from checkpointing import (
    CAPACITY,
    CONFIG,
    assert_holds,
    assert_replay,
    leftovers,
    names,
    replay_rows,
    save_and_wait,
    snapshot,
)
from fastr.core import UserError
from fastr.runs import RunDirectory, RunWriter, checkpoints


class Killed(BaseException):
    """The process ends here: nothing after this runs."""


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
            save_and_wait(writer, snapshot(12, 9), keep=1)

    def prepare(path):
        return Path(shutil.copytree(pristine, path))

    steps = []
    for path, _ in failures(prepare, save, Killed(), tmp_path):
        reader = RunDirectory.open(path).latest_complete()
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
            save_and_wait(writer, snapshot(14, step, branch=1), keep=1)
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
        save_and_wait(writer, snapshot(12, 9), keep=1)

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    steps = []
    for writer, raised in failures(prepare, save, full, tmp_path):
        step = writer.latest_complete().host["step"]
        assert_holds(writer.latest(), step)
        assert "No space left on device" in str(raised)
        if step == 9:
            assert "Checkpoint 000000120 could not be written" in str(raised)
            assert "the last good one is 000000090" in str(raised)
            assert not leftovers(writer.path)
            assert names(writer.path / "checkpoints") == ["000000050", "000000090"]
            assert len(names(writer.path / "replay")) == 2
        # The same writer continues once there is room.
        save_and_wait(writer, snapshot(13, step), keep=1)
        assert_holds(writer.latest_complete(), 13)
        writer.close()
        steps.append(step)
    assert set(steps) == {9, 12}


def test_everything_is_on_the_disk_before_it_gets_its_name(run, monkeypatch):
    events = []
    original_fsync, originals = os.fsync, {"replace": os.replace, "rename": os.rename}

    def fsync(descriptor):
        events.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))
        original_fsync(descriptor)

    def renaming(name):
        def wrapper(source, target):
            events.append(("name", target))
            originals[name](source, target)

        return wrapper

    writer, _ = RunWriter.resume(run)
    monkeypatch.setattr(os, "fsync", fsync)
    for name in originals:
        monkeypatch.setattr(os, name, renaming(name))
    with writer:
        save_and_wait(writer, snapshot(12, 9), keep=3)
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
