"""Small datasets of transitions for tests, and each format's way to write them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fastr.core import EnvSpec
from fastr.data.minari import Episode, MinariWriter
from fastr.runs.checkpoints import Snapshot
from fastr.runs.directory import RunWriter
from fastr.training.config import preset, to_json


def walk(episodes=4, steps=5, state_dim=3, action_dim=2, seed=0):
    """Columns of episodes in which each state follows from the one before."""
    generator = np.random.default_rng(seed)
    states = generator.normal(size=(episodes, steps + 1, state_dim)).astype(np.float32)
    actions = generator.uniform(-1, 1, size=(episodes, steps, action_dim)).astype(np.float32)
    return {
        "state": states[:, :-1].reshape(-1, state_dim),
        "action": actions.reshape(-1, action_dim),
        "next_state": states[:, 1:].reshape(-1, state_dim),
        "episode": np.repeat(np.arange(episodes), steps),
    }


def write_npz(path, columns, *, compressed=False):
    (np.savez_compressed if compressed else np.savez)(path, **columns)
    return path


def write_parquet(path, columns, *, wide=False, bounds=None):
    table = {"episode": columns["episode"]}
    for name in ("state", "action", "next_state"):
        values = columns[name]
        if wide:
            table |= {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
        else:
            table[name] = list(values)
    metadata = {f"action_{end}": json.dumps(value) for end, value in (bounds or {}).items()}
    pq.write_table(pa.table(table).replace_schema_metadata(metadata or None), path)
    return path


def episodes_of(columns):
    """The columns as Minari's episodes."""
    for number in np.unique(columns["episode"]):
        rows = columns["episode"] == number
        last = columns["next_state"][rows][-1:]
        observations = np.concatenate([columns["state"][rows], last])
        rewards = np.arange(rows.sum(), dtype=np.float32)
        yield Episode(observations, columns["action"][rows], rewards, bool(number % 2), 7)


def write_minari(path, columns):
    spec = EnvSpec(columns["state"].shape[1], columns["action"].shape[1])
    with MinariWriter(path, spec, {"fastr_provenance": {"task": "walker-walk"}}) as writer:
        for episode in episodes_of(columns):
            writer.add(episode)
    return path


def write_run(path, columns, *, seeds=1):
    """A run directory whose replay holds the columns once per seed, in two segments."""
    rows = len(columns["state"])
    scalars = np.ones((rows, 2), np.float32)
    packed = np.concatenate(
        [columns["state"], columns["action"], columns["next_state"], scalars], 1
    )
    replay = np.repeat(packed.astype(np.float32)[:, None], seeds, axis=1)
    config = to_json(preset("walker-walk", "ctrl-sr", "laptop"))
    arrays = {"pending_states": columns["state"][:seeds].astype(np.float32)}
    with RunWriter.create(path, {"train": config, "provenance": {"fastr": "0"}}) as writer:
        half = rows // 2
        for start, end in ((0, half), (half, rows)):
            snapshot = Snapshot(2 * end, arrays, {}, replay[start:end], start, rows)
            writer.begin_save(snapshot, keep=1)
            writer.finish_save()
    return path
