"""Datasets: every format comes back as it was written, and bad data is named before training."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import gymnasium
import h5py
import jax
import jax.numpy as jnp
import minari
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from fastr.cli import run
from fastr.core import EnvSpec, UserError
from fastr.data import dataset, open_source, require_bounds, spool
from fastr.data.collect import from_replay
from fastr.data.minari import MinariWriter, dataset_id
from fastr.runs.directory import RunDirectory
from fastr.training.config import from_json
from fastr.training.state import saved_cohort
from transitions import (
    episodes_of,
    walk,
    write_lerobot,
    write_minari,
    write_npz,
    write_parquet,
    write_run,
)

WRITERS = {
    "npz": lambda folder, columns: write_npz(folder / "log.npz", columns),
    "compressed npz": lambda folder, columns: write_npz(
        folder / "log.npz", columns, compressed=True
    ),
    "parquet of lists": lambda folder, columns: write_parquet(folder / "log.parquet", columns),
    "wide parquet": lambda folder, columns: write_parquet(
        folder / "log.parquet", columns, wide=True
    ),
    "minari": lambda folder, columns: write_minari(folder / "log-v0", columns),
    "lerobot 2.1": lambda folder, columns: write_lerobot(folder / "log", columns, version="v2.1"),
    "lerobot 3.0": lambda folder, columns: write_lerobot(folder / "log", columns),
    "run": lambda folder, columns: write_run(folder / "run", columns),
}


def loaded(path, folder, *, observed=False):
    """A dataset whose every row was read, and reported as read."""
    advanced = []
    source = open_source(str(path))
    require_bounds(source)
    data = spool(source, folder / "rows", observed_bounds=observed, advance=advanced.append)
    assert sum(advanced) == len(data.rows)
    return data


def assert_same(data, columns):
    for name in ("state", "action", "next_state"):
        np.testing.assert_array_equal(getattr(data, name), columns[name])
    assert data.episodes.tolist() == columns["episode"].tolist()


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
@given(
    sizes=st.tuples(*(st.integers(1, 4) for _ in range(4))),
    chunk=st.integers(1, 7),
    seed=st.integers(0, 99),
)
@settings(max_examples=8, deadline=None)
def test_every_format_comes_back_as_written(write, sizes, chunk, seed):
    columns = walk(*sizes, seed=seed)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "CHUNK_ROWS", chunk)
        data = loaded(write(Path(name), columns), Path(name))
        assert_same(data, columns)
        first = np.flatnonzero(np.diff(columns["episode"], prepend=-1))
        assert data.episode_starts.tolist() == first.tolist()


def test_rewards_and_ends_are_read_where_a_format_has_them(tmp_path):
    columns = walk()
    reward = np.tile(np.arange(5, dtype=np.float32), 4)
    terminated = np.zeros(20, bool)
    terminated[[9, 19]] = True
    more = columns | {"rewards": reward.astype(np.float64)[:, None], "terminals": terminated}
    table = {name: list(values) for name, values in columns.items()}
    pq.write_table(
        pa.table(table | {"reward": reward, "terminated": terminated}), tmp_path / "log.parquet"
    )
    for path in (
        write_npz(tmp_path / "log.npz", more),
        tmp_path / "log.parquet",
        write_minari(tmp_path / "log-v0", columns),
    ):
        data = loaded(path, tmp_path)
        assert_same(data, columns)
        np.testing.assert_array_equal(data.reward, reward)
        np.testing.assert_array_equal(data.terminated, terminated)
    data = loaded(write_run(tmp_path / "run", columns), tmp_path)
    assert (data.reward.tolist(), data.terminated.tolist()) == ([1.0] * 20, [False] * 20)
    assert loaded(write_npz(tmp_path / "log.npz", columns), tmp_path).reward is None


def test_a_run_holds_every_seeds_transitions(tmp_path):
    columns = walk(episodes=3)
    data = loaded(write_run(tmp_path / "run", columns, seeds=2), tmp_path)
    twice = {name: np.concatenate([values, values]) for name, values in columns.items()}
    twice["episode"][15:] += 3
    assert_same(data, twice)
    assert (data.about.task, data.about.provenance["method"]) == ("walker-walk", "ctrl-sr")


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_replay_is_collected_into_a_dataset(tmp_path, monkeypatch, chunk):
    run = write_run(tmp_path / "run", walk(episodes=3, steps=4), seeds=2)
    direct = loaded(run, tmp_path)
    monkeypatch.setattr(dataset, "CHUNK_ROWS", chunk)
    result = from_replay(run, tmp_path / "copy-v0")
    assert (result["episodes"], result["transitions"]) == (6, 24)
    copied = loaded(tmp_path / "copy-v0", tmp_path)
    np.testing.assert_array_equal(copied.rows, direct.rows)
    np.testing.assert_array_equal(copied.episodes, direct.episodes)
    origin = copied.about.provenance
    assert (origin["run"], origin["policy"]) == (str(run), "replay")
    assert origin["frames"] == RunDirectory.open(run).latest().frames
    assert origin["collected_by"]["fastr"]


def test_minari_reads_what_is_written_here(tmp_path):
    columns = walk()
    read = minari.MinariDataset(write_minari(tmp_path / "log-v3", columns) / "data")
    assert (read.id, read.total_episodes, read.total_steps) == ("log-v3", 4, 20)
    for ours, theirs in zip(episodes_of(columns), read.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(theirs.observations, ours.observations)
        np.testing.assert_array_equal(theirs.actions, ours.actions)
        np.testing.assert_array_equal(theirs.rewards, ours.rewards)
        assert theirs.terminations.tolist() == [False] * 4 + [ours.terminated]
        assert theirs.truncations.tolist() == [False] * 4 + [not ours.terminated]


def test_what_minari_writes_is_read_here(tmp_path):
    columns = walk(state_dim=3)
    space = gymnasium.spaces.Dict(
        {
            "b": gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64),
            "a": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        }
    )
    actions = gymnasium.spaces.Box(np.array([-1.0, -2.0]), np.array([1.0, 2.0]), dtype=np.float64)
    storage = MinariStorage.new(tmp_path / "theirs", space, actions)
    for ours in episodes_of(columns):
        steps = len(ours.actions)
        storage.update_episodes(
            [
                EpisodeBuffer(
                    observations={"a": ours.observations[:, :2], "b": ours.observations[:, 2:]},
                    actions=list(ours.actions),
                    rewards=list(ours.rewards),
                    terminations=[False] * steps,
                    truncations=[False] * (steps - 1) + [True],
                )
            ]
        )
    data = loaded(tmp_path / "theirs", tmp_path)
    assert_same(data, columns)
    assert (data.action_low.tolist(), data.action_high.tolist()) == ([-1, -2], [1, 2])


def test_installed_minari_datasets_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_minari(tmp_path / "team" / "robot-v2", walk())
    assert open_source("team/robot-v2").about.rows == 20
    with pytest.raises(UserError, match="does not exist"):
        open_source("../robot-v2")


@given(name=st.text(st.characters(codec="utf-8", exclude_characters="/\0"), max_size=12))
def test_dataset_ids_are_minaris(name):
    assert minari.dataset.minari_dataset.parse_dataset_id(dataset_id(Path("x", name)))


def test_bounds_come_from_the_file_or_from_the_data(tmp_path):
    columns = walk()
    columns["action"] = columns["action"] * 3.0
    ends = {"action_low": np.full(2, -3.0), "action_high": np.full(2, 3.5)}
    bounds = {"low": [-3, -3], "high": [3.5, 3.5]}
    for path in (
        write_npz(tmp_path / "a.npz", columns | ends),
        write_parquet(tmp_path / "a.parquet", columns, bounds=bounds),
    ):
        data = loaded(path, tmp_path)
        assert (data.action_low.tolist(), data.action_high.tolist()) == ([-3, -3], [3.5, 3.5])
    data = loaded(write_npz(tmp_path / "b.npz", columns), tmp_path, observed=True)
    np.testing.assert_array_equal(data.action_low, columns["action"].min(axis=0))
    np.testing.assert_array_equal(data.action_high, columns["action"].max(axis=0))


def refused_with(path, folder, *named):
    """The dataset is refused in one sentence that has all these words."""
    with pytest.raises(UserError) as error:
        loaded(path, folder)
    for words in (str(path), *named):
        assert words in str(error.value)


def changed(**changes):
    return walk() | changes


def with_value(name, row, column, value):
    columns = walk()
    columns[name] = columns[name].copy()
    columns[name][row, column] = value
    return columns


def without(name):
    return {key: values for key, values in walk().items() if key != name}


BAD_COLUMNS = {
    "no action": (without("action"), ["no column action", "the file has episode, next_state"]),
    "no episode": (without("episode"), ["no column episode", "docs/misfit.md"]),
    "nan": (with_value("state", 7, 1, np.nan), ["column state, row 7, coordinate 1", "nan"]),
    "too large": (changed(state=np.full((20, 3), 1e300)), ["column state, row 0", "float32"]),
    "bad reward": (changed(reward=np.r_[np.zeros(19), np.nan]), ["column reward, row 19", "nan"]),
    "outside": (with_value("action", 19, 1, 1.5), ["column action, row 19", "1.5", "[-1, 1]"]),
    "flat": (changed(action=np.zeros(20)), ["column action", "(20,)", "one coordinate is (20, 1)"]),
    "short": (changed(action=walk()["action"][:-1]), ["column action", "19", "20"]),
    "other size": (changed(next_state=np.zeros((20, 4))), ["column next_state", "4", "3"]),
    "text": (changed(action=np.full((20, 2), "a")), ["column action", "numbers"]),
    "fractions": (changed(episode=np.linspace(0, 1, 20)), ["column episode", "as integers"]),
    "scattered": (changed(episode=np.arange(20) % 5), ["column episode, row 5", "episode 0"]),
    "empty": ({k: v[:0] for k, v in walk().items()}, ["empty"]),
    "by column": (changed(state=np.asfortranarray(walk()["state"])), ["column state", "Fortran"]),
    "one bound": (changed(action_low=np.zeros(2)), ["action_low alone"]),
}


@pytest.mark.parametrize(("columns", "named"), BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys())
def test_bad_arrays_are_named(columns, named, tmp_path):
    refused_with(write_npz(tmp_path / "log.npz", columns), tmp_path, *named)


def bad_tables():
    good = {name: pa.array(list(values)) for name, values in walk().items()}
    flat = {f"{name}_{i}": np.zeros(20) for name in ("state", "next_state") for i in range(2)}
    flat |= {"episode": good["episode"], "action_0": np.zeros(20)}
    ragged, holes = pa.array([[1.0, 2.0]] * 19 + [[1.0]]), pa.array([[0, 0]] * 19 + [[0, None]])
    return {
        "missing": ({k: v for k, v in good.items() if k != "state"}, ["no column state"]),
        "ragged": (good | {"action": ragged}, ["column action, row 19", "1 coordinate", "2"]),
        "null number": (good | {"action": holes}, ["column action, row 19", "missing"]),
        "text": (good | {"action": pa.array(["a"] * 20)}, ["column action", "numbers"]),
        "empty": ({k: v[:0] for k, v in good.items()}, ["empty"]),
        "fraction": (good | {"episode": pa.array([0.5] * 20)}, ["column episode", "whole"]),
        "gap": (flat | {"action_2": np.zeros(20)}, ["action_0, action_1", "gap"]),
        "lists in parts": (
            flat | {"state_0": good["state"], "state_1": good["state"]},
            ["column state", "numbers"],
        ),
        "two prefixes": (flat | {"obs_0": np.zeros(20)}, ["both state_0 and obs_0"]),
    }


@pytest.mark.parametrize(("table", "named"), bad_tables().values(), ids=bad_tables().keys())
def test_bad_tables_are_named(table, named, tmp_path):
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    refused_with(tmp_path / "log.parquet", tmp_path, *named)


def put(name, values):
    """An edit that replaces one array of a Minari dataset."""

    def edit(file):
        del file[name]
        file[name] = values

    return edit


NANS = np.zeros((6, 3))
NANS[4, 1] = np.nan
BAD_EPISODES = {
    "nan": (put("episode_2/observations", NANS), ["episode_2 step 4, coordinate 1", "nan"]),
    "short": (put("episode_1/actions", np.zeros((4, 2))), ["episode_1", "6 observations for 4"]),
    "link": (put("episode_1/actions", h5py.ExternalLink("/etc/hostname", "/")), ["link"]),
    "wide": (put("episode_3/actions", np.zeros((5, 9))), ["actions, episode_3", "9", "2"]),
    "empty": (lambda file: [file.pop(name) for name in list(file)], ["empty"]),
}


@pytest.mark.parametrize(("edit", "named"), BAD_EPISODES.values(), ids=BAD_EPISODES.keys())
def test_bad_episodes_are_named(edit, named, tmp_path):
    path = write_minari(tmp_path / "log-v0", walk())
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        edit(file)
    refused_with(path, tmp_path, *named)


def space(**changes):
    return {"action_space": json.dumps({"type": "Box", "low": [-1, -1], "high": [1, 1]} | changes)}


BAD_METADATA = {
    "not json": ("{", "metadata.json cannot be read"),
    "arrow": ({"data_format": "arrow"}, "hdf5"),
    "discrete": (space(type="Discrete"), "Box"),
    "unbounded": (space(low=[-np.inf] * 2), "--action-scale observed"),
}


@pytest.mark.parametrize(("content", "named"), BAD_METADATA.values(), ids=BAD_METADATA.keys())
def test_bad_metadata_is_named(content, named, tmp_path):
    path = write_minari(tmp_path / "log-v0", walk())
    text = content if isinstance(content, str) else json.dumps(content)
    (path / "data" / "metadata.json").write_text(text)
    refused_with(path, tmp_path, named)


@pytest.mark.parametrize("chunk", [1, 2, 4, 100])
def test_only_a_success_that_ends_a_recording_is_terminal(tmp_path, monkeypatch, chunk):
    """Episodes of six frames: without success, twice at the end, on the way, on the last frame."""
    monkeypatch.setattr(dataset, "CHUNK_ROWS", chunk)
    success, done = np.zeros((2, 24), bool)
    success[[10, 11, 14, 23]] = done[5::6] = True
    reward, columns = np.arange(24, dtype=np.float32), walk()
    scalars = {"next_reward": reward, "next_success": success, "next_done": done}
    data = loaded(write_lerobot(tmp_path / "log", columns, **scalars), tmp_path)
    assert_same(data, columns)
    assert data.reward.tolist() == [number for number in range(24) if number % 6 < 5]
    assert np.flatnonzero(data.terminated).tolist() == [9]
    columns = {name: data.about.columns[name] for name in ("state", "terminated")}
    joined = "observation.state and observation.environment_state"
    assert columns == {"state": joined, "terminated": "next.success"}


def told(**changes):
    """An edit of meta/info.json, or of a feature in it."""

    def edit(path):
        info = json.loads((path / "meta" / "info.json").read_text())
        for key, value in changes.items():
            (info if key in info else info["features"])[key] = value
        (path / "meta" / "info.json").write_text(json.dumps(info))

    return edit


def frames(name, change):
    """An edit of one column of the second file, whose first row is frame 12."""

    def edit(path):
        file = path / "data" / "chunk-000" / "file-001.parquet"
        table = pq.read_table(file)
        place = table.schema.get_field_index(name)
        pq.write_table(table.set_column(place, name, change(table.column(name).to_pylist())), file)

    return edit


def cut(path):
    file = path / "data" / "chunk-000" / "file-001.parquet"
    file.write_bytes(file.read_bytes()[:-10])


IMAGES = {"observation.images.top": {"dtype": "video", "shape": [3, 96, 96]}}
WIDE = {"dtype": "float32", "shape": [3]}
BAD_FRAMES = {
    "file": (lambda p: (p / "data/chunk-000/file-001.parquet").unlink(), ["12 frames", "24"]),
    "cut": (cut, ["file-001.parquet cannot be read"]),
    "path": (told(data_path="../{x.__class__}.parquet"), ["data_path", "../{x", "it must be"]),
    "no path": (told(data_path=["data"]), ["data_path"]),
    "version": (told(codebase_version="v1.6"), ["codebase_version 'v1.6'", "v3.0"]),
    "count": (told(total_frames=10**400), ["whole numbers"]),
    "episodes": (told(total_episodes=3), ["does not hold the 21 transitions"]),
    "too many": (told(total_episodes=24), ["is empty"]),
    "images": (told(features=IMAGES), ["no feature observation.state", "images are not read"]),
    "shape": (told(action={"shape": [-1]}), ["feature action", "shape"]),
    "width": (told(action=WIDE), ["column action, row 0 has 2 coordinates, not 3"]),
    "one": (frames("action", lambda v: pa.array([0.0] * len(v))), ["column action", "a list"]),
    "text": (frames("action", lambda v: pa.array([["a"] * 2] * len(v))), ["numbers"]),
    "nan": (frames("action", lambda v: pa.array([[0.0, np.nan]] * len(v))), ["episode 2 frame 0"]),
    "gap": (frames("frame_index", lambda v: pa.array([*v[:4], 9, 10, *v[6:]])), ["9 follows 3"]),
    "no time": (frames("frame_index", lambda v: pa.array([np.nan] * len(v))), ["episode 2"]),
}


@pytest.mark.parametrize(("edit", "named"), BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_bad_frames_are_named(edit, named, tmp_path):
    path = write_lerobot(tmp_path / "log", walk())
    edit(path)
    refused_with(path, tmp_path, *named)


@pytest.mark.parametrize("name", ["log.npz", "log.parquet", "log.csv", "nothing", ""])
def test_what_is_no_dataset_is_refused(name, tmp_path):
    for content in (b"", b"PK\x05\x06" + bytes(18), b"PAR1 but not really PAR1"):
        if name.startswith("log"):
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError):
            open_source(str(tmp_path / name))


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
@given(places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8))
@settings(max_examples=12, deadline=None)
def test_damage_is_a_sentence_or_harmless(write, places):
    with tempfile.TemporaryDirectory() as name:
        path = write(Path(name), walk())
        files = [path] if path.is_file() else [f for f in path.rglob("*") if f.stat().st_size]
        for file in files:
            if file.is_file() and file.name != "lock":
                content = bytearray(file.read_bytes())
                for place, value in places:
                    content[int(place * (len(content) - 1))] = value
                file.write_bytes(content)
        # Anything else that is raised fails the test.
        with contextlib.suppress(UserError):
            loaded(path, Path(name))


def test_a_tasks_random_transitions_are_collected(tmp_path, capsys):
    out = tmp_path / "pendulum-v0"
    arguments = ["collect", "gym:Pendulum-v1", "--frame-skip", "1", "--transitions", "450"]
    assert run([*arguments, "--seeds", "3", "4", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["transitions"], result["episodes"]) == (450, 4)
    data = loaded(out, tmp_path)
    assert data.about.task == "gym:Pendulum-v1"
    assert data.about.provenance["seeds"] == [3, 4]
    assert np.bincount(data.episodes).tolist() == [200, 200, 25, 25]
    inside = np.diff(data.episodes) == 0
    np.testing.assert_array_equal(data.state[1:][inside], data.next_state[:-1][inside])
    assert run([*arguments, "--out", str(out)]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_a_trained_runs_policies_are_collected(tmp_path, capsys):
    sizes = ["--method", "td3", "--hidden-dim", "8", "--batch-size", "8"]
    budget = ["--frames", "300", "--random-frames", "250", "--eval-frames", "300"]
    train = ["train", "gym:Pendulum-v1", "--preset", "laptop", "--frame-skip", "1", *sizes, *budget]
    path = tmp_path / "run"
    assert run([*train, "--eval-episodes", "1", "--seeds", "0", "5", "--out", str(path)]) == 0
    replay = loaded(path, tmp_path)
    assert np.bincount(replay.episodes).tolist() == [200, 100, 200, 100]
    starts = np.array(replay.state[replay.episode_starts])
    found = {}
    for policy in ("greedy", "exploring"):
        out = tmp_path / f"{policy}-v0"
        arguments = ["collect", str(path), "--policy", policy, "--transitions", "30"]
        assert run([*arguments, "--seeds", "5", "--out", str(out)]) == 0
        data = loaded(out, tmp_path)
        assert data.about.provenance["policy"] == policy
        found[policy] = np.array(data.state), np.array(data.action)
    (greedy_states, greedy), (states, exploring) = found["greedy"], found["exploring"]
    # The same fresh episode, and noise from the first action on.
    np.testing.assert_array_equal(greedy_states[0], states[0])
    assert not (starts == states[0]).all(axis=1).any()
    assert np.abs(greedy[0] - exploring[0]).max() > 1e-4
    # The noise that training would have continued with, not that of its first steps.
    directory = RunDirectory.open(path)
    cohort, _ = saved_cohort(from_json(directory.config["train"]), directory.latest())
    learner = jax.tree.map(lambda leaf: jnp.asarray(leaf[1]), cohort.learners)
    for i in range(2):
        step = jnp.asarray(cohort.steps + i)
        expected = learner.explore(jnp.asarray(states[i]), step, random_steps=0)
        np.testing.assert_allclose(exploring[i], expected, atol=1e-5)
    capsys.readouterr()
    assert run(["collect", str(path), "--transitions", "9", "--out", str(tmp_path / "x")]) == 2
    assert "written whole" in capsys.readouterr().err


@pytest.mark.parametrize("there", [True, False])
def test_a_stopped_writer_leaves_no_half_dataset(there, tmp_path):
    out = tmp_path / "log-v0"
    if there:
        out.mkdir()
    columns = walk()
    spec = EnvSpec(columns["state"].shape[1], columns["action"].shape[1])
    with contextlib.suppress(KeyboardInterrupt), MinariWriter(out, spec, {}) as writer:
        writer.add(next(episodes_of(columns)))
        raise KeyboardInterrupt
    assert list(tmp_path.rglob("*")) == ([out] if there else [])


def test_a_full_disk_ends_a_collection_with_one_sentence(tmp_path, monkeypatch, refused):
    run_path, out = write_run(tmp_path / "run", walk()), tmp_path / "log-v0"
    full = shutil._ntuple_diskusage(2**40, 2**40, 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    refused(["collect", str(run_path), "--out", str(out)], "log-v0", "GiB are free")
    assert not out.exists()
