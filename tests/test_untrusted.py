"""Untrusted files execute nothing, lead nowhere else, and stay bounded."""

import contextlib
import json
import os
import re
import struct
import sys
import time
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastr
from fastr.cli import run
from fastr.core import UserError
from fastr.data import open_source
from fastr.envs import anatomy, shifts
from fastr.runs import RunDirectory, RunWriter
from fastr.runs.checkpoints import read_index
from fastr.runs.summary import summary
from fastr.runs.untrusted import bounded_bytes, limited_memory
from fastr.studies.experiments import Grid, misfits
from fastr.sweep import next_arguments
from fastr.training.config import from_json, preset, to_json
from fastr.training.state import check_host
from fastr.training.trained import load
from saved_runs import save_run
from transitions import walk, write_lerobot, write_minari, write_npz, write_run

SOURCE = Path(fastr.__file__).parent
MEBIBYTE = 2**20

# What executes, or may execute, what it reads.
EXECUTING = re.compile(
    r"^\s*(?:import|from) (?:c?pickle|cloudpickle|dill|joblib|marshal|shelve|yaml|torch|runpy|code"
    r"|codeop|imp)\b|(?<![.\w])(?:eval|exec|compile|__import__)\(|\bos\.(?:system|popen)\("
    r"|\bnp\.load\(|\bliteral_eval\(|\bread_pickle\(|\ballow_pickle\b|\bshell=",
    re.MULTILINE | re.IGNORECASE,
)
IMPORTERS = {"__init__.py", "cli/main.py", "runs/summary.py", "studies/race.py"}
"""These call import_module: with the user's own word, or with names written in them."""


def test_nothing_that_executes_files_is_used():
    for path in SOURCE.rglob("*.py"):
        text, name = path.read_text(), str(path.relative_to(SOURCE))
        # What a worker process unpickles comes from the process that started it.
        if name != "envs/processes.py":
            assert not EXECUTING.search(text), name
        assert name in IMPORTERS or "import_module(" not in text, name


# Modules that a run's task names.

COMMANDS = {
    "eval": ["--episodes", "1"],
    "play": ["--video", "film.gif"],
    "export": ["--out", "exported"],
    "resume": [],
    "transfer": ["--shift", "permutation:1", "--out", "moved"],
    "collect": ["--policy", "greedy", "--out", "data"],
}


@pytest.fixture(scope="module")
def lured(tmp_path_factory):
    """A run whose task names a module that does harm when it is imported."""
    folder = tmp_path_factory.mktemp("lured")
    (folder / "lure.py").write_text(f"open({str(folder / 'harm')!r}, 'w')\n")
    save_run(folder / "run", task="lure:Robot-v0")
    return folder


