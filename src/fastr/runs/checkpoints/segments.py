"""Replay rows in segments, which are written once and shared by the checkpoints that need them."""

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastr.runs.checkpoints.array_files import write_arrays
from fastr.runs.checkpoints.files import FileRecord, sync, temporary

SEGMENT_NAME = re.compile(r"([0-9]{9,18})-([0-9]{9,18})\.safetensors")


@dataclass(frozen=True, order=True)
class Segment:
    """Replay rows [start, end), numbered by agent step since the run began."""

    start: int
    end: int

    @property
    def name(self) -> str:
        """The segment's file name."""
        return f"{self.start:09d}-{self.end:09d}.safetensors"

    @classmethod
    def parse(cls, name: str) -> "Segment | None":
        """Segment a file name stands for, or None if it is no segment's name."""
        if not (match := SEGMENT_NAME.fullmatch(name)):
            return None
        segment = cls(int(match[1]), int(match[2]))
        return segment if segment.name == name and segment.start < segment.end else None


def covers(segments: list[Segment], wanted: Segment) -> bool:
    """Whether sorted segments join without gap or overlap and hold the wanted rows to the end."""
    if wanted.start == wanted.end:
        return not segments
    joined = all(left.end == right.start for left, right in itertools.pairwise(segments))
    return (
        bool(segments)
        and joined
        and segments[0].start <= wanted.start
        and (segments[-1].end == wanted.end)
    )


def write_segment(folder: Path, segment: Segment, rows: np.ndarray) -> FileRecord:
    """Write replay rows under their final name, replacing a dead branch's file of that name."""
    folder.mkdir(exist_ok=True)
    final = folder / segment.name
    record = write_arrays(temporary(final), {"rows": rows})
    os.replace(temporary(final), final)
    sync(folder)
    return record
