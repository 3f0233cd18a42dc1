"""Datasets: every format comes back as it was written, and bad data is named before training."""

import contextlib
import json
import pwd
import re
import shutil
import tempfile
import zipfile
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
from fastr.data import base
from fastr.data.collect import from_replay
from fastr.data.columns import NAMES, column_names, numbered
from fastr.data.minari_writing import MinariWriter, dataset_id
from fastr.data.opening import open_source
from fastr.data.parquet import wide_columns
from fastr.data.store import spool
from fastr.runs.directory import RunDirectory
from fastr.training.config import from_json
from fastr.training.state import saved_cohort
from transitions import episodes_of, walk, write_minari, write_npz, write_parquet, write_run

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
    "run": lambda folder, columns: write_run(folder / "run", columns),
}


def loaded(path, folder, *, observed=False):
    """The store of a dataset, and its rows by column."""
    advanced = []
    store = spool(
        open_source(str(path)),
        folder / "rows",
        observed_bounds=observed,
        advance=advanced.append,
    )
    assert sum(advanced) == len(store.rows)
    spec = store.about.spec
    ends = (spec.state_dim, spec.state_dim + spec.action_dim)
    state, action, next_state = np.split(np.array(store.rows), ends, axis=1)
    found = {"state": state, "action": action, "next_state": next_state, "episode": store.episodes}
    return store, found


def assert_same(found, columns):
    for name in ("state", "action", "next_state"):
        np.testing.assert_array_equal(found[name], columns[name])
    assert found["episode"].tolist() == columns["episode"].tolist()


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
        patch.setattr(base, "CHUNK_ROWS", chunk)
        _, found = loaded(write(Path(name), columns), Path(name))
        assert_same(found, columns)


def test_a_run_holds_every_seeds_transitions(tmp_path):
    columns = walk(episodes=3)
    store, found = loaded(write_run(tmp_path / "run", columns, seeds=2), tmp_path)
    assert_same(
        found,
        {
            name: np.concatenate([values, values + (3 if name == "episode" else 0)])
            for name, values in columns.items()
        },
    )
    assert (store.about.task, store.about.provenance["method"]) == ("walker-walk", "ctrl-sr")


def test_a_replay_is_collected_into_a_dataset(tmp_path):
    columns = walk(episodes=3, steps=4)
    run = write_run(tmp_path / "run", columns, seeds=2)
    result = from_replay(run, tmp_path / "copy-v0")
    assert (result["episodes"], result["transitions"]) == (6, 24)
    _, direct = loaded(run, tmp_path)
    store, copied = loaded(tmp_path / "copy-v0", tmp_path)
    assert_same(copied, direct)
    origin = store.about.provenance
    assert origin["run"] == str(run)
    assert origin["policy"] == "replay"
    assert origin["frames"] == RunDirectory.open(run).latest().frames
    assert origin["collected_by"]["fastr"]


def test_minari_reads_what_is_written_here(tmp_path):
    columns = walk()
    dataset = minari.MinariDataset(write_minari(tmp_path / "log-v3", columns) / "data")
    assert (dataset.id, dataset.total_episodes, dataset.total_steps) == ("log-v3", 4, 20)
    for ours, theirs in zip(episodes_of(columns), dataset.iterate_episodes(), strict=True):
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
    store, found = loaded(tmp_path / "theirs", tmp_path)
    assert_same(found, columns)
    assert (store.action_low.tolist(), store.action_high.tolist()) == ([-1, -2], [1, 2])


def test_installed_minari_datasets_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_minari(tmp_path / "team" / "robot-v2", walk())
    assert open_source("team/robot-v2").about.rows == 20
    with pytest.raises(UserError, match="does not exist"):
        open_source("../robot-v2")