def content(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_runs_task_imports_nothing_by_itself(lured, command, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(lured)
    monkeypatch.chdir(tmp_path)
    before = content(lured)
    assert run([command, str(lured / "run"), *COMMANDS[command]]) == 2
    assert "fastr --import lure" in capsys.readouterr().err
    assert "lure" not in sys.modules
    assert content(lured) == before
    assert not list(tmp_path.iterdir())


def test_a_module_that_the_user_names_is_imported(lured, monkeypatch, capsys):
    monkeypatch.syspath_prepend(lured)
    assert run(["--import", "lure", "eval", str(lured / "run"), "--episodes", "1"]) == 2
    assert "Gymnasium cannot make lure:Robot-v0" in capsys.readouterr().err
    assert sys.modules.pop("lure").__file__ == str(lured / "lure.py")
    (lured / "harm").unlink()


def test_loading_a_policy_imports_nothing(lured, monkeypatch):
    monkeypatch.syspath_prepend(lured)
    assert load(lured / "run").act(np.zeros(3)).shape == (1,)
    assert "lure" not in sys.modules


def test_a_sweep_passes_on_the_modules_of_its_users_methods(tmp_path):
    grid = Grid(tmp_path, ("mine:Robot-v0",), ("ctrl-sr", "own"), (0,), 1_000, imports=("methods",))
    units = {unit.arguments[0]: unit for unit in misfits(grid)}
    training, copy = units["train"], units["collect"]
    assert training.line.startswith("fastr --import methods train mine:Robot-v0 ")
    assert next_arguments(training) == ("--import", "methods", *training.arguments)
    both = ("--import", "methods", "--import", "mine")
    assert next_arguments(copy) == (*both, *copy.arguments)
    training.product.mkdir(parents=True)
    (training.product / "config.json").touch()
    assert next_arguments(training) == (*both, "resume", str(training.product))


# Links, pipes and sizes.


def linked(path, target):
    """Put a link to the target in the place of what is there."""
    if path.is_dir():
        path.rename(path.with_name("moved"))
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


PLACES = ["config.json", "rows.jsonl", "lock", "curve.png", "curve.csv", "checkpoints", "replay"]
PLACES += ["checkpoints/000000040/state.safetensors", "checkpoints/000000040"]
PLACES += ["replay/000000000-000000010.safetensors"]


@pytest.mark.parametrize("place", PLACES)
def test_a_link_in_a_run_is_not_followed(tmp_path, place):
    path = write_run(tmp_path / "run", walk())
    target = tmp_path / "precious"
    if place in ("checkpoints", "replay", "checkpoints/000000040"):
        target.mkdir()
        (target / ".tmp-note").write_text("precious")
    else:
        target.write_text("precious")
    linked(path / place, target)
    before = content(target) if target.is_dir() else target.read_text()
    for touch in (RunWriter.resume, RunDirectory.open):
        with pytest.raises(UserError, match="is a link"):
            touch(path)
    assert (content(target) if target.is_dir() else target.read_text()) == before


def test_a_link_among_leftovers_is_removed_and_not_what_it_leads_to(tmp_path):
    path = write_run(tmp_path / "run", walk())
    (tmp_path / "precious").mkdir()
    (path / ".tmp-config.json").symlink_to(tmp_path / "precious")
    writer, _ = RunWriter.resume(path)
    writer.close()
    assert not (path / ".tmp-config.json").is_symlink()
    assert (tmp_path / "precious").is_dir()


def test_a_pipe_is_not_waited_for(tmp_path):
    path = write_run(tmp_path / "run", walk())
    (path / "config.json").unlink()
    os.mkfifo(path / "config.json")
    with pytest.raises(UserError, match="neither a file nor a directory"):
        RunDirectory.open(path)


@pytest.mark.parametrize("place", ["data", "data/metadata.json", "data/main_data.hdf5"])
def test_a_link_in_a_dataset_is_not_followed(tmp_path, place):
    write_minari(tmp_path / "other-v0", walk())
    path = write_minari(tmp_path / "log-v0", walk())
    linked(path / place, tmp_path / "other-v0" / place)
    with pytest.raises(UserError, match="is a link"):
        open_source(str(path))


@pytest.mark.parametrize(
    "place", ["meta", "meta/info.json", "data", "data/chunk-000", "data/chunk-000/file-000.parquet"]
)
def test_a_link_in_a_dataset_of_frames_is_not_followed(tmp_path, place):
    write_lerobot(tmp_path / "other", walk())
    path = write_lerobot(tmp_path / "log", walk())
    linked(path / place, tmp_path / "other" / place)
    with pytest.raises(UserError, match="is a link"):
        open_source(str(path))


def test_a_huge_text_is_not_read_whole(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)
    tracemalloc.start()
    with pytest.raises(UserError, match="larger than 1 MiB"):
        bounded_bytes(tmp_path / "config.json", MEBIBYTE)
    with pytest.raises(UserError, match="larger than 16 MiB"):
        RunDirectory.open(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MEBIBYTE


def test_a_long_tensor_header_is_refused(tmp_path):
    path = write_run(tmp_path / "run", walk())
    checkpoint = RunDirectory.open(path).latest()
    with checkpoint.location("state.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 2**26) + b"{" + b" " * 100)
        file.truncate(2**27)
    with pytest.raises(UserError, match="header of 67,108,864 bytes"):
        checkpoint.arrays()


# Datasets that promise more than they hold.


def npy(header, data):
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def repacked(path, **members):
    """The archive with some members replaced."""
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (kept | members).items():
            archive.writestr(name, data)
    return path


HEADERS = {
    "nested": "(" * 9_000,
    "call": "{'descr': __import__('os').name, 'fortran_order': False, 'shape': (20, 2)}",
    "record": "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (20, 2)}",
    "object": "{'descr': '|O', 'fortran_order': False, 'shape': (20, 2)}",
    "negative": "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2)}",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
def test_an_arrays_header_is_not_evaluated(tmp_path, header):
    path = write_npz(tmp_path / "log.npz", walk())
    repacked(path, **{"action.npy": npy(header, bytes(160))})
    with pytest.raises(UserError, match=r"log\.npz"):
        open_source(str(path))


def test_numpys_headers_are_read(tmp_path):
    columns = {k: v.astype(v.dtype.newbyteorder(">")) for k, v in walk().items()}
    path = write_npz(tmp_path / "log.npz", columns)
    found = np.concatenate([chunk.state for chunk in open_source(str(path)).chunks()])
    np.testing.assert_array_equal(found, walk()["state"])


def zeros(rows, dims=2):
    states = {name: np.zeros((rows, dims), np.float32) for name in ("state", "action")}
    return states | {"next_state": states["state"], "episode": np.zeros(rows, np.int64)}


def bomb_npz(folder):
    path = folder / "log.npz"
    np.savez_compressed(path, **zeros(10**6))
    return path


def bomb_parquet(folder):
    column = pa.repeat(pa.scalar([0.0, 0.0], pa.list_(pa.float32())), 10**6)
    table = dict.fromkeys(("state", "action", "next_state"), column)
    pq.write_table(pa.table(table | {"episode": pa.repeat(0, 10**6)}), folder / "log.parquet")
    return folder / "log.parquet"


def bomb_minari(folder):
    path = write_minari(folder / "log-v0", walk(episodes=1))
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        for name, rows in (("observations", 10**12 + 1), ("actions", 10**12)):
            del file[f"episode_0/{name}"]
            file.create_dataset(f"episode_0/{name}", (rows, 2), "f4", chunks=(64, 2))
        del file["episode_0/rewards"], file["episode_0/terminations"]
    return path


def bomb_lerobot(folder):
    path = write_lerobot(folder / "log", walk(episodes=1, state_dim=1, action_dim=1))
    names = ("observation.state", "action", "episode_index", "frame_index")
    table = pa.table(dict.fromkeys(names, pa.repeat(0, 10**6)))
    pq.write_table(table, path / "data" / "chunk-000" / "file-000.parquet")
    info = json.loads((path / "meta" / "info.json").read_text())
    (path / "meta" / "info.json").write_text(json.dumps(info | {"total_frames": 10**6}))
    return path


@pytest.mark.parametrize("bomb", [bomb_npz, bomb_parquet, bomb_minari, bomb_lerobot])
def test_a_bomb_is_refused_before_it_goes_off(tmp_path, bomb):
    path = bomb(tmp_path)
    assert sum(f.stat().st_size for f in (path, *path.rglob("*")) if f.is_file()) < 200_000
    tracemalloc.start()
    with pytest.raises(UserError, match="times its own size"):
        open_source(str(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MEBIBYTE


def replaced(name, **options):
    def edit(file):
        del file[name]
        file.create_dataset(name, **options)

    return edit


def endless(file):
    """Groups in groups, two ways down at each of 40 levels."""
    del file["episode_0/observations"]
    group = file["episode_0"].create_group("observations")
    for _ in range(40):
        inner = group.create_group("a")
        group["b"] = inner
        group = inner
    group["x"] = np.zeros((6, 3))


def soft(file):
    file.move("episode_0/actions", "episode_0/hidden")
    file["episode_0/actions"] = h5py.SoftLink("/episode_0/hidden")


def virtual(file):
    del file["episode_0/actions"]
    layout = h5py.VirtualLayout((5, 2), "f4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (5, 2))
    file.create_virtual_dataset("episode_0/actions", layout)


def many(file):
    del file["episode_0/observations"]
    group = file["episode_0"].create_group("observations")
    for i in range(1_100):
        group[f"{i:04d}"] = np.zeros((6, 1), "f4")


EDITS = {
    "soft link": (soft, "is a link"),
    "external storage": (
        replaced("episode_0/actions", shape=(5, 2), dtype="f4", external=[("/etc/passwd", 0, 40)]),
        "must lie in this file",
    ),
    "virtual": (virtual, "must lie in this file"),
    "endless": (endless, "at most 8 nested groups"),
    "many": (many, "1 to 1000 arrays"),
    "large pieces": (
        replaced("episode_0/actions", shape=(5, 2**24), dtype="f4", chunks=(5, 2**24)),
        "in pieces of at most",
    ),
    "late": (
        replaced("episode_3/actions", shape=(5, 2**40), dtype="f4", chunks=(1, 64)),
        "they must be equal",
    ),
}


@pytest.mark.parametrize(("edit", "said"), EDITS.values(), ids=EDITS.keys())
def test_a_strange_hdf5_file_is_refused(tmp_path, edit, said):
    path = write_minari(tmp_path / "log-v0", walk())
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        edit(file)
    tracemalloc.start()
    start = time.monotonic()
    with pytest.raises(UserError, match=said):
        list(open_source(str(path)).chunks())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.monotonic() - start < 60
    assert peak < 4 * MEBIBYTE


def test_a_table_that_would_end_the_process_is_named():
    """Found by fuzzing: asked for one column's metadata, Arrow 26 aborts the interpreter."""
    path = Path(__file__).parent / "files" / "histogram.parquet"
    with pytest.raises(UserError, match="histogram"):
        open_source(str(path))


def test_a_library_is_given_no_more_memory_than_is_said():
    with limited_memory(2**28), pytest.raises(MemoryError):
        np.empty(2**30, np.uint8)
    np.empty(2**30, np.uint8)


# Numbers that a run's own files give.

HUGE = [-1, 0, 2**31, 10**30, 10**400, -(10**400), 1e300, float("nan"), float("inf")]
HUGE += [None, "x", [], {}, True]


@settings(max_examples=60)
@given(data=st.data())
def test_any_configuration_is_built_quickly_or_refused(data):
    method = data.draw(st.sampled_from(["fastr", "diff-sr", "sac", "td7", "td3", "block", "tree"]))
    config = json.loads(json.dumps(to_json(preset("walker-walk", method, "laptop"))))
    part = config
    while True:
        name = data.draw(st.sampled_from(sorted(part)))
        if not isinstance(part[name], dict) or data.draw(st.booleans()):
            break
        part = part[name]
    part[name] = data.draw(st.sampled_from(HUGE) | st.integers() | st.text(max_size=8))
    with contextlib.suppress(UserError):
        assert from_json(config).method == config["method"]


def test_seeds_and_layers_have_a_limit():
    config = preset("walker-walk", "sac", "laptop")
    with pytest.raises(UserError, match="at most 1,000"):
        replace(config, seeds=tuple(range(1_001)))
    with pytest.raises(UserError, match="hidden-layers"):
        replace(config.agent, hidden_layers=10**9)
    with pytest.raises(UserError, match="hidden-dim"):
        replace(config.agent, hidden_dim=10**400)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
KEYS = ["next_step", "seconds", "episodes", "returns", "evaluating"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = write_run(tmp_path_factory.mktemp("runs") / "run", walk())
    return read_index(path, 40)


def host(**changes):
    sound = {"next_step": 21, "seconds": 1.5, "episodes": [3], "returns": [0.5]}
    return sound | {"evaluating": False} | changes


@given(changes=st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1), lost=st.sampled_from(KEYS))
def test_any_host_state_of_a_checkpoint_is_sound_or_refused(checkpoint, changes, lost):
    config = preset("walker-walk", "ctrl-sr", "laptop")
    check_host(replace(checkpoint, host=host()), config)
    for saved in (host(**changes), {k: v for k, v in host().items() if k != lost}):
        try:
            check_host(replace(checkpoint, host=saved), config)
        except UserError:
            continue
        assert saved["next_step"] == 21
        assert len(saved["episodes"]) == len(saved["returns"]) == 1


@given(rows=st.lists(st.dictionaries(
    st.sampled_from(["kind", "seed", "frames", "return", "seconds"]),
    st.sampled_from(["evaluation", 0, 5, 0.5, None, float("nan"), 10**400, [], "x"]),
), max_size=5))  # fmt: skip
def test_any_rows_have_a_summary(rows):
    found = summary(rows, (0,))
    assert found["seeds"][0]["evaluations"] <= len(rows)


def test_repeated_ranges_do_not_add_up():
    text = "a=" + ",".join(["0-9999"] * 10_000) + "|b=0"
    tracemalloc.start()
    with pytest.raises(UserError, match="twice"):
        anatomy.parse(text, 10_000, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MEBIBYTE


@given(text=st.text("abdeilnpqrty=0123456789.:+-@ \u0663|;,", max_size=40))
def test_any_shift_and_any_groups_are_understood_or_refused(text):
    with contextlib.suppress(UserError):
        for shift in shifts.draw(text, 3):
            assert shift(np.zeros(3, np.float32)).shape == (3,)
    with contextlib.suppress(UserError):
        found = anatomy.parse(text, 3, 2)
        entries = [sorted(e for group in side for e in group.entries) for side in found]
        assert entries == [[0, 1, 2], [0, 1]]


def test_a_terminal_is_only_told_what_it_can_show(tmp_path, capsys):
    path = write_run(tmp_path / "run", walk())
    config = json.loads((path / "config.json").read_text())
    config["train"]["method"] = "\x1b]0;owned\x07\u202e" + "x" * 10**6
    (path / "config.json").write_text(json.dumps(config))
    assert run(["eval", str(path)]) == 2
    said = capsys.readouterr().err
    assert not {"\x1b", "\x07", "\u202e"} & set(said)
    assert len(said) < 5_000
