"""LeRobot's format, versions 2.0, 2.1 and 3.0: meta/info.json and Parquet files of frames.

https://github.com/huggingface/lerobot, whose package is not needed. A frame is an observation, the
action taken there, and what came of it.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fastr.core import UserError
from fastr.data import parquet
from fastr.data.dataset import WIDEST, Chunk, Column, Source, describe, float32, refuse_column
from fastr.runs.untrusted import json_object, limited_memory, reading, require_own, whole_numbers

INFO = Path("meta", "info.json")
VERSIONS = ("v2.0", "v2.1", "v3.0")
NUMBER = "([0-9]{3,9})"
FILES = {
    "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet": "episode_",
    "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet": "file-",
}
"""Every data_path there is, and how its files begin; info.json's own is never made into a path."""
NAMES = {
    "state": ("observation.state", "observation.environment_state"),
    "action": ("action",),
    "episode": ("episode_index",),
    "frame": ("frame_index",),
    "reward": ("next.reward",),
    "terminated": ("next.success",),
}
REQUIRED = ("observation.state", "action", "episode_index", "frame_index")
TYPES = {"episode": np.dtype(np.int64), "terminated": np.dtype(np.bool_)}


class LeRobot(Source):
    """A LeRobot dataset's directory; its images are not read.

    A frame's next state is that of the frame after it, so the last frame of each episode is no
    transition, and its reward is lost. A transition is terminal if next.success is true and its
    next state is the episode's last: where the recording goes on, nothing had ended. next.done is
    not read: it is true at the end of every demonstration, also of one that was merely cut.
    """

    def __init__(self, path: Path):
        self.path, info_path = path, path / INFO
        require_own((info_path.parent, info_path, path / "data"))
        info = json_object(info_path)
        if (version := info.get("codebase_version")) not in VERSIONS:
            raise UserError(
                f"{info_path} gives codebase_version {version!r:.40}; {', '.join(VERSIONS)} are "
                "read: convert the dataset with LeRobot."
            )
        counts: list[Any] = [info.get("total_frames"), info.get("total_episodes")]
        if not whole_numbers(counts, 2):
            raise UserError(f"{info_path} must have whole numbers total_frames and total_episodes.")
        self._widths = widths(info_path, info.get("features"))
        self._roles = {
            role: found
            for role, names in NAMES.items()
            if (found := [name for name in names if name in self._widths])
        }
        self._files = data_files(path, info.get("data_path"))
        frames, (declared, episodes) = sum(map(self._frames_in, self._files)), counts
        if frames != declared:
            raise UserError(
                f"{path} has {frames:,} frames in data and declares {declared:,} in {INFO}: copy "
                "the whole dataset again, a file is missing or from another version."
            )
        headers = {
            role: Column(
                " and ".join(names),
                (frames - episodes, sum(self._widths[name] for name in names)),
                TYPES.get(role, np.dtype(np.float32)),
            )
            for role, names in self._roles.items()
            if role != "frame"
        }
        after = f"{headers['state'].name} (one frame later)"
        headers["next_state"] = headers["state"]._replace(name=after)
        self.about = describe(
            path,
            path.name,
            headers,
            bounds=None,
            size=sum(file.stat().st_size for file in self._files),
            provenance={"lerobot": version, "fps": info.get("fps")},
        )

    def _frames_in(self, path: Path) -> int:
        """Number of frames in a file; UserError unless it has every column with its type."""
        file = parquet.opened(path)
        with reading(path), limited_memory(parquet.ARROW_BYTES):
            schema, rows = file.schema_arrow, file.metadata.num_rows
            for role, names in self._roles.items():
                for name in names:
                    if name not in schema.names:
                        raise UserError(f"{path} has no column {name}, which {INFO} lists: add it.")
                    kind, width = schema.field(name).type, self._widths[name]
                    shape = (rows, width) if width == 1 or parquet.is_list(kind) else (rows,)
                    of_role = "reward" if role == "frame" else role
                    refuse_column(path, of_role, Column(name, shape, parquet.element(kind)))
        return rows

    def chunks(self) -> Iterator[Chunk]:
        """All transitions, episode by episode."""
        held: dict[str, np.ndarray] = {}
        for new in self._frames():
            frames = {
                role: np.concatenate([held.get(role, new[role][:0]), new[role]]) for role in new
            }
            # Only the frame after the next state shows whether that was the last one.
            held, count = {role: frames[role][-2:] for role in frames}, len(frames["episode"])
            changes = np.flatnonzero(np.diff(frames["episode"])) + 1
            for first, end in pairwise([0, *changes.tolist(), count]):
                last = min(end, count - 1) - 1
                if last > first:
                    part = {role: frames[role][first : last + 1] for role in frames}
                    yield self._transitions(part, ends=end < count)

    def _transitions(self, frames: dict[str, np.ndarray], *, ends: bool) -> Chunk:
        """What lies between the frames of one episode; UserError if one of them is missing."""
        number, times = int(frames["episode"][0]), frames.pop("frame")
        gaps = np.flatnonzero(np.diff(times) != 1)
        if len(gaps):
            before, after = times[gaps[0] : gaps[0] + 2]
            raise UserError(
                f"{self.path}: episode {number}, frame_index {after} follows {before}; write all "
                "frames of an episode, in the order of time."
            )
        states = frames.pop("state")
        found = {role: frames[role][:-1] for role in frames}
        if "terminated" in found:
            success = bool(found["terminated"][-1] > 0)
            found["terminated"] = np.zeros(len(states) - 1, bool)
            found["terminated"][-1] = ends and success
        label, first = f"episode {number} frame", int(times[0])
        return Chunk(state=states[:-1], next_state=states[1:], label=label, first=first, **found)

    def _frames(self) -> Iterator[dict[str, np.ndarray]]:
        """The numbers of each role, and at the end one more frame, of another episode."""
        found: dict[str, np.ndarray] = {}
        for path in self._files:
            file = parquet.opened(path)
            for _, columns in parquet.batches(path, file, self._widths, self.rows_at_once):
                found = {
                    role: np.concatenate([float32(columns[name]) for name in names], axis=1)
                    for role, names in self._roles.items()
                }
                # Whole numbers beyond 16,777,216 have no float32 of their own.
                with np.errstate(invalid="ignore"):
                    for role in ("episode", "frame"):
                        found[role] = columns[NAMES[role][0]].ravel().astype(np.int64)
                yield found
        if found:
            last = {role: values[-1:] for role, values in found.items()}
            yield last | {"episode": ~last["episode"]}


