"""Minari's format: one HDF5 group per episode, and metadata.json in the same directory.

h5py reads and writes it. The minari package would add the place of installed datasets (one path)
and downloads, and it follows links to other files and bounds no size.
"""

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from jaxtyping import Float32

from fastr.core import EnvSpec, UserError, counted, write_errors
from fastr.data.dataset import NUMBERS, Chunk, Column, Source, describe, float32
from fastr.runs import made, refuse_used
from fastr.runs.untrusted import json_object, reading, require_own

DATA, METADATA, PROVENANCE = "main_data.hdf5", "metadata.json", "fastr_provenance"
EPISODE = re.compile(r"episode_(0|[1-9][0-9]{0,17})")
NAMES = {
    "state": "observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminations",
}
DEEPEST, MOST_ARRAYS = 8, 1_000
"""Levels of dictionaries in an observation, and arrays in all of them."""
CHUNK_BYTES = 2**25
"""Largest piece of an array that HDF5 decompresses at once."""
MINARI_VERSION = "0.5.4"
"""The release whose format is written."""
SPARE_BYTES = 2**26
"""Disk space left free: HDF5 does not survive a failed write, and writes more than the arrays."""


class Minari(Source):
    """A Minari dataset's directory, or the data directory inside it."""

    def __init__(self, path: Path):
        self.path = path
        folder = path if (path / METADATA).is_file() else path / "data"
        require_own((path / "data", folder / METADATA, folder / DATA))
        metadata = read_metadata(folder / METADATA)
        origin = metadata.get(PROVENANCE)
        origin = origin if isinstance(origin, dict) else {}
        self._file = folder / DATA
        with reading(self._file), h5py.File(self._file, "r") as file:
            names = [name for name in map(str, file) if EPISODE.fullmatch(name)]
            if not names:
                raise UserError(f"{self._file} is empty: it has no group episode_0.")
            self._episodes = sorted(names, key=lambda name: int(name.removeprefix("episode_")))
            first = own(self._file, file, self._episodes[0])
            present = set(first) if isinstance(first, h5py.Group) else set()
            self._roles = [r for r in NAMES if r in ("state", "action") or NAMES[r] in present]
            self.about = describe(
                self._file,
                path.name if path.name != "data" else path.parent.name,
                self._headers(file),
                bounds=box_bounds(self._file, metadata.get("action_space")),
                task=str(origin["task"]) if "task" in origin else None,
                provenance=origin,
            )

    def _headers(self, file: Any) -> dict[str, Column]:
        """The columns of all episodes together; UserError unless all have the same widths."""
        widths, rows = {}, 0
        for name in self._episodes:
            parts = self._parts(file, name)
            found = {role: sum(math.prod(a.shape[1:]) for a in parts[role]) for role in parts}
            widths = widths or found
            for role, width in widths.items():
                if found[role] != width:
                    raise UserError(
                        f"{self._file}: column {NAMES[role]}, {name} has "
                        f"{counted(found[role], 'coordinate')} and {self._episodes[0]} has "
                        f"{width}; they must be equal."
                    )
            rows += parts["action"][0].shape[0]
        headers = {r: Column(NAMES[r], (rows, widths[r]), np.dtype("f4")) for r in widths}
        headers["next_state"] = headers["state"]._replace(name="observations (one step later)")
        return headers | {"episode": Column("the episode's group", (rows,), np.dtype("i8"))}

    def _parts(self, file: Any, name: str) -> dict[str, list[Any]]:
        """The arrays of an episode; UserError unless it has one more observation than actions."""
        group = own(self._file, file, name)
        parts = {role: arrays(self._file, group, NAMES[role]) for role in self._roles}
        steps = parts["action"][0].shape[0]
        for role in parts:
            for array in parts[role]:
                if array.shape[0] != steps + (role == "state"):
                    raise UserError(
                        f"{self._file}: {name} has {array.shape[0]} {NAMES[role]} for "
                        f"{counted(steps, 'action')}; Minari stores one more observation."
                    )
        return parts

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, episode by episode."""
        with reading(self._file), h5py.File(self._file, "r") as file:
            for number, name in enumerate(self._episodes):
                parts = self._parts(file, name)
                steps = parts["action"][0].shape[0]
                for first in range(0, steps, self.rows_at_once):
                    last = min(steps, first + self.rows_at_once)
                    found = {r: joined(parts[r], first, last + (r == "state")) for r in parts}
                    states = found.pop("state")
                    found |= {"episode": np.full(last - first, number)}
                    found |= {"state": states[:-1], "next_state": states[1:]}
                    yield Chunk(**found, label=f"{name} step", first=first)


def is_minari(path: Path) -> bool:
    """Whether a directory holds a Minari dataset."""
    return any((folder / METADATA).is_file() for folder in (path, path / "data"))


def installed(identifier: str) -> Path:
    """Where Minari keeps the dataset of this name (D4RL/door/human-v2)."""
    root = os.environ.get("MINARI_DATASETS_PATH") or os.path.expanduser("~/.minari/datasets")
    return Path(root) / identifier


def read_metadata(path: Path) -> dict[str, Any]:
    """Content of metadata.json; UserError unless it describes an HDF5 dataset."""
    metadata = json_object(path)
    if (form := metadata.get("data_format", "hdf5")) != "hdf5":
        raise UserError(
            f"{path} gives data_format {form!r:.40}; only hdf5 is read: write the dataset with "
            'data_format="hdf5".'
        )
    return metadata


def own(path: Path, group: Any, name: str) -> Any:
    """A group's member that lies in this file itself; links are not followed."""
    link = group.get(name, getlink=True) if isinstance(group, h5py.Group) else None
    if link is None:
        raise UserError(f"{path}: {group.name} has no group or array {name}.")
    if not isinstance(link, h5py.HardLink):
        raise UserError(f"{path}: {group.name}/{name} is a link; only data in this file is read.")
    return group[name]


