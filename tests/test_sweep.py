"""A sweep loses no run and repeats none, whatever is killed."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fastr import cli, sweep
from fastr.core import UserError
from fastr.runs import RunDirectory, RunWriter, locked, user_of
from fastr.studies.experiments import Grid, Unit

FAKE = (str(Path(__file__).parent / "fake_train.py"),)
FRAMES = 400
SMALL = {"object_store_memory": sweep.OBJECT_STORE_BYTES}


@pytest.fixture(scope="module")
def nodes():
    """A Ray cluster of a head without room for runs, and two nodes with room for one each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sweep.QUIET.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        # A lost node is missed after a second, not after half a minute.
        quick = {"health_check_period_ms": 200, "health_check_failure_threshold": 5}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": quick, **SMALL}
        found = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            found.add_node(num_cpus=1, **SMALL)
        found.wait_for_nodes()
        yield found
        found.shutdown()


@pytest.fixture(scope="module")
def ray(nodes):
    with sweep.connected(nodes.address) as found:
        yield found


def units(out, *tasks, **changes):
    options = {"methods": ("fastr",), "seeds": (0,), "frames": FRAMES} | changes
    grid = Grid(out=out, tasks=tasks, **options)
    return [grid.training(task, "fastr", grid.seeds) for task in tasks]


def derived(out, name, need=()):
    return Unit(name, ("make", "--out", str(out / name)), out / name, tuple(need))


def swept(ray, out, wanted, *, requests=lambda: 0, show=lambda *_: None, retries=1):
    """States and notes of all units after a sweep."""
    (out / sweep.INTERNAL).mkdir(parents=True, exist_ok=True)
    tasks = [sweep.Task(unit, out, retries, FAKE, None) for unit in wanted]
    share = sweep.resources(ray, 0.0, 1.0)
    outcomes = sweep.run(ray, tasks, share, show, requests)
    assert [outcome.name for outcome in outcomes] == [unit.name for unit in wanted]
    return [(outcome.state, outcome.note) for outcome in outcomes]


def attempts(out, unit):
    """The commands in a unit's log: train, then resume."""
    log = sweep.log_file(out, unit)
    return re.findall(r"^# .*?: fastr (\w+)", log.read_text(), re.M) if log.exists() else []


def assert_whole(unit, frames=FRAMES):
    """Every row once, in order, and a sound checkpoint at the end."""
    run = RunDirectory.open(unit.product)
    assert [row["frames"] for row in run.rows()] == list(range(20, frames + 1, 20))
    assert run.latest().frames == frames
    assert run.finished()


