"""What tests of runs and checkpoints share: snapshots whose numbers tell where they belong."""

import json
import math
import resource
import shutil
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from fastr.runs import Checkpoint, RunWriter, Snapshot
from fastr.runs.checkpoints import content_checksum, read_index
from fastr.runs.files import file_record

CONFIG = {"train": {"task": "walk", "agent": {"rate": 0.1, "sizes": (4, 4)}}, "provenance": {}}
CAPACITY = 6
SEEDS, ROW_DIM = 2, 3


def replay_rows(start: int, end: int, branch: int = 0) -> np.ndarray:
    """Rows whose numbers tell their step, their place and their branch."""
    steps = np.arange(start, end, dtype=np.float32)[:, None, None]
    places = np.arange(SEEDS * ROW_DIM, dtype=np.float32).reshape(1, SEEDS, ROW_DIM)
    return steps * 100 + places + branch * 1e6


def arrays_at(frames: int, branch: int) -> dict[str, np.ndarray]:
    return {
        "weights": np.full((2, 5), frames + branch / 2, np.float32),
        "clock": np.asarray(frames, np.int32),
        "strided": np.arange(12).reshape(3, 4).T + frames,
        "key": np.array([[frames, branch]], np.uint32),
        "none": np.zeros((0, 2), np.float16),
    }


def snapshot(step: int, since: int, *, branch: int = 0) -> Snapshot:
    """Snapshot at an agent step, when the last checkpoint was made at `since`."""
    return Snapshot(
        frames=step * 10,
        arrays=arrays_at(step * 10, branch),
        host={"step": step, "generator": 2**127 + step, "best": math.nan, "branch": branch},
        replay_rows=replay_rows(since, step, branch),
        replay_start=since,
        capacity=CAPACITY,
    )


def save_and_wait(writer: RunWriter, taken: Snapshot, *, keep: int) -> None:
    writer.begin_save(taken, keep=keep)
    writer.finish_save()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """Checkpoints at steps 5 and 9, a row before each and one after them; not to be changed."""
    path = tmp_path_factory.mktemp("pristine") / "run"
    with RunWriter.create(path, CONFIG) as writer:
        writer.append({"frames": 50})
        save_and_wait(writer, snapshot(5, 0), keep=3)
        writer.append({"frames": 90})
        save_and_wait(writer, snapshot(9, 5), keep=3)
        writer.append({"frames": 95})
    return path


@pytest.fixture
def run(pristine, tmp_path) -> Path:
    """A copy of the pristine run."""
    return Path(shutil.copytree(pristine, tmp_path / "run"))


def assert_holds(checkpoint: Checkpoint, step: int, branch: int = 0) -> None:
    """The checkpoint is the one made at this step, in every number."""
    assert checkpoint.frames == step * 10
    assert checkpoint.host["generator"] == 2**127 + step
    assert checkpoint.host["branch"] == branch
    found, wanted = checkpoint.arrays(), arrays_at(step * 10, branch)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def replay_of(checkpoint: Checkpoint) -> tuple[int, np.ndarray]:
    """First row's agent step and all rows, which are read in slices that follow one another."""
    rows = np.zeros((0, *checkpoint.row_shape), np.float32)
    for first, part in checkpoint.replay_slices(4):
        assert first == checkpoint.replay.start + len(rows)
        assert len(part) <= 4
        rows = np.concatenate([rows, part])
    return checkpoint.replay.start, rows


def assert_replay(checkpoint: Checkpoint, start: int, wanted: np.ndarray) -> None:
    found_start, found = replay_of(checkpoint)
    assert found_start == start
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
    path.write_text(json.dumps(content | {"sha256": content_checksum(content)}))


def restamp(run: Path, frames: int, name: str) -> None:
    """Record a file's present size and checksum in an index, as an attacker would."""
    checkpoint = read_index(run, frames)
    files = checkpoint.files | {name: file_record(checkpoint.location(name))}
    entries = {key: asdict(file) for key, file in files.items()}
    rewrite_index(run, frames, files=entries)


@contextmanager
def file_size_limit(limit: int):
    """Let the system refuse to write more than so many bytes to any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