def arrays(path: Path, group: Any, name: str, depth: int = 0) -> list[Any]:
    """The arrays below a name, those of a dictionary in the order of their keys.

    Groups may contain one another many times over: without bounds a small file is an endless tree.
    """
    member, place = own(path, group, name), f"{path}: {group.name}/{name}"
    if isinstance(member, h5py.Group):
        found: list[Any] = []
        for key in sorted(member) if depth < DEEPEST else ():
            found += arrays(path, member, key, depth + 1)
            if len(found) > MOST_ARRAYS:
                break
        if not 1 <= len(found) <= MOST_ARRAYS:
            raise UserError(
                f"{place} must have 1 to {MOST_ARRAYS} arrays, in at most {DEEPEST} nested groups."
            )
        return found
    if not isinstance(member, h5py.Dataset) or not member.shape or member.dtype.kind not in NUMBERS:
        raise UserError(f"{place} is not an array of plain numbers.")
    piece = math.prod(member.chunks or ()) * member.dtype.itemsize
    if member.is_virtual or member.external or piece > CHUNK_BYTES:
        raise UserError(
            f"{place} must lie in this file, in pieces of at most {CHUNK_BYTES:,} bytes."
        )
    return [member]


def joined(parts: list[Any], first: int, last: int) -> Float32[np.ndarray, "rows numbers"]:
    """These rows of all arrays side by side."""
    rows = [float32(part[first:last]).reshape(last - first, -1) for part in parts]
    return np.concatenate(rows, axis=1)


def box_bounds(path: Path, space: Any) -> tuple[Any, Any] | None:
    """The bounds of a serialised Box; None if no action space is recorded."""
    if space is None:
        return None
    # A whole number may be too large for a float; parsed as a float it is infinite.
    box = json.loads(space, parse_int=float)
    if not isinstance(box, dict) or box.get("type") != "Box":
        raise UserError(f"{path} has an action space that is not a Box; real numbers are needed.")
    return box.get("low"), box.get("high")


class Episode(NamedTuple):
    """One episode: one more observation than actions."""

    observations: Float32[np.ndarray, "steps_and_one state"]
    actions: Float32[np.ndarray, "steps action"]
    rewards: Float32[np.ndarray, " steps"]
    terminated: bool
    """Whether the last observation is terminal; otherwise the episode was truncated."""
    seed: int | None
    """The seed of the environment's reset, if it is known."""


class MinariWriter:
    """Writes episodes one by one; the dataset is complete when the writer closes without error."""

    def __init__(self, path: Path, spec: EnvSpec, about: dict[str, Any]):
        self.path, self.spec, self.about = path, spec, about
        self.episodes = self.steps = 0
        refuse_used(path)
        self._folders = contextlib.ExitStack()
        self._folders.enter_context(made(path / "data"))
        with write_errors(path):
            self._file = h5py.File(path / "data" / DATA, "w", track_order=True)

    def add(self, episode: Episode) -> None:
        """Write one episode."""
        steps = len(episode.actions)
        size = sum(array.nbytes for array in episode[:3])
        if shutil.disk_usage(self.path).free < size + SPARE_BYTES:
            raise UserError(f"{self.path} cannot be written: its disk is full.")
        ends = np.zeros(steps, bool)
        ends[-1] = True
        group = self._file.create_group(f"episode_{self.episodes}")
        group.attrs.update({"id": self.episodes, "total_steps": steps})
        if episode.seed is not None:
            group.attrs["seed"] = episode.seed
        for name, values in (
            ("observations", episode.observations),
            ("actions", episode.actions),
            ("rewards", episode.rewards),
            ("terminations", ends & episode.terminated),
            ("truncations", ends & (not episode.terminated)),
        ):
            group.create_dataset(name, data=values)
        self.episodes += 1
        self.steps += steps

    def _complete(self) -> None:
        """Write the metadata, without which the directory is no dataset."""
        size = (self.path / "data" / DATA).stat().st_size
        metadata = {
            "dataset_id": dataset_id(self.path),
            "total_episodes": self.episodes,
            "total_steps": self.steps,
            "data_format": "hdf5",
            "observation_space": box(self.spec.state_dim, float("inf")),
            "action_space": box(self.spec.action_dim, 1.0),
            "minari_version": MINARI_VERSION,
            "dataset_size": round(size / 1e6, 1),
            **self.about,
        }
        (self.path / "data" / METADATA).write_text(json.dumps(metadata, indent=1))

    def __enter__(self) -> "MinariWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._file.close()
        if kind is None:
            self._complete()
        else:
            # Half a dataset cannot be read, and would prevent writing a whole one.
            (self.path / "data" / DATA).unlink(missing_ok=True)
        self._folders.__exit__(kind, *error)


def dataset_id(path: Path) -> str:
    """A name that Minari accepts, from the directory's: letters, digits, a version at the end."""
    stem, _, version = path.name.rpartition("-v")
    if not (stem and version.isdecimal()):
        stem, version = path.name, "0"
    return f"{re.sub(r'[^0-9A-Za-z_-]+', '-', stem).strip('-') or 'dataset'}-v{version}"


def box(size: int, bound: float) -> str:
    """A float32 Box of this size in [-bound, bound], as Minari serialises it."""
    space = {"type": "Box", "dtype": "float32", "shape": [size]}
    return json.dumps(space | {"low": [-bound] * size, "high": [bound] * size})
