"""Readers of .npz, .parquet and a run's replay; `open_source` chooses the reader of a path."""

import json
import math
import re
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from fastr.core import EnvSpec, UserError
from fastr.data import parquet
from fastr.data.dataset import (
    NUMBERS,
    SCALARS,
    VECTORS,
    WIDEST,
    About,
    Chunk,
    Column,
    Source,
    describe,
)
from fastr.data.lerobot import LeRobot, is_lerobot
from fastr.data.minari import Minari, installed, is_minari
from fastr.runs import CONFIG, STATE, RunDirectory
from fastr.runs.untrusted import limited_memory, reading, tensors

NAMES: dict[str, tuple[str, ...]] = {
    "state": ("state", "states", "observation", "observations", "obs"),
    "action": ("action", "actions"),
    "next_state": (
        *("next_state", "next_states", "next_observation", "next_observations", "next_obs"),
    ),
    "episode": ("episode", "episodes", "episode_id", "episode_index"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminations", "terminals"),
}
"""The names under which each column is found."""
REQUIRED = (*VECTORS, "episode")
BOUNDS = ("action_low", "action_high")
"""Optional: the bounds of each action coordinate."""
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that NumPy writes; others expand a byte to megabytes."""
HEADER_BYTES = 1_000
"""Longest header of an array; those of NumPy have about 100 bytes."""


def open_source(name: str) -> Source:
    """The dataset at this path, or an installed Minari dataset; UserError if there is none."""
    path = Path(name)
    if path.is_file() and path.suffix.lower() in FILES:
        return FILES[path.suffix.lower()](path)
    if is_minari(path):
        return Minari(path)
    if is_lerobot(path):
        return LeRobot(path)
    if (path / CONFIG).is_file():
        return RunReplay(path)
    # A name must not lead out of the directory of installed datasets.
    if name and not path.is_absolute() and ".." not in path.parts and is_minari(installed(name)):
        return Minari(installed(name))
    problem = "is no dataset" if path.exists() else "does not exist"
    raise UserError(
        f"{name} {problem}: give a Minari or LeRobot dataset, a run directory, a .npz or a "
        ".parquet file (docs/misfit.md shows how to convert others)."
    )


def find_columns(
    path: Path, names: Collection[str], *, numbered: bool = False
) -> dict[str, tuple[str, ...]]:
    """The file's column of each role, or its numbered ones; UserError if one is missing.

    Numbered columns (state_0, state_1, ...) count only if none has the plain name.
    """
    found = {}
    for role, known in NAMES.items():
        matches = [(name,) for name in known if name in names]
        if not matches and numbered and role in VECTORS:
            matches = [parts for name in known if (parts := coordinates(path, names, name))]
        if len(matches) > 1:
            both = f"both {matches[0][0]} and {matches[1][0]}"
            raise UserError(f"{path} has {both}; keep one of them.")
        if matches:
            found[role] = matches[0]
        elif role in REQUIRED:
            raise UserError(
                f"{path} has no column {role} (also read as {', '.join(known[1:])}): add it "
                f"(docs/misfit.md); the file has {', '.join(sorted(names)[:12])}."
            )
    return found


def coordinates(path: Path, names: Collection[str], prefix: str) -> tuple[str, ...]:
    """The columns prefix_0, prefix_1, ... in order; UserError if one between them is missing."""
    pattern = re.compile(rf"{prefix}_(0|[1-9][0-9]{{0,5}})")
    indices = sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
    if indices != list(range(len(indices))):
        raise UserError(f"{path}: number {prefix}_0, {prefix}_1, ... from 0 without a gap.")
    return tuple(f"{prefix}_{index}" for index in indices)


def declared_bounds(path: Path, names: Collection[str], read: Callable[[str], Any]) -> Any:
    """Both action bounds as the file gives them, or None."""
    present = [name for name in BOUNDS if name in names]
    if len(present) == 1:
        raise UserError(f"{path} has {present[0]} alone; give {BOUNDS[0]} and {BOUNDS[1]}.")
    return tuple(map(read, BOUNDS)) if present else None


class Npz(Source):
    """A .npz file with one array per column.

    NumPy parses the headers; numpy.load would read whole columns, of any size, into memory.
    """

    def __init__(self, path: Path):
        self.path = path
        with reading(path), zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            found = find_columns(path, names)
            self._headers = {role: self._header(archive, name) for role, (name,) in found.items()}
            bounds = declared_bounds(path, names, lambda name: self._short(archive, name))
            self.about = describe(path, path.stem, self._headers, bounds=bounds)

    def _header(self, archive: zipfile.ZipFile, name: str) -> Column:
        """An array's shape and type; UserError if its rows cannot be read one after the other."""
        if archive.getinfo(f"{name}.npy").compress_type not in COMPRESSIONS:
            raise UserError(f"{self.path}: column {name} is not compressed as NumPy does.")
        with archive.open(f"{name}.npy") as file:
            shape, by_column, dtype = read_header(file)
        if by_column and len(shape) > 1:
            raise UserError(
                f"{self.path}: column {name} is in Fortran order; save np.ascontiguousarray of it."
            )
        return Column(name, shape, dtype)

    def _short(self, archive: zipfile.ZipFile, name: str) -> np.ndarray:
        """A whole array, of at most one transition's numbers."""
        column = self._header(archive, name)
        if column.dtype.kind not in NUMBERS or math.prod(column.shape) > WIDEST:
            raise UserError(f"{self.path}: {name} must be one number per action coordinate.")
        with archive.open(f"{name}.npy") as file:
            read_header(file)
            return read_rows(file, column, column.shape[0] if column.shape else 1)

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, decompressed in pieces."""
        with ExitStack() as stack:
            with reading(self.path):
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                files = {
                    role: stack.enter_context(archive.open(f"{column.name}.npy"))
                    for role, column in self._headers.items()
                }
                for file in files.values():
                    read_header(file)
            for first in range(0, self.about.rows, self.rows_at_once):
                rows = min(self.rows_at_once, self.about.rows - first)
                with reading(self.path):
                    parts = {r: read_rows(files[r], self._headers[r], rows) for r in files}
                yield Chunk(**parts, label="row", first=first)


def read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, Fortran order and type of an array; NumPy parses them without evaluating anything."""
    # Headers of other versions may have gigabytes, which NumPy reads before it measures them.
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array of an unusual version")
    header = np.lib.format.read_array_header_1_0(file, max_header_size=HEADER_BYTES)
    if min(header[0], default=0) < 0:
        raise ValueError("an array of negative length")
    return header


def read_rows(file: Any, column: Column, rows: int) -> np.ndarray:
    """The next rows of an array."""
    shape = (rows, *column.shape[1:])
    content = file.read(math.prod(shape) * column.dtype.itemsize)
    return np.frombuffer(content, column.dtype).reshape(shape)


class Parquet(Source):
    """A .parquet file with a column of lists per role, or one column per coordinate."""

    def __init__(self, path: Path):
        self.path = path
        self._file = parquet.opened(path)
        with reading(path), limited_memory(parquet.ARROW_BYTES):
            schema = self._file.schema_arrow
            self._found = find_columns(path, schema.names, numbered=True)
            self._headers = {role: self._header(schema, role) for role in self._found}
            notes = {key.decode(errors="replace"): v for key, v in (schema.metadata or {}).items()}
            bounds = declared_bounds(
                path, notes, lambda key: json.loads(notes[key], parse_int=float)
            )
            self.about = describe(path, path.stem, self._headers, bounds=bounds)

    def _header(self, schema: Any, role: str) -> Column:
        """The shape and type of a role; all lists must be as long as the first."""
        names, rows = self._found[role], self._file.metadata.num_rows
        name, kind = names[0], schema.field(names[0]).type
        if len(names) == 1 and parquet.is_list(kind):
            first = next(self._file.iter_batches(batch_size=1, columns=[name]), None)
            length = first.column(0).value_lengths()[0].as_py() or 0 if first else 1
            return Column(name, (rows, length), parquet.element(kind))
        # A list among numbered columns is not a number.
        types = [np.dtype(schema.field(part).type.to_pandas_dtype()) for part in names]
        dtype = next((dtype for dtype in types if dtype.kind not in NUMBERS), types[0])
        one = name in NAMES[role]
        return Column(name if one else name[:-2], (rows,) if one else (rows, len(names)), dtype)

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, row group by row group."""
        widths = {
            name: math.prod(self._headers[role].shape[1:]) // len(names)
            for role, names in self._found.items()
            for name in names
        }
        for first, columns in parquet.batches(self.path, self._file, widths, self.rows_at_once):
            parts = {
                role: np.concatenate([columns[name] for name in names], axis=1)
                for role, names in self._found.items()
            }
            yield Chunk(**parts, label="row", first=first)


class RunReplay(Source):
    """The replay of a run's newest sound checkpoint, seed by seed in the order of time.

    An episode begins where a state is not the next state of the row before.
    """

    def __init__(self, path: Path):
        self.path = path
        run = RunDirectory.open(path)
        self.checkpoint = run.latest_complete()
        train = run.config["train"]
        spec = self._spec()
        seeds = train.get("seeds")
        self.seeds = seeds if isinstance(seeds, list) else []
        steps = self.checkpoint.replay.end - self.checkpoint.replay.start
        if steps == 0:
            raise UserError(f"{path} is empty: its replay holds no transition yet.")
        # Only the sizes in the segments' own headers show that the index is true.
        for segment in self.checkpoint.segments:
            self.checkpoint.check_segment(segment)
        self.about = About(
            name=path.name,
            spec=spec,
            rows=steps * self.checkpoint.row_shape[0],
            bounds=(-np.ones(spec.action_dim), np.ones(spec.action_dim)),
            task=str(train.get("task")),
            provenance={
                "run": str(path),
                "task": train.get("task"),
                "method": train.get("method"),
                "frame_skip": train.get("frame_skip"),
                "frames": self.checkpoint.frames,
                "skipped_checkpoints": list(self.checkpoint.skipped),
                "run_provenance": run.config["provenance"],
            },
            columns={role: role for role in (*VECTORS, *SCALARS)},
        )

    def _spec(self) -> EnvSpec:
        """Sizes of states and actions, from the shapes that the checkpoint records."""
        path = self.checkpoint.location(STATE)
        with reading(path), tensors(path) as file:
            state_dim = int(file.get_slice("pending_states").get_shape()[1])
        action_dim = self.checkpoint.row_shape[1] - 2 * state_dim - 2
        if state_dim < 1 or action_dim < 1:
            raise UserError(f"{path} does not hold the state of a training run.")
        return EnvSpec(state_dim, action_dim)

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, one seed after the other, each seed's oldest first."""
        spec, episode = self.about.spec, -1
        edges = np.cumsum([spec.state_dim, spec.action_dim, spec.state_dim])
        seeds = self.checkpoint.row_shape[0]
        # A row of the file holds one transition of every seed.
        most = max(1, self.rows_at_once // seeds)
        for seed in range(seeds):
            before = None
            for first, rows in self.checkpoint.replay_slices(most):
                state, action, next_state, scalars = np.split(rows[:, seed], edges, axis=1)
                reward, continues = scalars.T
                begins = episode_begins(state, next_state, before)
                numbers = episode + np.cumsum(begins)
                episode, before = int(numbers[-1]), next_state[-1]
                label, over = f"seed {seed} step", continues == 0.0
                yield Chunk(state, action, next_state, numbers, label, first, reward, over)


def episode_begins(
    state: np.ndarray, next_state: np.ndarray, before: np.ndarray | None
) -> Bool[np.ndarray, " rows"]:
    """Whether each row's state differs from the next state of the row before."""
    follows = (state[1:] == next_state[:-1]).all(axis=1)
    first = before is not None and bool((state[0] == before).all())
    return ~np.concatenate([[first], follows])


FILES = {".npz": Npz, ".parquet": Parquet, ".pq": Parquet}
"""The reader of each file name's ending."""
