"""Whether a run fits into the memory of its device, said before anything is written."""

import contextlib
from pathlib import Path

import jax

from fastr.core import EnvSpec, UserError, counted
from fastr.training.config import TrainConfig
from fastr.training.count import program_bytes, seed_bytes
from fastr.training.learner import seed_sharding

MEBIBYTE = 2**20


def check_fits(config: TrainConfig, spec: EnvSpec) -> None:
    """Raise UserError if the seeds are too many for the memory that is free."""
    free = free_bytes()
    if free is None:
        return
    seeds, devices = len(config.seeds), seed_sharding(len(config.seeds)).num_devices
    each, once = seed_bytes(config, spec), program_bytes()
    needed = seeds // devices * each + once
    if needed <= free:
        return
    most = max(0, free - once) // each * devices
    advice = f"take at most {most} --seeds, or" if most else "one seed alone does not fit;"
    raise UserError(
        f"{counted(seeds, 'seed')} of {config.method} would take about "
        f"{needed // MEBIBYTE:,} MiB of memory per device ({each // MEBIBYTE:,} MiB each), "
        f"and {free // MEBIBYTE:,} MiB are free: {advice} use a smaller "
        "--replay-capacity, --batch-size or network."
    )


def free_bytes() -> int | None:
    """Memory that is free on the fullest local device, or None where nobody tells."""
    if jax.default_backend() == "cpu":
        return available_on_host()
    statistics = [device.memory_stats() for device in jax.local_devices()]
    known = [entry for entry in statistics if entry and "bytes_limit" in entry]
    return min((entry["bytes_limit"] - entry["bytes_in_use"] for entry in known), default=None)


def available_on_host() -> int | None:
    """Bytes that a new program can have without swapping; None where Linux does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
