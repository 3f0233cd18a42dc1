"""Minari's format, read: one HDF5 group per episode and a metadata file beside it.

Read with h5py alone, so that nothing of Minari needs to be installed; a test reads what Minari
writes.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Float32

from fastr.core import EnvSpec, UserError, counted
from fastr.data.base import About, Chunk, Source, float32, numeric, refuse_bomb
from fastr.runs.untrusted import bounded_bytes, reading, require_own

DATA, METADATA = "main_data.hdf5", "metadata.json"
EPISODE = re.compile(r"episode_(0|[1-9][0-9]{0,17})")
DEEPEST, MOST_LEAVES = 8, 1_000
"""Levels of dictionaries in an observation, and arrays in all of them."""
CHUNK_BYTES = 2**25
"""Of an array's piece that HDF5 decompresses at one stroke."""
PROVENANCE = "fastr_provenance"


class Minari(Source):
    """A Minari dataset's directory, or the data directory inside it."""

    def __init__(self, path: Path):
        self.path = path
        folder = data_folder(path)
        require_own((path / "data", folder / METADATA, folder / DATA))
        metadata = read_metadata(folder)
        self._file = folder / DATA
        self.columns = {
            "state": "observations",
            "action": "actions",
            "next_state": "observations (one step later)",
            "episode": "the episode's group",
        }
        with reading(self._file), h5py.File(self._file, "r") as file:
            self._episodes = episode_names(self._file, file)
            steps = [episode_steps(self._file, file[name]) for name in self._episodes]
            first = file[self._episodes[0]]
            spec = EnvSpec(
                widths(leaves(self._file, first, "observations")),
                widths(leaves(self._file, first, "actions")),
            )
            refuse_bomb(self._file, spec, sum(steps), self._file.stat().st_size)
        provenance = metadata.get(PROVENANCE)
        provenance = provenance if isinstance(provenance, dict) else {}
        self.about = About(
            name=path.name if path.name != "data" else path.parent.name,
            spec=spec,
            rows=sum(steps),
            bounds=box_bounds(self._file, metadata.get("action_space"), spec.action_dim),
            task=str(provenance["task"]) if "task" in provenance else None,
            provenance=provenance,
        )

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, episode by episode."""
        with reading(self._file), h5py.File(self._file, "r") as file:
            for number, name in enumerate(self._episodes):
                group = own(self._file, file, name)
                steps = episode_steps(self._file, group)
                for first in range(0, steps, self.rows_at_once):
                    last = min(steps, first + self.rows_at_once)
                    yield self._chunk(group, name, number, range(first, last))

    def _chunk(self, group: Any, name: str, number: int, rows: range) -> Chunk:
        spec, first, last = self.about.spec, rows.start, rows.stop
        observed, taken = (leaves(self._file, group, c) for c in ("observations", "actions"))
        for column, found, wanted in (
            ("observations", widths(observed), spec.state_dim),
            ("actions", widths(taken), spec.action_dim),
        ):
            if found != wanted:
                raise UserError(
                    f"{self._file}: column {column}, {name} has {counted(found, 'coordinate')} and "
                    f"{self._episodes[0]} has {wanted}; they must be equal."
                )
        states, actions = flat(observed, first, last + 1), flat(taken, first, last)
        episode = np.full(len(rows), number, np.int64)
        return Chunk(states[:-1], actions, states[1:], episode, f"{name} step", first)


def is_minari(path: Path) -> bool:
    """Whether a directory holds a Minari dataset."""
    return any((folder / METADATA).is_file() for folder in (path, path / "data"))


def installed(identifier: str) -> Path:
    """Where Minari keeps the dataset of this name (D4RL/door/human-v2)."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    # Not Path.home(), which raises for a user without one.
    return Path(root or os.path.expanduser("~/.minari/datasets")) / identifier


def data_folder(path: Path) -> Path:
    """The directory with the data of a dataset."""
    return path if (path / METADATA).is_file() else path / "data"