def processes(out):
    """Live commands that have this directory in their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(out).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return [process for process in found if process != os.getpid()]


def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_every_unit_comes_to_its_end_once(ray, tmp_path):
    good, crashing, bad, refused = units(tmp_path, "good", "crash=100+200", "fail", "refuse")
    after_good, after_bad = derived(tmp_path, "a", [good]), derived(tmp_path, "b", [good, bad])
    last = derived(tmp_path, "c", [after_bad])
    wanted = [good, crashing, bad, refused, after_good, after_bad, last]
    shown = []
    # One retry: a checkpoint between two crashes gives it back.
    found = swept(ray, tmp_path, wanted, show=lambda *event: shown.append(event))
    assert found == [
        ("done", ""),
        ("done", ""),
        ("failed", "exit code 1"),
        ("failed", "exit code 2"),
        ("done", ""),
        ("blocked", f"needs {bad.name}"),
        ("blocked", "needs b"),
    ]
    assert_whole(good)
    assert_whole(crashing)
    assert attempts(tmp_path, crashing) == ["train", "resume", "resume"]
    assert len(attempts(tmp_path, bad)) == 2
    assert len(attempts(tmp_path, refused)) == 1
    assert sweep.tail(sweep.log_file(tmp_path, bad)) == ["first line", "the reason for it"] * 2
    events = [event for name, event in shown if name == crashing.name]
    assert "killed by signal 9, next attempt in 1 s" in events
    assert events[-1] == "done"
    assert swept(ray, tmp_path, [good, crashing, after_good]) == [("done", "finished before")] * 3
    assert attempts(tmp_path, good) == ["train"]


def test_a_stopped_sweep_saves_and_the_same_command_continues(ray, tmp_path):
    wanted = units(tmp_path, "slow", "slow2", "slow3", frames=1_200)
    report = derived(tmp_path, "report", wanted)

    def two_saved():
        return int(sum(sweep.saved_frames(unit) > 0 for unit in wanted) >= 2)

    found = swept(ray, tmp_path, [*wanted, report], requests=two_saved)
    assert found == [("stopped", "")] * 4
    assert processes(tmp_path) == []
    assert sum(0 < sweep.saved_frames(unit) < 1_200 for unit in wanted) == 2
    assert swept(ray, tmp_path, [*wanted, report]) == [("done", "")] * 4
    for unit in wanted:
        assert_whole(unit, 1_200)
        assert attempts(tmp_path, unit) in (["train"], ["train", "resume"])


def test_a_second_request_kills(ray, tmp_path):
    [unit] = units(tmp_path, "deaf", frames=10**6)
    assert swept(ray, tmp_path, [unit], requests=lambda: 2 * bool(sweep.saved_frames(unit))) == [
        ("stopped", "")
    ]
    until(lambda: processes(tmp_path) == [])


def test_a_killed_driver_takes_its_commands_with_it_and_loses_nothing(ray, nodes, tmp_path):
    wanted = units(tmp_path, "slow", "slow2", frames=1_200)
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from test_sweep import sweep, swept, units\n"
        "out = Path(sys.argv[1])\n"
        "with sweep.connected(sys.argv[3]) as ray:\n"
        "    swept(ray, out, units(out, 'slow', 'slow2', frames=1_200))"
    )
    words = [str(tmp_path), str(Path(__file__).parent), nodes.address]
    driver = subprocess.Popen([sys.executable, "-c", script, *words])
    until(lambda: all(sweep.saved_frames(unit) for unit in wanted))
    driver.kill()
    driver.wait()
    assert swept(ray, tmp_path, wanted) == [("done", "")] * 2
    for unit in wanted:
        assert_whole(unit, 1_200)
        assert attempts(tmp_path, unit) == ["train", "resume"]


def parent_of(process):
    stat = (Path("/proc") / str(process) / "stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def kill_worker_of(process, _):
    os.kill(parent_of(process), signal.SIGKILL)


def kill_node_of(process, nodes):
    raylets = {node.all_processes["raylet"][0].process.pid: node for node in nodes.worker_nodes}
    while process not in raylets:
        process = parent_of(process)
    nodes.remove_node(raylets[process], allow_graceful=False)
    nodes.add_node(num_cpus=1, **SMALL)


@pytest.mark.parametrize("kill", [kill_worker_of, kill_node_of])
def test_what_ran_on_a_lost_worker_or_node_is_resumed(kill, ray, nodes, tmp_path, capfd):
    wanted = units(tmp_path, *(f"slow{i}" for i in range(4)), frames=1_200)
    struck = []

    def look():
        for unit in wanted:
            process = user_of(unit.product)
            if process and not struck and 0 < sweep.saved_frames(unit) < 600:
                kill(int(process), nodes)
                struck.append(unit)
        return 0

    assert swept(ray, tmp_path, wanted, requests=look) == [("done", "")] * 4
    assert struck
    assert capfd.readouterr().out == ""
    for unit in wanted:
        assert_whole(unit, 1_200)
        assert attempts(tmp_path, unit) == ["train", "resume"][: 1 + (unit in struck)]
    until(lambda: processes(tmp_path) == [])


def test_a_node_that_was_given_up_stops_when_another_takes_over(tmp_path):
    """Locks hold on one machine only: two nodes would train one run."""
    [unit] = units(tmp_path, "deaf", frames=10**6)
    (tmp_path / sweep.INTERNAL).mkdir()
    outcomes = []
    task = sweep.Task(unit, tmp_path, 0, FAKE, None)
    thread = threading.Thread(target=lambda: outcomes.append(task()))
    thread.start()
    until(lambda: sweep.saved_frames(unit))
    assert sweep.Claim(tmp_path, unit, "elsewhere 1").take().split()[0] != "elsewhere"
    thread.join(30)
    assert outcomes[0].state == "stopped"
    assert processes(tmp_path) == []
    assert user_of(unit.product) is None


def test_a_run_in_use_is_waited_for(tmp_path):
    [unit] = units(tmp_path, "good")
    unit.product.mkdir(parents=True)
    (tmp_path / sweep.INTERNAL).mkdir()
    lock = locked(unit.product)
    threading.Timer(1.5, lock.close).start()
    start = time.monotonic()
    assert sweep.Task(unit, tmp_path, 0, FAKE, None)().state == "done"
    assert time.monotonic() - start > 1.4


def test_another_command_in_the_same_place_is_refused_and_a_moved_folder_is_not(tmp_path):
    out = tmp_path / "here"
    [unit] = units(out, "good", imports=("mine",))
    (out / sweep.INTERNAL).mkdir(parents=True)
    assert sweep.Task(unit, out, 0, FAKE, None)().state == "done"
    [other] = units(out, "good", frames=200)
    with pytest.raises(UserError, match=r"was trained by `fastr train good .*--frames 400"):
        sweep.finished(out, other)
    moved = out.rename(tmp_path / "there")
    assert sweep.finished(moved, units(moved, "good")[0])


def test_a_derived_product_is_made_again_unless_it_is_whole_and_of_this_command(tmp_path):
    unit = derived(tmp_path, "thing")
    unit.product.write_text("of another program")
    with pytest.raises(UserError, match="is not of this sweep"):
        sweep.clear(tmp_path, unit)
    sweep.note(tmp_path, unit, "started")
    sweep.clear(tmp_path, unit)
    unit.product.write_text("whole")
    assert not sweep.finished(tmp_path, unit)
    sweep.record(tmp_path, unit)
    assert sweep.finished(tmp_path, unit)
    other = Unit(unit.name, (*unit.arguments, "--limit", "9"), unit.product)
    assert not sweep.finished(tmp_path, other)
    unit.product.unlink()
    assert not sweep.finished(tmp_path, unit)


def test_how_trainings_are_watched_is_no_part_of_them(tmp_path):
    [unit] = units(tmp_path, "good", watching=("--patience", "300"))
    [other] = units(tmp_path, "good", watching=("--track", "wandb", "tensorboard"))
    RunWriter.create(
        unit.product, {"train": {}, "provenance": {"command": [*unit.command]}}
    ).close()
    assert not sweep.finished(tmp_path, other)
    assert sweep.next_arguments(other) == ("resume", str(unit.product), *other.watching)


def test_what_no_node_can_give_is_refused(ray):
    for gpus, cpus, message in (
        (1.0, 1.0, "--gpus-per-run is 1, and no node"),
        (0.0, 64.0, "--cpus-per-run is 64, and no node"),
        (0.0, 1.5, "whole number"),
    ):
        with pytest.raises(UserError, match=message):
            sweep.resources(ray, gpus, cpus)


WRONG = {
    "task": (["table1", "--tasks", "humanoid-wlak"], ["humanoid-walk"]),
    "method": (["table1", "--methods", "fster"], ["fster", "fastr"]),
    "method twice": (["table1", "--methods", "sac", "sac"], ["--methods", "once"]),
    "its own": (["table1", "--", "--frames", "9"], ["--frames", "after --"]),
    "nothing to keep": (["transfer", "--methods", "sac"], ["sac"]),
    "no replay": (["misfit", "--methods", "fastr"], ["ctrl-sr"]),
    "split misfit": (["misfit", "--seeds-per-run", "1"], ["--seeds-per-run"]),
}


@pytest.mark.parametrize(("arguments", "named"), WRONG.values(), ids=WRONG.keys())
def test_wrong_command_gets_one_sentence(arguments, named, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(["sweep", *arguments], *named)
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_no_training_takes_is_refused_before_any_starts(tmp_path, capsys):
    arguments = ["sweep", "smoke", "--methods", "td3", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="2"):
        cli.run([*arguments, "--", "--discont", "3"])
    assert "--discont" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_taken_and_a_cluster_that_is_absent_are_refused(refused, tmp_path):
    out = tmp_path / "out"
    (out / ".sweep").mkdir(parents=True)
    with locked(out / ".sweep"):
        refused(["sweep", "smoke", "--out", str(out)], f"in use by process {os.getpid()}")
    address = ["--address", "127.0.0.1:1", "--out", str(out)]
    refused(["sweep", "smoke", *address], "No Ray cluster answers at 127.0.0.1:1")


def test_a_dry_run_prints_commands_and_updates_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    words = ["sweep", "ablation", "--tasks", "walker-walk", "--preset", "laptop", "--dry-run"]
    assert cli.run([*words, "--json", "--out", str(out)]) == 0
    plan = json.loads(capsys.readouterr().out)
    # 50,001 agent steps, of which 1,000 are random.
    assert [run["updates"] for run in plan["runs"]] == [49_001] * 4 + [0]
    assert [run["command"][1] for run in plan["runs"]] == ["train"] * 4 + ["report"]
    assert plan["runs"][-1]["needs"] == [run["name"] for run in plan["runs"][:4]]
    assert not out.exists()


@pytest.mark.usefixtures("with_examples")
def test_a_method_of_ones_own_is_swept_if_its_module_is_named(tmp_path, capsys):
    arguments = ["sweep", "smoke", "--methods", "gated", "--dry-run", "--json", "--out"]
    assert cli.run([*arguments, str(tmp_path)]) == 2
    assert "The method gated is unknown." in capsys.readouterr().err
    assert cli.run(["--import", "gated", *arguments, str(tmp_path)]) == 0
    command = json.loads(capsys.readouterr().out)["runs"][0]["command"]
    assert command[:4] == ["fastr", "--import", "gated", "train"]


def real_rows(path):
    """Rows in no order, because evaluations arrive when they do; and without the clock."""
    return sorted(json.dumps(row | {"seconds": 0}) for row in RunDirectory.open(path).rows())


def test_on_this_machine_a_stopped_sweep_ends_with_the_rows_of_the_command_by_hand(nodes, tmp_path):
    """All real: Ray embedded and Ctrl-C; then the same command, now on a cluster."""
    out, hand, fastr = tmp_path / "swept", tmp_path / "hand", [sys.executable, "-m", "fastr.cli"]
    choice = ["--tasks", "gym:Pendulum-v1", "--methods", "td3", "--frames", "20000"]
    command = [*fastr, "sweep", "smoke", *choice, "--out", str(out)]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    run = out / "train" / "gym-Pendulum-v1" / "td3"
    unit = Unit("", ("train",), run)
    until(lambda: sweep.saved_frames(unit))
    os.killpg(first.pid, signal.SIGINT)
    message = first.communicate()[1]
    assert first.returncode == 130
    assert all(line.startswith("fastr: ") for line in message.splitlines() if line)
    assert "the same command continues later" in message
    assert 0 < sweep.saved_frames(unit) < 20_000
    subprocess.run([*command, "--address", nodes.address], check=True)
    assert (out / "report" / "smoke" / "index.html").exists()
    recorded = json.loads((run / "config.json").read_text())["provenance"]["command"]
    subprocess.run([*fastr, *recorded[1:-1], str(hand)], check=True)
    assert real_rows(run) == real_rows(hand)


def test_a_sweep_may_be_given_so_many_minutes(nodes, tmp_path):
    words = ["sweep", "smoke", "--minutes", "0", "--address", nodes.address, "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "fastr.cli", *words], check=True, capture_output=True, text=True
    )
    assert "5 stopped" in done.stdout
    assert "the same command continues later" in done.stderr
