"""index.json of a checkpoint: what is written there, and how it is checked when it is read."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from fastr.runs.checkpoints.checkpoint import (
    STATE,
    Checkpoint,
    DamageError,
    checkpoint_name,
    file_size,
    looking_at,
)
from fastr.runs.checkpoints.files import FileRecord
from fastr.runs.checkpoints.segments import Segment, covers
from fastr.core import UserError
from fastr.runs.untrusted import bounded_bytes

FORMAT = 3
"""1 had all parameters of a network in one vector, and no evaluation under way; 2 had Diff-SR's
matrices the other way round."""
INDEX = "index.json"
SHA256 = re.compile(r"[0-9a-f]{64}")
LARGEST_COUNT = 2**60
"""Bytes, rows or frames: more than any disk holds."""


def index_bytes(checkpoint: Checkpoint) -> bytes:
    """Content of index.json, with a checksum over itself."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "frames": checkpoint.frames,
        "rows_bytes": checkpoint.rows_bytes,
        "rows_sha256": checkpoint.rows_sha256,
        "config_sha256": checkpoint.config_sha256,
        "replay": {"start": checkpoint.replay.start, "end": checkpoint.replay.end},
        "seeds": checkpoint.row_shape[0],
        "row_dim": checkpoint.row_shape[1],
        "files": {
            name: {"bytes": record.size, "sha256": record.sha256}
            for name, record in checkpoint.files.items()
        },
        "host": checkpoint.host,
    }
    # Keys that are not strings change when read back, and with them the checksum.
    content = json.loads(json.dumps(content))
    return json.dumps(content | {"sha256": content_checksum(content)}, indent=1).encode()


def content_checksum(content: dict[str, Any]) -> str:
    """Checksum of a JSON object, whatever its layout."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_index(run: Path, frames: int) -> Checkpoint:
    """Checkpoint as index.json describes it, or DamageError; its files are not looked at."""
    path = run / "checkpoints" / checkpoint_name(frames) / INDEX
    content = checked_content(path)
    replay, files = content.get("replay"), content.get("files")
    host = content.get("host")
    if not (isinstance(replay, dict) and isinstance(files, dict) and isinstance(host, dict)):
        raise DamageError(f"{INDEX}: content")
    checkpoint = Checkpoint(
        run=run,
        frames=count(content, "frames"),
        host=host,
        rows_bytes=count(content, "rows_bytes"),
        rows_sha256=checksum(content.get("rows_sha256")),
        config_sha256=checksum(content.get("config_sha256")),
        replay=Segment(count(replay, "start"), count(replay, "end")),
        row_shape=(count(content, "seeds"), count(content, "row_dim")),
        files={plain_name(name, path): parsed_record(entry) for name, entry in files.items()},
    )
    sound = checkpoint.frames == frames and STATE in files
    if not sound or not covers(checkpoint.segments, checkpoint.replay):
        raise DamageError(f"{INDEX}: content")
    return checkpoint


def checked_content(path: Path) -> dict[str, Any]:
    """JSON object in an index of this format whose checksum is right."""
    file_size(path)
    try:
        with looking_at(path):
            content = json.loads(bounded_bytes(path))
    except UserError as error:
        raise DamageError(f"{INDEX}: size") from error
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{INDEX}: not JSON") from error
    if not isinstance(content, dict):
        raise DamageError(f"{INDEX}: content")
    claimed = content.pop("sha256", None)
    # Before the format is believed: a number with a flipped bit is damage, not another version.
    if claimed != content_checksum(content):
        raise DamageError(f"{INDEX}: checksum")
    if content.get("format") != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {content.get('format')!r:.20}; "
            f"this version of fastr reads format {FORMAT}."
        )
    return content


def count(content: dict[str, Any], key: str) -> int:
    """Whole number that is not negative, from an index."""
    value = content.get(key)
    if type(value) is not int or not 0 <= value <= LARGEST_COUNT:
        raise DamageError(f"{INDEX}: {key}")
    return value


def whole_numbers(value: object, length: int) -> bool:
    """Whether this is a list of so many whole numbers that are not negative and not absurd."""
    return (
        isinstance(value, list)
        and len(value) == length
        and all(type(entry) is int and 0 <= entry <= LARGEST_COUNT for entry in value)
    )


def parsed_record(entry: object) -> FileRecord:
    """File's size and checksum, from an index."""
    if not isinstance(entry, dict):
        raise DamageError(f"{INDEX}: files")
    return FileRecord(count(entry, "bytes"), checksum(entry.get("sha256")))


def checksum(value: object) -> str:
    """Checksum from an index."""
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise DamageError(f"{INDEX}: sha256")
    return value


def plain_name(name: str, index: Path) -> str:
    """Name itself, or UserError if it is not that of a file in this run."""
    if name != STATE and Segment.parse(name) is None:
        raise UserError(f"{index} names {name!r:.80}, which is no file of a checkpoint.")
    return name
