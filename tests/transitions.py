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


def write_lerobot(path, columns, *, version="v3.0", **scalars):
    """A LeRobot dataset: an episode per file (v2.1) or two, and scalars of every frame.

    The state's last coordinate, if it is not the only one, is that of the environment.
    """
    frames = [frames_of(columns, number) for number in np.unique(columns["episode"])]
    ends = np.cumsum([len(part["frame_index"]) for part in frames])
    for part, end in zip(frames, ends, strict=True):
        rows = slice(end - len(part["frame_index"]), end)
        part |= {name.replace("_", "."): values[rows] for name, values in scalars.items()}
    form = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    groups = [frames[i : i + 2] for i in range(0, len(frames), 2)]
    if version < "v3":
        form = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        groups = [[part] for part in frames]
    for i, group in enumerate(groups):
        numbers = {"episode_chunk": i // 2, "episode_index": i}
        file = path / form.format(**numbers, chunk_index=i // 2, file_index=i % 2)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(map(table_of, group)), file)
    info = {
        "codebase_version": version,
        "fps": 10,
        "total_frames": int(ends[-1]),
        "total_episodes": len(frames),
        "data_path": form,
        "features": {
            name: {"dtype": str(values.dtype), "shape": [*values.shape[1:]] or [1], "names": None}
            for name, values in frames[0].items()
        }
        | {"observation.images.top": {"dtype": "video", "shape": [3, 96, 96]}},
    }
    (path / "meta").mkdir()
    (path / "meta" / "info.json").write_text(json.dumps(info))
    return path


def frames_of(columns, number):
    """An episode's observations, one more than its transitions; the last action leads nowhere."""
    rows = columns["episode"] == number
    states = np.concatenate([columns["state"][rows], columns["next_state"][rows][-1:]])
    actions = np.concatenate([columns["action"][rows], columns["action"][rows][-1:]])
    cut = max(1, states.shape[1] - 1)
    parts = {"observation.state": states[:, :cut], "observation.environment_state": states[:, cut:]}
    if cut == states.shape[1]:
        del parts["observation.environment_state"]
    count = len(states)
    index = {"episode_index": np.full(count, number), "frame_index": np.arange(count)}
    return parts | {"action": actions} | index


def table_of(frames):
    """As LeRobot stores them: a feature of one number is a number, a longer one a list."""
    return pa.table(
        {
            name: values.ravel()
            if values.ndim == 1 or values.shape[1] == 1
            else pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
            for name, values in frames.items()
        }
    )


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
