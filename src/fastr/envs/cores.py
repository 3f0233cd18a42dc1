"""How many cores this process may keep busy: the machine's, its own, or its container's share."""

import os

from fastr.envs.cgroups import cores_granted


def usable_cores() -> int:
    """Whole cores of processor time: one at least, however small the share."""
    allowed, share = len(allowed_cores()), cores_granted()
    return allowed if share is None else max(1, min(allowed, share))


def allowed_cores() -> tuple[int, ...]:
    """The numbers of the cores this process may run on; a quota may let it fill only some."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))
