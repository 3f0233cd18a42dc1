"""Tasks on a Ray cluster: each runs one command on some node and waits for it.

Ray chooses the node and hands out its GPUs. Everything else passes through the sweep's directory,
which all nodes share: the commands' own files, their logs, and the request to stop.
"""

import contextlib
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from fastr.core import UserError, counted
from fastr.sweep.attempt import Attempt, ask_to_stop, end_group
from fastr.sweep.engine import AbstractEngine, AbstractJob

LOOK_SECONDS = 0.3
"""Between two looks of a task at its process and at the request to stop."""
SAVE_SECONDS = 600.0
"""That a process asked to stop gets for its checkpoint."""
LOST = 1
"""Exit code of an attempt whose node or worker is gone."""
CPUS_PER_RUN = 4
CONNECT_SECONDS = 10.0


def attempted(attempt: Attempt, stop: Path) -> int:
    """On a node: run a command to its end, or until the file `stop` appears; its exit code."""
    if not attempt.log.is_file():
        raise FileNotFoundError(f"{attempt.log} is not there: --out must be on shared storage")
    process = attempt.start()
    try:
        while (code := process.poll()) is None and not stop.exists():
            time.sleep(LOOK_SECONDS)
        if code is None:
            ask_to_stop(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(SAVE_SECONDS)
        return LOST if code is None else code
    finally:
        end_group(process)


class RayJob(AbstractJob):
    """A task of the cluster."""

    def __init__(self, ray: Any, task: Any, attempt: Attempt, stop: Path):
        self.ray, self.task, self.stop_file = ray, task, stop
        self.log, self.log_before = attempt.log, attempt.log.stat().st_size
        self.trouble = ""

    def running(self) -> bool:
        """Whether the node has written to the log."""
        return self.log.stat().st_size > self.log_before

    def exit_code(self) -> int | None:
        """The command's, or LOST where its node or its worker was."""
        ready, _ = self.ray.wait([self.task], timeout=0)
        if not ready:
            return None
        try:
            return self.ray.get(self.task)
        except self.ray.exceptions.RayError as error:
            self.trouble = one_line(getattr(error, "cause", None) or error)
            return LOST

    def problem(self) -> str:
        """What Ray says of it."""
        return self.trouble

    def stop(self) -> None:
        """Where it runs, the node finds the file; where it waits, it is taken back."""
        self.stop_file.touch()
        if not self.running():
            self.ray.cancel(self.task)

    def kill(self) -> None:
        """The worker is ended, and its process is told by the system."""
        self.ray.cancel(self.task, force=True)


class RayEngine(AbstractEngine):
    """A cluster; as many at a time as it has resources for."""

    def __init__(self, address: str, gpus: float | None, cpus: float | None, stop: Path):
        self.ray = imported_ray()
        self.stop = stop
        stop.unlink(missing_ok=True)
        try:
            check_answers(address)
            self.ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"No Ray cluster answers at {address} ({one_line(error)}); start one with "
                "`ray start --head`, or use --engine local."
            ) from error
        try:
            self.resources = self.checked(gpus, cpus)
        except UserError:
            self.close()
            raise
        self.remote = self.ray.remote(max_retries=0, **self.resources)(attempted)

    def checked(self, gpus: float | None, cpus: float | None) -> dict[str, float]:
        """What a run asks for, if there is a node that has it."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        most = {kind: max(node.get(kind, 0.0) for node in nodes) for kind in ("GPU", "CPU")}
        gpus = min(1.0, most["GPU"]) if gpus is None else gpus
        cpus = min(float(CPUS_PER_RUN), most["CPU"]) if cpus is None else cpus
        for kind, wanted in (("GPU", gpus), ("CPU", cpus)):
            option = f"--{kind.lower()}s-per-run"
            if wanted < 0 or (wanted > 1 and wanted != int(wanted)):
                raise UserError(f"{option} is {wanted}; it must be a whole number or below 1.")
            if wanted > most[kind]:
                raise UserError(
                    f"{option} is {wanted:g}, and no node of the cluster has more than "
                    f"{most[kind]:g}."
                )
        return {"num_gpus": gpus, "num_cpus": cpus}

    def has_room(self) -> bool:
        """Ray keeps the queue."""
        return True

    def start(self, attempt: Attempt) -> RayJob:
        """A task in Ray's queue."""
        return RayJob(self.ray, self.remote.remote(attempt, self.stop), attempt, self.stop)

    def places(self) -> str:
        """The cluster's size and a run's share of it."""
        nodes = sum(bool(node["Alive"]) for node in self.ray.nodes())
        share = self.resources
        each = f"GPUs per run: {share['num_gpus']:g}, CPUs: {share['num_cpus']:g}"
        return f"a Ray cluster of {counted(nodes, 'node')}, {each}"

    def close(self) -> None:
        """Leave the cluster."""
        self.ray.shutdown()
        self.stop.unlink(missing_ok=True)


def imported_ray() -> Any:
    """The package, or one sentence where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--engine ray needs Ray: `pip install 'ray>=2.60'`.") from error
    return ray


def check_answers(address: str) -> None:
    """Raise OSError if nobody listens at host:port: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit() and int(port) < 2**16:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


def one_line(error: Exception) -> str:
    """The first line of what an exception says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
