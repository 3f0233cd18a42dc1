"""A run directory: its configuration, its rows and its lock."""

import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from checkpointing import CONFIG, file_size_limit, leftovers, names
from fastr.core import UserError
from fastr.runs import RunDirectory, RunWriter, locked

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
    with pytest.raises(UserError, match="exists: use `fastr resume"):
        RunWriter.create(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"rate": 0.1, "sizes": [4, 5]}, r"agent.sizes is \[4, 4\] there and \[4, 5\] here"),
        ({"rate": 0.1}, "agent.sizes is only there"),
        ({"rate": 0.1, "sizes": [4, 4], "new": None}, "agent.new is only here"),
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


def test_create_refuses_what_is_not_a_run(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(UserError, match="is a file"):
        RunWriter.create(file, CONFIG)
    with pytest.raises(UserError, match="neither empty nor a run"):
        RunWriter.create(tmp_path, CONFIG)
    assert names(tmp_path) == ["file"]
    for path in (file / "below", "/proc/fastr-run"):
        with pytest.raises(UserError, match="cannot be written"):
            RunWriter.create(path, CONFIG)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"\xff\xfe{", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[]", "is not a JSON object"),
        (b'{"train": [], "provenance": {}}', "needs"),
    ],
)
def test_a_bad_config_is_refused_and_kept(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)
    for opening in (
        RunDirectory.open,
        RunWriter.resume,
        lambda path: RunWriter.create(path, CONFIG),
    ):
        with pytest.raises(UserError, match=message):
            opening(tmp_path)
    assert (tmp_path / "config.json").read_bytes() == content


# Rows


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


def test_a_torn_last_line_is_left_out_and_a_torn_middle_is_an_error(tmp_path):
    RunWriter.create(tmp_path, CONFIG).close()
    rows = tmp_path / "rows.jsonl"
    whole = b'{"frames": 1}\n{"frames": 2}\n'
    for length in range(len(whole)):
        rows.write_bytes(whole[:length])
        assert len(RunDirectory.open(tmp_path).rows()) == whole[:length].count(b"\n")
    for bad in (b'{"frames"\n', b"[1]\n", b"\xff\n", b"[" * 100_000 + b"\n"):
        rows.write_bytes(whole + bad + whole)
        with pytest.raises(UserError, match="line 3 is not a JSON object"):
            RunDirectory.open(tmp_path).rows()


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


# Lock

ATTEMPT = """
import sys
from fastr.core import UserError
from fastr.runs import RunWriter
def create(path):
    RunWriter.create(path, {"train": {}, "provenance": {}})
for attempt in (RunWriter.resume, create):
    try:
        attempt(sys.argv[1])
    except UserError as error:
        print(error)
"""


def test_a_second_process_cannot_write(run):
    before = (run / "rows.jsonl").read_bytes()
    (run / "checkpoints" / ".tmp-000000100").mkdir()
    lock = locked(run)
    command = [sys.executable, "-c", ATTEMPT, str(run)]
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    message = f"{run} is in use by process {os.getpid()}; stop it or choose another --out."
    assert second.stdout.splitlines() == [message, message]
    # It has deleted none of the first one's temporary files.
    assert leftovers(run)
    assert (run / "rows.jsonl").read_bytes() == before
    lock.close()
    writer, _ = RunWriter.resume(run)
    writer.close()
    assert not leftovers(run)


def test_a_lock_is_released_after_a_failed_start(run):
    for _ in range(2):
        with pytest.raises(UserError, match=f"use `fastr resume {run}` or choose another --out"):
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
