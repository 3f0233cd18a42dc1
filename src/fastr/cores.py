"""How many cores this process may keep busy: the machine's, its own, or its container's share."""

import os
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Whole cores of processor time: one at least, however small the share."""
    allowed, share = len(allowed_cores()), quota()
    return allowed if share is None else max(1, min(allowed, share))


def allowed_cores() -> tuple[int, ...]:
    """The numbers of the cores this process may run on; a quota may let it fill only some."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def quota(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> int | None:
    """Whole cores that the control groups above this process grant it; None without a limit."""
    limits = [limit for group in groups(text_of(membership)) for limit in limits_of(cgroups, group)]
    found = [cores for limit in limits if (cores := granted(limit)) is not None]
    return min(found, default=None)


def groups(membership: str) -> list[str]:
    """Where the process's limits may lie below the mount, from the lines ID:CONTROLLERS:PATH.

    Each group is followed by those above it: the strictest counts. In a container the path is often
    that of the host, which is not there; then only its last, the root, is found.
    """
    found = []
    for line in membership.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        inner = PurePosixPath(path.strip("/"))
        if not controllers:
            mounts = ("", "unified")
        elif "cpu" in controllers.split(","):
            mounts = ("cpu", controllers)
        else:
            continue
        found += [f"{mount}/{up}" for mount in mounts for up in (inner, *inner.parents)]
    return found


def limits_of(cgroups: Path, group: str) -> tuple[str, str]:
    """QUOTA PERIOD, as version 2 of control groups writes it and as version 1 does."""
    folder = cgroups / group.strip("/")
    first = [text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    return text_of(folder / "cpu.max"), " ".join(first)


def granted(limit: str) -> int | None:
    """Whole cores of QUOTA PERIOD, in microseconds; None for max, for -1, for whatever is odd."""
    try:
        micros, period = map(int, limit.split())
    except ValueError:
        return None
    return micros // period if micros > 0 and period > 0 else None


def text_of(path: Path) -> str:
    """What a file of the system says; nothing where it is missing, closed or no text."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