def read_metadata(folder: Path) -> dict[str, Any]:
    """Content of metadata.json; UserError unless it describes an HDF5 dataset."""
    path = folder / METADATA
    try:
        metadata = json.loads(bounded_bytes(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON, so this is not a Minari dataset.") from error
    if not isinstance(metadata, dict):
        raise UserError(f"{path} is not a JSON object, so this is not a Minari dataset.")
    if metadata.get("data_format", "hdf5") != "hdf5":
        raise UserError(
            f"{path} says data_format {metadata['data_format']!r:.40}; only hdf5 is read: write "
            'the dataset with data_format="hdf5".'
        )
    return metadata


def episode_names(path: Path, file: Any) -> list[str]:
    """The groups episode_0, episode_1, ... in order."""
    names = sorted((name for name in file if EPISODE.fullmatch(name)), key=episode_number)
    if not names:
        raise UserError(f"{path} is empty: it has no group episode_0.")
    for name in names:
        if not isinstance(own(path, file, name), h5py.Group):
            raise UserError(f"{path}: {name} is not a group.")
    return names


def episode_number(name: str) -> int:
    """The number of an episode's group."""
    return int(name.removeprefix("episode_"))


def own(path: Path, group: Any, name: str) -> Any:
    """A group's member that lies in this very file; links to other files are not followed."""
    link = group.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        raise UserError(f"{path}: {group.name}/{name} is a link; only data in this file is read.")
    return group[name]


def leaves(path: Path, group: Any, name: str, depth: int = 0) -> list[Any]:
    """The arrays below a name, those of a dictionary in the order of their keys.

    Groups may hold one another many times over: without a bound a small file is an endless tree.
    """
    if name not in group:
        raise UserError(f"{path}: {group.name} has no column {name}.")
    member = own(path, group, name)
    if isinstance(member, h5py.Group):
        found: list[Any] = []
        for key in sorted(member) if depth < DEEPEST else ():
            found += leaves(path, member, key, depth + 1)
            if len(found) > MOST_LEAVES:
                break
        if not 1 <= len(found) <= MOST_LEAVES:
            raise UserError(
                f"{path}: {group.name}/{name} has no array, more than {MOST_LEAVES}, or one below "
                f"more than {DEEPEST} groups."
            )
        return found
    if not isinstance(member, h5py.Dataset) or not numeric(member.dtype) or not member.shape:
        raise UserError(f"{path}: {group.name}/{name} is not an array of plain numbers.")
    if member.is_virtual or member.external:
        raise UserError(f"{path}: {group.name}/{name} lies in another file; copy it into this one.")
    if member.chunks and math.prod(member.chunks) * member.dtype.itemsize > CHUNK_BYTES:
        raise UserError(
            f"{path}: {group.name}/{name} has pieces of more than {CHUNK_BYTES:,} bytes."
        )
    return [member]


def widths(parts: list[Any]) -> int:
    """Coordinates per row, of all parts together."""
    return sum(math.prod(part.shape[1:]) for part in parts)


def episode_steps(path: Path, group: Any) -> int:
    """Transitions of an episode; UserError unless it has one more observation than actions."""
    observations = {leaf.shape[0] for leaf in leaves(path, group, "observations")}
    actions = {leaf.shape[0] for leaf in leaves(path, group, "actions")}
    if len(observations) != 1 or len(actions) != 1:
        raise UserError(f"{path}: {group.name} has parts of different lengths.")
    (seen,), (taken,) = observations, actions
    if seen != taken + 1:
        raise UserError(
            f"{path}: {group.name} has {counted(seen, 'observation')} for "
            f"{counted(taken, 'action')}; Minari stores one more observation than actions."
        )
    return taken


def flat(parts: list[Any], first: int, last: int) -> Float32[np.ndarray, "rows numbers"]:
    """These rows of all parts side by side."""
    rows = [float32(part[first:last]).reshape(last - first, -1) for part in parts]
    return np.concatenate(rows, axis=1)


def box_bounds(
    path: Path, space: object, action_dim: int
) -> tuple[list[float], list[float]] | None:
    """The bounds of a serialised Box; None where no action space is recorded."""
    if space is None:
        return None
    try:
        # A whole number may be too large for a float; as one from the beginning it is infinite.
        box = json.loads(space, parse_int=float) if isinstance(space, str) else {}
    except (ValueError, RecursionError):
        box = {}
    if not isinstance(box, dict) or box.get("type") != "Box":
        raise UserError(f"{path} has an action space that is not a Box; real numbers are needed.")
    low, high = (plain_numbers(box.get(name)) for name in ("low", "high"))
    if len(low) != action_dim or len(high) != action_dim:
        raise UserError(
            f"{path}: the action space's low and high must have "
            f"{counted(action_dim, 'number')} each."
        )
    return low, high


def plain_numbers(value: object, depth: int = 0) -> list[float]:
    """All numbers of a nested list, in order; nothing if there is anything else in it."""
    if isinstance(value, float):
        return [value]
    if not isinstance(value, list) or depth > 8:
        return []
    parts = [plain_numbers(part, depth + 1) for part in value]
    return [number for part in parts for number in part] if all(parts) else []
