"""What all fuzzing programs share: the only errors that may escape, and bounds on memory and time.

Each program beside this file feeds one loader with inputs that libFuzzer finds by coverage:

    python fuzz/seeds.py                          # small corpora, into build/fuzz/seeds
    python fuzz/fuzz_npz.py build/fuzz/seeds/npz -runs=10000
    python fuzz/campaign.py --minutes 5           # all of them, one after the other, with a table
"""

import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("MUJOCO_GL", "disable")

import atheris

ROOT = Path(__file__).parent.parent
SEEDS = ROOT / "build" / "fuzz" / "seeds"
GROWTH_BYTES = 128 * 2**20
"""By how much the process may have grown at its largest, libFuzzer's own corpus included."""
ADDRESS_BYTES = 2**30
"""How much more address space it may ask for; beyond that an allocation fails, and is noticed."""
TARGET = Path(sys.argv[0]).stem.removeprefix("fuzz_")
SECONDS = 10
"""For one input."""

MOST_EDITS = 8
VALUES = (
    *(None, True, False, -1, 0, 1, 2, 2**31 - 1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "x", "../x", "walker-walk", "os:X-v0", "a=0-999999|b=0"),
    *([], {}, [0], [0, 0], [[]], [None], {"x": 1}, [2**62], list(range(2_000)), "x" * 5_000),
)

sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "tests"))

with atheris.instrument_imports(include=["fastr"]):
    from fastr.core import RunError, UserError


class BoundError(Exception):
    """An input that took more memory than it may."""


def folder() -> Path:
    """A directory in memory, deleted at the end."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    path = tempfile.mkdtemp(prefix="fastr-fuzz-", dir=place)
    return Path(path)


def fuzz(read: Callable[[bytes], object], place: Path | None = None) -> None:
    """Feed what libFuzzer finds to a loader, for as long as the command line asks."""
    base = {}

    def one(data: bytes) -> None:
        try:
            read(data)
        except (UserError, RunError) as error:
            refuse_hidden(error)
        # The first inputs import, and fill caches.
        base.setdefault("bytes", largest())
        if largest() - base["bytes"] > GROWTH_BYTES + 4 * len(data):
            raise BoundError(f"{largest() - base['bytes']:,} bytes more than at the beginning")

    warm_up(read)
    limit = address_space() + ADDRESS_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    arguments = [sys.argv[0], f"-timeout={SECONDS}", "-max_len=65536", *sys.argv[1:]]
    atheris.Setup(arguments, one)
    try:
        atheris.Fuzz()
    finally:
        if place:
            shutil.rmtree(place, ignore_errors=True)


def warm_up(read: Callable[[bytes], object]) -> None:
    """Read every seed once: a sound one must be read, so that the way behind the checks is open."""
    for file in sorted((SEEDS / TARGET).glob("*")):
        try:
            read(file.read_bytes())
        except UserError as error:
            if file.name.startswith("sound"):
                raise SystemExit(f"{file} is refused: {error}") from error


def edited(sound: Any, data: bytes) -> bytes:
    """A JSON document with some of its values replaced: which, and by what, two bytes say each."""
    content = json.loads(json.dumps(sound))
    for where, what in list(zip(data[::2], data[1::2], strict=False))[:MOST_EDITS]:
        spots = list(places(content))
        if not spots:
            break
        holder, key = spots[where % len(spots)]
        if what % 16 == 0:
            del holder[key]
        else:
            holder[key] = json.loads(json.dumps(VALUES[what % len(VALUES)]))
    return json.dumps(content).encode()


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON document, as its holder and its key."""
    keys = content if isinstance(content, dict) else range(len(content))
    for key in keys:
        yield content, key
        if isinstance(content[key], dict | list):
            yield from places(content[key])


def refuse_hidden(error: BaseException | None) -> None:
    """Raise BoundError if memory ran out underneath an error that names something else."""
    while error is not None:
        if isinstance(error, MemoryError):
            raise BoundError("an allocation failed") from error
        error = error.__cause__


def largest() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def address_space() -> int:
    """What this process has asked for so far, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