def test_a_user_without_a_home_has_no_installed_datasets(monkeypatch):
    monkeypatch.delenv("MINARI_DATASETS_PATH", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(UserError, match="team/robot-v2 does not exist"):
        open_source("team/robot-v2")


@given(name=st.text(st.characters(codec="utf-8", exclude_characters="/\0"), max_size=12))
def test_dataset_ids_are_minaris(name):
    assert minari.dataset.minari_dataset.parse_dataset_id(dataset_id(Path("x", name)))


def test_bounds_come_from_the_file_or_from_the_data(tmp_path):
    columns = walk()
    columns["action"] = columns["action"] * 3.0
    ends = {"action_low": np.full(2, -3.0), "action_high": np.full(2, 3.0)}
    store, _ = loaded(write_npz(tmp_path / "a.npz", columns | ends), tmp_path)
    assert (store.action_low.tolist(), store.action_high.tolist()) == ([-3, -3], [3, 3])
    bounds = {"low": [-3, -3], "high": [3, 3.5]}
    path = write_parquet(tmp_path / "a.parquet", columns, bounds=bounds)
    store, _ = loaded(path, tmp_path)
    assert (store.action_low.tolist(), store.action_high.tolist()) == ([-3, -3], [3, 3.5])
    path = write_npz(tmp_path / "b.npz", columns)
    store, _ = loaded(path, tmp_path, observed=True)
    np.testing.assert_array_equal(store.action_low, columns["action"].min(axis=0))
    np.testing.assert_array_equal(store.action_high, columns["action"].max(axis=0))


def test_bounds_beyond_all_numbers_are_no_range(tmp_path):
    path = write_minari(tmp_path / "log-v0", walk())
    metadata = path / "data" / "metadata.json"
    content = json.loads(metadata.read_text())
    space = json.loads(content["action_space"]) | {"high": [10**400] * 2}
    metadata.write_text(json.dumps(content | {"action_space": json.dumps(space)}))
    table = write_parquet(
        tmp_path / "a.parquet", walk(), bounds={"low": [-1, -1], "high": [10**400] * 2}
    )
    for dataset in (path, table):
        with pytest.raises(UserError, match="no finite range"):
            base.require_bounds(open_source(str(dataset)))


def changed(**changes):
    return walk() | changes


def with_value(name, row, column, value):
    columns = walk()
    columns[name] = columns[name].copy()
    columns[name][row, column] = value
    return columns


BAD_COLUMNS = {
    "no action": ({k: v for k, v in walk().items() if k != "action"}, ["no column action"]),
    "no episode": (
        {k: v for k, v in walk().items() if k != "episode"},
        ["no column episode", "marks"],
    ),
    "two names": (changed(observations=walk()["state"]), ["state", "observations", "keep one"]),
    "nan": (with_value("state", 7, 1, np.nan), ["column state, row 7, coordinate 1", "nan"]),
    "infinite": (with_value("next_state", 3, 0, np.inf), ["column next_state, row 3", "inf"]),
    "too large": (
        changed(state=np.full((20, 3), 1e300)),
        ["column state, row 0, coordinate 0", "inf in float32", "smaller than 3.4e38"],
    ),
    "outside": (with_value("action", 19, 1, 1.5), ["column action, row 19", "1.5", "[-1, 1]"]),
    "flat": (changed(action=np.zeros(20)), ["column action", "(20,)", "one coordinate is (20, 1)"]),
    "short": (changed(action=walk()["action"][:-1]), ["column action", "19", "20"]),
    "other size": (changed(next_state=np.zeros((20, 4))), ["column next_state", "4", "3"]),
    "no coordinates": (changed(action=np.zeros((20, 0))), ["column action", "(20, 0)"]),
    "text": (changed(action=np.full((20, 2), "a")), ["column action", "numbers"]),
    "objects": (changed(action=np.full((20, 2), None)), ["column action", "numbers"]),
    "fractions": (
        changed(episode=np.linspace(0, 1, 20)),
        ["column episode", "float64", "as integers"],
    ),
    "empty": ({k: v[:0] for k, v in walk().items()}, ["empty"]),
    "by column": (changed(state=np.asfortranarray(walk()["state"])), ["column state", "Fortran"]),
    "one bound": (changed(action_low=np.zeros(2)), ["action_low alone"]),
    "short bounds": (changed(action_low=np.zeros(1), action_high=np.ones(1)), ["2 numbers"]),
}


@pytest.mark.parametrize(("columns", "named"), BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys())
def test_bad_arrays_are_named(columns, named, tmp_path):
    path = write_npz(tmp_path / "log.npz", columns)
    with pytest.raises(UserError) as said:
        loaded(path, tmp_path)
    for words in (str(path), *named):
        assert words in str(said.value)


def test_what_a_table_lacks_is_listed_beside_the_columns_it_has(tmp_path):
    columns = {name: np.zeros(20) for name in ("state_0", "state_1", "x")}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    with pytest.raises(UserError, match=r"no column action.*also action_0") as said:
        open_source(str(tmp_path / "log.parquet"))
    assert str(said.value).endswith("the file has state_0, state_1, x.")


def bad_tables():
    good = walk()
    lists = {name: pa.array(list(good[name])) for name in ("state", "action", "next_state")}
    episode = {"episode": pa.array(good["episode"])}
    ragged = pa.array([[1.0, 2.0]] * 19 + [[1.0]])
    holes = pa.array([[1.0, None]] * 20)
    return {
        "missing": ({k: v for k, v in (lists | episode).items() if k != "state"}, ["state"]),
        "ragged": (lists | episode | {"action": ragged}, ["column action, row 19", "1", "2"]),
        "null number": (lists | episode | {"action": holes}, ["column action, row 0"]),
        "null": (lists | {"episode": pa.array([None] + [1] * 19)}, ["column episode, row 0"]),
        "text": (lists | episode | {"action": pa.array(["a"] * 20)}, ["column action", "numbers"]),
        "scalar": (lists | episode | {"action": pa.array([0.1] * 20)}, ["action", "list"]),
        "empty list": (
            lists | episode | {"action": pa.array([[]] * 20, pa.list_(pa.float32()))},
            ["column action, row 0"],
        ),
        "empty": ({k: v[:0] for k, v in (lists | episode).items()}, ["empty"]),
        "fraction": (lists | {"episode": pa.array([0.5] * 20)}, ["column episode", "whole"]),
    }


@pytest.mark.parametrize(("table", "named"), bad_tables().values(), ids=bad_tables().keys())
def test_bad_tables_are_named(table, named, tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(table), path)
    with pytest.raises(UserError) as said:
        loaded(path, tmp_path)
    for words in (str(path), *named):
        assert words in str(said.value)


def edit_minari(path, edit):
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        edit(file)


def set_value(file):
    file["episode_2/observations"][4, 1] = np.nan


def shorten(file):
    values = file["episode_1/actions"][:-1]
    del file["episode_1/actions"]
    file["episode_1/actions"] = values


def link(file):
    del file["episode_1/actions"]
    file["episode_1/actions"] = h5py.ExternalLink("/etc/hostname", "/")


def rename(file):
    file.move("episode_0/actions", "episode_0/acts")


def widen(file):
    values = np.zeros((5, 9))
    del file["episode_3/actions"]
    file["episode_3/actions"] = values


def words(file):
    del file["episode_1/actions"]
    file["episode_1/actions"] = ["a"] * 5


BAD_EPISODES = {
    "nan": (set_value, ["observations", "episode_2 step 4, coordinate 1", "nan"]),
    "short": (shorten, ["episode_1", "6 observations for 4 actions"]),
    "link": (link, ["episode_1/actions", "link"]),
    "missing": (rename, ["episode_0", "actions"]),
    "wide": (widen, ["actions", "episode_3", "9", "2"]),
    "words": (words, ["episode_1/actions", "numbers"]),
    "empty": (lambda file: [file.pop(name) for name in list(file)], ["empty"]),
}


@pytest.mark.parametrize(("edit", "named"), BAD_EPISODES.values(), ids=BAD_EPISODES.keys())
def test_bad_episodes_are_named(edit, named, tmp_path):
    path = write_minari(tmp_path / "log-v0", walk())
    edit_minari(path, edit)
    with pytest.raises(UserError) as said:
        loaded(path, tmp_path)
    for part in (str(path), *named):
        assert part in str(said.value)


BAD_METADATA = {
    "not json": ("{", "not JSON"),
    "not an object": ("[]", "not a JSON object"),
    "arrow": ({"data_format": "arrow"}, "hdf5"),
    "discrete": ({"action_space": json.dumps({"type": "Discrete", "n": 3})}, "Box"),
    "short box": ({"action_space": json.dumps({"type": "Box", "low": [0], "high": [1]})}, "2"),
    "unbounded": (
        {"action_space": json.dumps({"type": "Box", "low": [-np.inf] * 2, "high": [1, 1]})},
        "--action-scale observed",
    ),
}


@pytest.mark.parametrize(("content", "named"), BAD_METADATA.values(), ids=BAD_METADATA.keys())
def test_bad_metadata_is_named(content, named, tmp_path):
    path = write_minari(tmp_path / "log-v0", walk())
    text = content if isinstance(content, str) else json.dumps(content)
    (path / "data" / "metadata.json").write_text(text)
    with pytest.raises(UserError, match=re.escape(named)):
        base.require_bounds(open_source(str(path)))


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


def test_a_member_longer_than_its_header_is_refused(tmp_path):
    path = write_npz(tmp_path / "log.npz", walk())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["state.npy"] = members["state.npy"].replace(b"(20, 3)", b"(2000000000, 3)")[:-20]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(UserError, match=re.escape(str(path))):
        open_source(str(path))


@given(
    present=st.sets(st.sampled_from([name for names in NAMES.values() for name in names] + ["x"]))
)
def test_each_column_goes_by_exactly_one_name(present):
    path = Path("log.npz")
    matches = {column: present & set(names) for column, names in NAMES.items()}
    if all(len(found) == 1 for found in matches.values()):
        assert column_names(path, present) == {c: found.pop() for c, found in matches.items()}
    else:
        with pytest.raises(UserError, match=r"log\.npz"):
            column_names(path, present)


@given(indices=st.sets(st.integers(0, 12)), others=st.sets(st.text(max_size=3)))
def test_numbered_columns_are_read_in_order_and_never_across_a_gap(indices, others):
    path = Path("log.parquet")
    names = {f"state_{i}" for i in indices} | others | {"state_00", "state_-1", "next_state_0"}
    if indices == set(range(len(indices))):
        assert numbered(path, names, "state") == [f"state_{i}" for i in range(len(indices))]
    else:
        gap = next(i for i in range(14) if i not in indices)
        with pytest.raises(UserError, match=rf"log\.parquet has .* but none state_{gap}:"):
            numbered(path, names, "state")


def test_numbered_columns_go_by_one_name():
    with pytest.raises(UserError, match="both state_0 and observation_0"):
        wide_columns(Path("log.parquet"), ["observation_0", "state_0", "action_0"], "state")


def test_a_tasks_random_transitions_are_collected(tmp_path, capsys):
    out = tmp_path / "pendulum-v0"
    arguments = ["collect", "gym:Pendulum-v1", "--frame-skip", "1", "--transitions", "450"]
    assert run([*arguments, "--seeds", "3", "4", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["transitions"], result["episodes"]) == (450, 4)
    store, found = loaded(out, tmp_path)
    assert store.about.task == "gym:Pendulum-v1"
    assert store.about.provenance["seeds"] == [3, 4]
    assert np.bincount(found["episode"]).tolist() == [200, 200, 25, 25]
    inside = found["episode"][1:] == found["episode"][:-1]
    np.testing.assert_array_equal(found["state"][1:][inside], found["next_state"][:-1][inside])
    assert run([*arguments, "--out", str(out)]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_more_transitions_than_asked_for_are_said_and_the_next_command_is_quoted(tmp_path, capsys):
    out = tmp_path / "d\u00e4 \u00f6-v0"
    arguments = ["collect", "gym:Pendulum-v1", "--frame-skip", "1", "--out", str(out)]
    assert run([*arguments, "--transitions", "51", "--seeds", "0", "1"]) == 0
    said = capsys.readouterr()
    assert "2 seeds play 26 transitions each, which makes 52 where 51 were asked for." in said.err
    assert f"52 transitions in 2 episodes; next, `fastr misfit '{out}'`" in said.out


def test_a_trained_runs_policies_are_collected(tmp_path, capsys):
    sizes = ["--method", "td3", "--hidden-dim", "8", "--batch-size", "8"]
    budget = ["--frames", "300", "--random-frames", "250", "--eval-frames", "300"]
    train = ["train", "gym:Pendulum-v1", "--preset", "quick", "--frame-skip", "1", *sizes, *budget]
    path = tmp_path / "run"
    assert run([*train, "--eval-episodes", "1", "--seeds", "0", "5", "--out", str(path)]) == 0
    _, replay = loaded(path, tmp_path)
    assert np.bincount(replay["episode"]).tolist() == [200, 100, 200, 100]
    stores = {}
    for policy in ("greedy", "exploring"):
        out = tmp_path / f"{policy}-v0"
        arguments = ["collect", str(path), "--policy", policy, "--transitions", "30"]
        assert run([*arguments, "--seeds", "5", "--out", str(out)]) == 0
        stores[policy] = loaded(out, tmp_path)
        assert stores[policy][0].about.provenance["policy"] == policy
    greedy, exploring = (stores[policy][1] for policy in ("greedy", "exploring"))
    # The same fresh episode, and noise from the first action on.
    np.testing.assert_array_equal(greedy["state"][0], exploring["state"][0])
    assert not (replay["state"] == greedy["state"][0]).all(axis=1).any()
    assert np.abs(greedy["action"][0] - exploring["action"][0]).max() > 1e-4
    # Noise that training would have gone on with, not that of its first steps again.
    directory = RunDirectory.open(path)
    cohort, _ = saved_cohort(from_json(directory.config["train"]), directory.latest())
    learner = jax.tree.map(lambda leaf: jnp.asarray(leaf[1]), cohort.learners)
    for i in range(2):
        state, step = jnp.asarray(exploring["state"][i]), jnp.asarray(cohort.steps + i)
        expected = learner.explore(state, step, random_steps=0)
        np.testing.assert_allclose(exploring["action"][i], expected, atol=1e-5)
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
    refused(["collect", str(run_path), "--out", str(out)], "log-v0", "its disk is full")
    assert not out.exists()
