"""Minari's format, written: one HDF5 group per episode and a metadata file beside it.

Written with h5py alone, so that nothing of Minari needs to be installed; a test reads what is
written here with Minari itself.
"""

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from jaxtyping import Float32

from fastr.core import EnvSpec, UserError, write_errors
from fastr.data.minari import DATA, METADATA
from fastr.runs import refuse_used

MINARI_VERSION = "0.5.4"
"""The release whose format is written here."""
SPARE_BYTES = 2**26
"""Left free on the disk: HDF5 does not survive a write that fails, and has its own to make."""


class Episode(NamedTuple):
    """One episode: one more observation than actions."""

    observations: Float32[np.ndarray, "steps_and_one state"]
    actions: Float32[np.ndarray, "steps action"]
    rewards: Float32[np.ndarray, " steps"]
    terminated: bool
    """The last observation is terminal; otherwise the episode was cut there."""
    seed: int | None
    """What the environment was reset with, where that is known."""


class MinariWriter:
    """Writes episodes one by one; the dataset is complete once the writer is closed."""

    def __init__(self, path: Path, spec: EnvSpec, about: dict[str, Any]):
        self.path, self.spec, self.about = path, spec, about
        self.episodes = self.steps = 0
        refuse_used(path)
        self._made = [folder for folder in (path / "data", path) if not folder.exists()]
        with write_errors(path):
            (path / "data").mkdir(parents=True, exist_ok=True)
            self._file = h5py.File(path / "data" / DATA, "w", track_order=True)

    def add(self, episode: Episode) -> None:
        """Write one episode."""
        steps = len(episode.actions)
        if len(episode.observations) != steps + 1 or steps < 1:
            raise ValueError(f"{len(episode.observations)} observations for {steps} actions")
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

    def close(self) -> None:
        """Finish the file, then write the metadata that makes it a dataset."""
        self._file.close()
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

    def discard(self) -> None:
        """Leave nothing: half a dataset cannot be read, and would be in the way of a whole one."""
        self._file.close()
        (self.path / "data" / DATA).unlink(missing_ok=True)
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def __enter__(self) -> "MinariWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


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