def is_lerobot(path: Path) -> bool:
    """Whether a directory holds a LeRobot dataset."""
    return (path / INFO).is_file()


def widths(path: Path, features: Any) -> dict[str, int]:
    """How many numbers a frame has in each column that is read, as info.json says."""
    features = features if isinstance(features, dict) else {}
    found = {}
    for name in (name for names in NAMES.values() for name in names):
        if name in features:
            shape: Any = features[name].get("shape") if isinstance(features[name], dict) else None
            if not (whole_numbers(shape, 1) and 1 <= shape[0] <= WIDEST):
                raise UserError(f"{path}: feature {name} must have a shape of one whole number.")
            found[name] = shape[0]
        elif name in REQUIRED:
            raise UserError(
                f"{path} lists no feature {name}: record it as numbers; images are not read."
            )
    return found


def data_files(path: Path, form: Any) -> list[Path]:
    """The files of frames in the order of their numbers; UserError if one is a link."""
    if not isinstance(form, str) or form not in FILES:
        raise UserError(
            f"{path / INFO} gives data_path {form!r:.80}; it must be {' or '.join(FILES)}."
        )
    pattern = re.compile(f"chunk-{NUMBER}/{FILES[form]}{NUMBER}\\.parquet")
    with reading(path):
        found = {
            tuple(map(int, match.groups())): file
            for file in (path / "data").glob("chunk-*/*.parquet")
            if (match := pattern.fullmatch(f"{file.parent.name}/{file.name}"))
        }
        require_own(part for file in found.values() for part in (file.parent, file))
    return [found[numbers] for numbers in sorted(found)]
