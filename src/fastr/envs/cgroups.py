"""What Linux grants the control groups that this process is in: a container's share of a host."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cores_granted(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> int | None:
    """Whole cores of processor time, by the strictest group; None without a limit."""
    found = [cores_of(folder) for folder in folders("cpu", membership, cgroups)]
    return min((cores for cores in found if cores is not None), default=None)


def memory_left(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> int | None:
    """Bytes up to the nearest limit; None without one."""
    found = [memory_of(folder) for folder in folders("memory", membership, cgroups)]
    return min((left for left in found if left is not None), default=None)


def folders(controller: str, membership: Path, cgroups: Path) -> Iterator[Path]:
    """Where the limits of one controller may lie."""
    for group in groups(controller, text_of(membership)):
        yield cgroups / group.strip("/")


def groups(controller: str, membership: str) -> list[str]:
    """The process's groups below the mount, from the lines ID:CONTROLLERS:PATH.

    Each is followed by those above it: the strictest counts. In a container the path is often that
    of the host, which is not there; then only its last, the root, is found.
    """
    found = []
    for line in membership.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        inner = PurePosixPath(path.strip("/"))
        if not controllers:
            mounts = ("", "unified")
        elif controller in controllers.split(","):
            mounts = (controller, controllers)
        else:
            continue
        found += [f"{mount}/{up}" for mount in mounts for up in (inner, *inner.parents)]
    return found


def cores_of(folder: Path) -> int | None:
    """Whole cores of one group, as version 2 of control groups says it or as version 1 does."""
    first = [text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    limits = [granted(text) for text in (text_of(folder / "cpu.max"), " ".join(first))]
    return next((cores for cores in limits if cores is not None), None)


def granted(limit: str) -> int | None:
    """Whole cores of QUOTA PERIOD, in microseconds; None for max, for -1, for whatever is odd."""
    try:
        micros, period = map(int, limit.split())
    except ValueError:
        return None
    return micros // period if micros > 0 and period > 0 else None


def memory_of(folder: Path) -> int | None:
    """Bytes that one group has left, as version 2 says it or as version 1 does.

    Files that nobody has open or has read of late are given up for whoever asks.
    """
    lines = (line.partition(" ") for line in text_of(folder / "memory.stat").splitlines())
    statistics = {name: value for name, _, value in lines}
    for limit, used, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, taken = (bytes_in(text_of(folder / name)) for name in (limit, used))
        if most is not None and taken is not None:
            return max(0, most - taken + (bytes_in(statistics.get(idle, "")) or 0))
    return None


def bytes_in(text: str) -> int | None:
    """A number of bytes; None for max and for whatever is odd."""
    try:
        return max(0, int(text))
    except ValueError:
        return None


def text_of(path: Path) -> str:
    """What a file of the system says; nothing where it is missing, closed or no text."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
