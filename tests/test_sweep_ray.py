"""A two-node Ray cluster on loopback: kill a worker, then a node; no run is lost or repeated."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fastr import cli
from fastr.core import UserError
from fastr.runs import RunDirectory, user_of
from fastr.studies.experiments import EXPERIMENTS
from fastr.studies.units import Grid
from fastr.sweep import state
from fastr.sweep.attempt import PROGRAM
from fastr.sweep.cluster import RayEngine
from fastr.sweep.schedule import Scheduler
from sweeping import FAKE, assert_whole, attempts, processes, units, until

pytest.importorskip("ray", reason="pip install ray")


@pytest.fixture
def cluster(monkeypatch):
    """A head without room for runs, and two nodes with room for one each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # A node that is gone is missed after a second, not after half a minute.
    quick = {"health_check_period_ms": 200, "health_check_failure_threshold": 5}
    small = {"object_store_memory": 100 * 2**20}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": quick, **small}
    found = Cluster(initialize_head=True, head_node_args=head)
    nodes = [found.add_node(num_cpus=1, **small) for _ in range(2)]
    found.wait_for_nodes()
    yield found, nodes
    found.shutdown()


def parent_of(process):
    """The process that started this one."""
    stat = (Path("/proc") / str(process) / "stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def ancestors(process):
    found = [process]
    while found[-1] > 1:
        found.append(parent_of(found[-1]))
    return found


class Saboteur:
    """Watches a sweep: kills a Ray worker while its run has a checkpoint, and then a whole node."""

    def __init__(self, cluster, nodes):
        self.cluster, self.nodes = cluster, nodes
        self.killed = []
        self.finished = {}

    def __call__(self, works):
        for work in works:
            if work.state == "done":
                self.finished.setdefault(work.unit.name, work.attempts)
        if not self.finished or len(self.killed) == 2:
            return
        for work in works:
            if work.state == "running" and 0 < state.saved_frames(work.unit) < work.unit.frames:
                if work.unit.name not in self.killed:
                    self.strike(work)
                return

    def strike(self, work):
        process = user_of(work.unit.run)
        if process is None:
            return
        if not self.killed:
            os.kill(parent_of(int(process)), signal.SIGKILL)
        else:
            raylets = {node.all_processes["raylet"][0].process.pid: node for node in self.nodes}
            [node] = [raylets[pid] for pid in ancestors(int(process)) if pid in raylets]
            self.cluster.remove_node(node, allow_graceful=False)
        self.killed.append(work.unit.name)


def swept(out, wanted, address, look, asked=lambda: 0, program=FAKE):
    engine = RayEngine(address, 0.0, 1.0, out / "stop")
    try:
        scheduler = Scheduler(out, wanted, engine, 3, program)
        scheduler.run(look, asked)
    finally:
        engine.close()
    return scheduler


def test_stop_and_go_on_then_kill_a_worker_and_a_node(cluster, tmp_path, monkeypatch):
    """One cluster for both, because it takes longer to start than the runs."""
    monkeypatch.setattr("fastr.sweep.schedule.LONGEST_PAUSE_SECONDS", 0.2)
    wanted = units(tmp_path, *(f"slow{i}" for i in range(7)))
    found, nodes = cluster
    refused_resources(found.address, tmp_path)

    def two_saved():
        return sum(state.saved_frames(unit) > 0 for unit in wanted) >= 2

    stopped = swept(tmp_path, wanted, found.address, lambda _: None, two_saved)
    assert {work.state for work in stopped.works} <= {"stopped", "done"}
    assert processes(tmp_path) == []
    before = {unit.name: attempts(tmp_path, unit) for unit in wanted if begun(tmp_path, unit)}
    assert 2 <= len(before) < len(wanted)

    saboteur = Saboteur(found, nodes)
    scheduler = swept(tmp_path, wanted, found.address, saboteur)
    assert {work.state for work in scheduler.works} == {"done"}
    assert len(set(saboteur.killed)) == 2
    for work in scheduler.works:
        assert_whole(work.unit)
        # Once more where it was killed, and in no other case; never where it was finished before.
        assert work.attempts <= 1 + (work.unit.name in saboteur.killed)
        earlier = len(before.get(work.unit.name, []))
        assert len(attempts(tmp_path, work.unit)) == earlier + work.attempts
        assert set(attempts(tmp_path, work.unit)[1:]) <= {"resume"}
        assert work.attempts == saboteur.finished[work.unit.name]
    until(lambda: processes(tmp_path) == [])


def begun(out, unit):
    return state.log_file(out, unit).exists() and attempts(out, unit)


def refused_resources(address, out):
    """What no node has is said at once, instead of waiting for it forever."""
    for gpus, cpus, said in (
        (1.0, None, "--gpus-per-run is 1, and no node"),
        (0.0, 64.0, "--cpus-per-run is 64, and no node"),
        (1.5, None, "whole number"),
    ):
        with pytest.raises(UserError, match=said):
            RayEngine(address, gpus, cpus, out / "stop")


def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path, refused):
    options = ["--engine", "ray", "--address", "127.0.0.1:1", "--out", str(tmp_path)]
    refused(["sweep", "smoke", *options], "No Ray cluster answers at 127.0.0.1:1")


def test_without_ray_there_is_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.run(["sweep", "smoke", "--engine", "ray", "--out", str(tmp_path)]) == 2
    assert "pip install 'ray>=2.60'" in capsys.readouterr().err


@pytest.mark.slow
def test_smoke_survives_a_killed_worker_and_a_lost_node(cluster, tmp_path):
    """The same with real trainings: `fastr sweep smoke`, ten times as long."""
    usual = EXPERIMENTS["smoke"]
    grid = Grid(tmp_path, usual.tasks, usual.methods, usual.seeds, 6_000, usual.preset,
                options=usual.options)  # fmt: skip
    wanted = usual.units(grid)
    found, nodes = cluster
    saboteur = Saboteur(found, nodes)
    begin = time.monotonic()

    def look(works):
        saboteur(works)
        shown = {work.unit.name: (work.state, state.saved_frames(work.unit)) for work in works}
        print(f"{time.monotonic() - begin:6.1f} s", shown, "killed", saboteur.killed, flush=True)

    scheduler = swept(tmp_path, wanted, found.address, look, program=PROGRAM)
    assert {work.state for work in scheduler.works} == {"done"}
    assert len(set(saboteur.killed)) == 2
    for work in scheduler.works:
        expected = ["train", "resume"] if work.unit.name in saboteur.killed else ["train"]
        assert attempts(tmp_path, work.unit) == expected
        rows = RunDirectory.open(work.unit.run).rows()
        evaluated = [row["frames"] for row in rows if row["kind"] == "evaluation"]
        assert evaluated == list(range(0, 6_001, 200))
        assert RunDirectory.open(work.unit.run).latest().frames == 6_000
    until(lambda: processes(tmp_path) == [])
