"""Processes on this machine: so many on each device, or on each share of the cores."""

import os
import subprocess
from typing import NamedTuple

from fastr.core import counted
from fastr.envs.processes import usable_cores
from fastr.sweep.attempt import Attempt, ask_to_stop, end_group
from fastr.sweep.engine import AbstractEngine, AbstractJob

CORES_PER_RUN = 4
"""On a CPU. A training keeps two busy with its update and more with simulators."""


class Slot(NamedTuple):
    """A place for one process at a time."""

    environment: dict[str, str]
    cores: tuple[int, ...]
    """Cores it keeps to; empty for all."""


class LocalJob(AbstractJob):
    """A process here."""

    def __init__(self, process: subprocess.Popen[bytes]):
        self.process = process

    def running(self) -> bool:
        """It began when it was handed over."""
        return True

    def exit_code(self) -> int | None:
        """The process's; a killed one's simulators are ended with it."""
        code = self.process.poll()
        if code is not None:
            end_group(self.process)
        return code

    def problem(self) -> str:
        """The signal that ended it."""
        code = self.process.returncode
        return f"ended by signal {-code}" if code is not None and code < 0 else ""

    def stop(self) -> None:
        """SIGTERM: a training saves and ends."""
        ask_to_stop(self.process)

    def kill(self) -> None:
        """SIGKILL, to its simulators too."""
        end_group(self.process)


class LocalEngine(AbstractEngine):
    """As many processes at a time as there are slots."""

    def __init__(self, slots: list[Slot]):
        self.slots = slots
        self.taken: dict[int, LocalJob] = {}

    def has_room(self) -> bool:
        """Whether a slot is free."""
        return len(self.free()) > 0

    def free(self) -> list[int]:
        """Slots whose process has ended."""
        return [
            i
            for i in range(len(self.slots))
            if i not in self.taken or self.taken[i].process.returncode is not None
        ]

    def start(self, attempt: Attempt) -> LocalJob:
        """A process in the first free slot."""
        place = self.free()[0]
        slot = self.slots[place]
        self.taken[place] = LocalJob(attempt.start(slot.environment, slot.cores))
        return self.taken[place]

    def places(self) -> str:
        """How many at a time, on what."""
        devices = {slot.environment.get("CUDA_VISIBLE_DEVICES", "") for slot in self.slots}
        cores = counted(usable_cores(), "core")
        kind = counted(len(devices), "GPU") if devices != {""} else cores
        return f"{len(self.slots)} at a time on {kind} of this machine"

    def close(self) -> None:
        """Nothing to give back."""


def gpus() -> list[str]:
    """The NVIDIA devices that JAX would see here, as CUDA_VISIBLE_DEVICES names them."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    return nvidia_smi("index")


def nvidia_smi(field: str) -> list[str]:
    """What the driver says of every device; nothing where there is no driver."""
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def slots(jobs: int | None) -> list[Slot]:
    """Places for this many processes on each GPU; without one, on the machine."""
    if devices := gpus():
        # In turn over the devices, so that few runs spread out.
        return [
            Slot({"CUDA_VISIBLE_DEVICES": device}, ())
            for _ in range(jobs or 1)
            for device in devices
        ]
    count = jobs or max(1, usable_cores() // CORES_PER_RUN)
    return [Slot({}, share) for share in shares(tuple(sorted(os.sched_getaffinity(0))), count)]


def shares(cores: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """The cores dealt out evenly; more processes than cores share all of them."""
    if count == 1 or count > len(cores):
        return [()] * count
    return [cores[i * len(cores) // count : (i + 1) * len(cores) // count] for i in range(count)]
