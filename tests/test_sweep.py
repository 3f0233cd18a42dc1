"""A sweep loses no run and repeats none: with commands that start at once, and with real ones."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from unittest.mock import create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastr import cli
from fastr.cli.interrupts import stop_requests
from fastr.cli.watching import Watching
from fastr.core import UserError
from fastr.runs import RunDirectory, RunWriter, locked, user_of
from fastr.studies.units import WATCHING, Unit
from fastr.sweep import hours, state
from fastr.sweep.engine import AbstractJob
from fastr.sweep.hours import H200, RATES, Rate, fitting, measured_here, predicted, wall_clock
from fastr.sweep.local import LocalEngine, Slot, gpus, shares, slots
from fastr.sweep.schedule import Scheduler
from fastr.sweep.view import View, line, summarized
from sweeping import FAKE, FRAMES, assert_whole, attempts, processes, units, until


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("fastr.sweep.schedule.LONGEST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("fastr.sweep.schedule.POLL_SECONDS", 0.02)


def swept(out, wanted, asked=lambda _: 0, *, retries=2):
    """Run a sweep to its end, two units at a time; its scheduler."""
    scheduler = Scheduler(out, wanted, LocalEngine([Slot({}, ())] * 2), retries, FAKE)
    scheduler.run(lambda _: None, lambda: asked(scheduler))
    return scheduler


def states(scheduler):
    return {work.unit.name.split("/")[1]: work.state for work in scheduler.works}


def test_every_run_is_made_once_and_a_second_sweep_makes_none(tmp_path):
    wanted = units(tmp_path, "good", "good2", "good3")
    assert set(states(swept(tmp_path, wanted)).values()) == {"done"}
    again = swept(tmp_path, wanted)
    assert {work.attempts for work in again.works} == {0}
    for unit in wanted:
        assert_whole(unit)
        assert attempts(tmp_path, unit) == ["train"]


def test_a_killed_run_resumes_and_progress_renews_its_retries(tmp_path):
    [unit] = units(tmp_path, "crash=100+200+300")
    scheduler = swept(tmp_path, [unit], retries=1)
    assert states(scheduler) == {"crash=100+200+300": "done"}
    assert attempts(tmp_path, unit) == ["train", "resume", "resume", "resume"]
    assert_whole(unit)


def test_a_run_killed_before_its_end_counts_as_in_vain_without_a_new_checkpoint(tmp_path):
    [unit] = units(tmp_path, "fail")
    scheduler = swept(tmp_path, [unit], retries=2)
    [work] = scheduler.works
    assert (work.state, work.attempts, work.note) == ("failed", 3, "exit code 1")


def test_a_refused_command_is_not_tried_again_and_says_why(tmp_path):
    [unit] = units(tmp_path, "refuse")
    [work] = swept(tmp_path, [unit]).works
    assert (work.state, work.attempts, work.note) == ("failed", 1, "fastr: that cannot be.")


def test_what_needs_a_failed_run_is_blocked_and_the_rest_goes_on(tmp_path):
    bad, good = units(tmp_path, "fail", "good")
    after = [
        Unit(f"after/{name}", ("make", name, "--out", str(tmp_path / name)), tmp_path / name,
             needs=(need,))
        for name, need in (("bad", bad), ("good", good))
    ]  # fmt: skip
    last = Unit("after/last", ("make", "--out", "x"), tmp_path / "x", needs=(after[0],))
    scheduler = swept(tmp_path, [bad, good, *after, last], retries=0)
    found = {work.unit.name: (work.state, work.note) for work in scheduler.works}
    assert found["after/good"] == ("done", "")
    assert found["after/bad"] == ("blocked", "needs train/fail/fastr")
    assert found["after/last"] == ("blocked", "needs after/bad")
    assert (tmp_path / "good").read_text() == "whole"


def test_nothing_begins_before_what_it_needs(tmp_path):
    [source] = units(tmp_path, "good")
    heir = Unit("heir", ("make", "--out", str(tmp_path / "heir")), tmp_path / "heir",
                needs=(source,))  # fmt: skip
    order = []
    scheduler = Scheduler(tmp_path, [heir, source], LocalEngine([Slot({}, ())] * 2), 0, FAKE)

    def look(works):
        order.extend(w.unit.name for w in works if w.attempts and w.unit.name not in order)
        if heir_work.attempts:
            assert RunDirectory.open(source.run).finished()

    heir_work = scheduler.works[0]
    scheduler.run(look, lambda: 0)
    assert order == [source.name, "heir"]


def test_a_half_made_product_is_made_again_and_a_whole_one_is_kept(tmp_path):
    product = tmp_path / "thing"
    unit = Unit("thing", ("make", "--out", str(product)), product)
    product.write_text("half")
    [work] = swept(tmp_path, [unit]).works
    assert (work.state, work.note.partition(";")[0]) == (
        "failed",
        f"{product} is not of this sweep",
    )
    state.log_file(tmp_path, unit).parent.mkdir()
    state.log_file(tmp_path, unit).touch()
    assert swept(tmp_path, [unit]).works[0].state == "done"
    assert product.read_text() == "whole"
    assert json.loads(state.result_file(tmp_path, unit).read_text()) == {
        "arguments": list(unit.arguments),
        "result": {"made": str(product)},
    }
    assert swept(tmp_path, [unit]).works[0].attempts == 0
    product.unlink()
    assert swept(tmp_path, [unit]).works[0].attempts == 1
    other = Unit("thing", ("make", "--all", "--out", str(product)), product)
    with pytest.raises(UserError, match="was made by"):
        swept(tmp_path, [other])


def test_a_stopped_sweep_leaves_checkpoints_and_no_process_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.2")
    wanted = units(tmp_path, "good", "good2", "good3")

    def running(_):
        return int(all(state.progress(unit) for unit in wanted[:2]))

    scheduler = swept(tmp_path, wanted, running)
    assert states(scheduler) == dict.fromkeys(("good", "good2", "good3"), "stopped")
    assert processes(tmp_path) == []
    assert all(0 < state.saved_frames(unit) < FRAMES for unit in wanted[:2])
    assert not wanted[2].run.exists()
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0")
    assert set(states(swept(tmp_path, wanted)).values()) == {"done"}
    assert [attempts(tmp_path, unit) for unit in wanted] == [["train", "resume"]] * 2 + [["train"]]
    for unit in wanted:
        assert_whole(unit)


@pytest.mark.parametrize(("code", "note"), [(143, "stopped by somebody"), (1, "exit code 1")])
def test_a_run_that_somebody_stops_goes_on(code, note, tmp_path):
    scheduler = Scheduler(tmp_path, units(tmp_path, "good"), LocalEngine([]), 2, FAKE)
    [work] = scheduler.works
    job = create_autospec(AbstractJob)
    job.exit_code.return_value, job.problem.return_value = code, ""
    scheduler.follow(work, job)
    assert (work.state, work.note) == ("retrying", note)


def test_a_second_request_ends_everything_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_STEP_SECONDS", "60")
    [unit] = units(tmp_path, "good")
    asked = []

    def twice(_):
        if unit.run.exists():
            asked.append(time.monotonic())
        return 2 * bool(asked)

    scheduler = swept(tmp_path, [unit], twice)
    assert states(scheduler) == {"good": "stopped"}
    # From the request on: how long a process takes to start is the machine's affair.
    assert time.monotonic() - asked[0] < 30
    assert processes(tmp_path) == []


def test_a_killed_sweep_leaves_nobody_behind_and_what_it_ran_was_saved(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.2")
    [unit] = units(tmp_path, "good")
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); import test_sweep;"
        "out = Path(sys.argv[1]); test_sweep.swept(out, test_sweep.units(out, 'good'))"
    )
    here = str(Path(__file__).parent)
    sweep = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), here])
    until(lambda: state.progress(unit) is not None)
    sweep.kill()
    sweep.wait()
    until(lambda: not processes(tmp_path))
    assert 0 < state.saved_frames(unit) < FRAMES
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0")
    assert states(swept(tmp_path, [unit])) == {"good": "done"}
    assert_whole(unit)


def test_workers_of_a_killed_process_end_too(tmp_path):
    script = (
        "import os, sys, time; from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import get_context\n"
        "from fastr.envs.processes import end_with_parent\n"
        "pool = ProcessPoolExecutor(1, get_context('spawn'), end_with_parent)\n"
        "open(sys.argv[1], 'w').write(str(pool.submit(os.getpid).result()) + '.')\n"
        "time.sleep(60)"
    )
    said = tmp_path / "worker"
    parent = subprocess.Popen([sys.executable, "-c", script, str(said)])
    until(lambda: said.exists() and said.read_text().endswith("."))
    worker = Path("/proc") / said.read_text().rstrip(".")
    assert worker.exists()
    parent.kill()
    parent.wait()
    until(lambda: not worker.exists() or "Z" in (worker / "stat").read_text().split()[2])


def test_a_run_in_use_is_waited_for(tmp_path):
    [unit] = units(tmp_path, "good")
    unit.run.mkdir(parents=True)
    notes = []
    lock = locked(unit.run)
    assert user_of(unit.run) == str(os.getpid())

    def asked(scheduler):
        notes.append(scheduler.works[0].note)
        if len(notes) == 10:
            lock.close()
        return 0

    assert states(swept(tmp_path, [unit], asked)) == {"good": "done"}
    assert notes[5] == f"in use by process {os.getpid()}"
    assert user_of(unit.run) is None
    assert user_of(tmp_path / "nowhere") is None


def test_another_budget_in_the_same_place_is_refused_and_a_moved_folder_is_not(tmp_path):
    out = tmp_path / "here"
    swept(out, units(out, "good"))
    with pytest.raises(UserError, match=r"was made by `fastr train good .*--frames 400") as error:
        swept(out, units(out, "good", frames=200))
    assert "\n" not in str(error.value)
    moved = out.rename(tmp_path / "there")
    assert swept(moved, units(moved, "good")).works[0].attempts == 0


def test_a_run_whose_last_checkpoint_is_not_whole_is_not_finished(tmp_path):
    [unit] = units(tmp_path, "good")
    swept(tmp_path, [unit])
    run = RunDirectory.open(unit.run)
    assert run.finished()
    weights = run.latest().location("state.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not run.finished()
    assert states(swept(tmp_path, [unit])) == {"good": "done"}
    assert_whole(unit)


@given(st.binary(max_size=300), st.integers(0, 3))
def test_any_bytes_may_stand_in_rows(tmp_path_factory, junk, count):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    row = {"kind": "evaluation", "frames": 7, "agent_steps": 4, "seconds": 1.5, "return": 2.0}
    path.write_bytes((json.dumps(row).encode() + b"\n") * count + b"\n" + junk)
    found = state.newest_rows(path)
    assert list(found[:count]) == [row] * count
    assert all(state.sound_row(json.dumps(entry).encode()) == entry for entry in found)
    for name in ("seconds", "return"):
        assert state.sound_row(json.dumps(row | {name: 10**400}).encode()) is None


def test_progress_reads_the_newest_evaluation_of_a_long_file(tmp_path):
    [unit] = units(tmp_path, "good", frames=10_000)
    unit.run.mkdir(parents=True)
    rows = [
        {"kind": "evaluation", "seed": seed, "frames": frames, "agent_steps": frames // 2 + 1,
         "seconds": frames / 10, "return": frames + seed, "padding": "x" * 500}
        for frames in range(0, 5_000, 10)
        for seed in (0, 1)
    ]  # fmt: skip
    (unit.run / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (unit.run / "rows.jsonl").stat().st_size > 2 * state.TAIL_BYTES
    found = state.progress(unit)
    assert (found.frames, found.budget, found.mean_return) == (4_990, 10_000, 4_990.5)
    assert found.seconds_left == pytest.approx(499 * (10_000 / 4_990 - 1))


@given(st.integers(1, 40), st.integers(1, 20))
def test_cores_are_dealt_out_once_each(cores, count):
    dealt = shares(tuple(range(cores)), count)
    assert len(dealt) == count
    if 1 < count <= cores:
        assert sorted(core for share in dealt for core in share) == list(range(cores))
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    else:
        assert dealt == [()] * count


def test_devices_are_those_that_jax_would_see(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-a1")
    assert gpus() == ["3", "GPU-a1"]
    names = [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots(2)]
    assert names == ["3", "GPU-a1", "3", "GPU-a1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpus() == []
    assert all(slot.environment == {} for slot in slots(2))


def test_a_quota_leaves_fewer_places_on_all_cores(monkeypatch):
    """Which cores a quota is spent on is not this program's to choose."""
    monkeypatch.setattr("fastr.sweep.local.gpus", list)
    monkeypatch.setattr("fastr.sweep.local.usable_cores", lambda: 8)
    monkeypatch.setattr("fastr.sweep.local.allowed_cores", lambda: tuple(range(64)))
    assert [slot.cores for slot in slots(None)] == [tuple(range(32)), tuple(range(32, 64))]
    assert LocalEngine(slots(None)).places() == "2 at a time on 8 cores of this machine"


def chain(lengths):
    """Units that each need the one before, and their hours."""
    found = []
    for i, _ in enumerate(lengths):
        found.append(Unit(f"u{i}", (), Path(f"u{i}"), needs=tuple(found[-1:])))
    return found, {unit.name: hours for unit, hours in zip(found, lengths, strict=True)}


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=8), st.integers(1, 4), st.booleans())
def test_wall_clock_lies_between_its_bounds(lengths, places, linked):
    found, hours = chain(lengths)
    if not linked:
        found = [Unit(unit.name, (), unit.product) for unit in found]
    end = wall_clock(found, hours, places)
    least = sum(lengths) if linked else max(*lengths, sum(lengths) / places)
    assert least - 1e-9 <= end <= sum(lengths) + 1e-9


def test_hours_are_steps_over_rate_and_a_guess_says_so(tmp_path):
    [unit] = units(tmp_path, "good", seeds=(0, 1, 2, 3, 42), frames=1_000_000)
    known = next(rate for rate in RATES if (rate.method, rate.seeds) == ("fastr", 5))
    hours = predicted(unit, known.hardware, []).hours
    # 500,001 agent steps, of which the first 5,000 are random.
    assert hours.low == pytest.approx(495_001 / known.high / 3600)
    assert hours.high == pytest.approx(495_001 / known.low / 3600)
    few = fitting(unit, [Rate("x", "paper", "fastr", 1, 100.0, 100.0, "somewhere")])
    assert (few.low, few.high) == (10.0, 40.0)
    assert few.origin.startswith("a guess, from 1 seed: ")
    assert fitting(unit, [Rate("x", "paper", "sac", 1, 100.0, 100.0, "somewhere")]) is None
    assert predicted(unit, "an abacus", []) == (None, "fastr, paper: not measured on an abacus")
    for fastest, told in ((1_000.0, True), (1_001.0, False)):
        rate = Rate("x", "paper", "fastr", 5, 100.0, fastest, "somewhere")
        assert (predicted(unit, "an abacus", [rate]).hours is not None) == told
    # A run that lies here is a better source than any table.
    unit.run.mkdir(parents=True)
    row = {"kind": "episode", "frames": 10_000, "agent_steps": 5_000, "seconds": 10.0, "return": 1}
    (unit.run / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert measured_here([unit]) == []
    row |= {"frames": 12_000, "agent_steps": 6_000}
    (unit.run / "rows.jsonl").write_text(json.dumps(row) + "\n")
    here = predicted(unit, known.hardware, measured_here([unit])).hours
    assert here.low == here.high == pytest.approx(494_001 / 100 / 3600)


def of_options(out, *options):
    [unit] = units(out, "good", seeds=(0, 1, 2, 3, 42), frames=1_000_000, options=options)
    return predicted(unit, H200, [])


def test_hours_follow_the_options_of_the_trainings(tmp_path):
    usual = of_options(tmp_path)
    skipping = of_options(tmp_path, "--frame_skip=4", "--frame-skip", "8")
    # 125,001 agent steps, of which 1,250 are random.
    assert skipping.hours.low == pytest.approx(usual.hours.low * 123_751 / 495_001)
    assert skipping.origin == f"a guess, from --frame-skip 2: {usual.origin}"
    warm = of_options(tmp_path, "--random-frames", "500_000")
    assert warm.hours.high == pytest.approx(usual.hours.high * 250_001 / 495_001)
    assert of_options(tmp_path, "--discount", "0.98") == usual
    why = "fastr, paper --batch-size: not measured on NVIDIA H200"
    assert of_options(tmp_path, "--batch-size=64") == (None, why)


def test_a_machine_without_a_gpu_is_named_by_its_cores(monkeypatch):
    monkeypatch.setattr(hours, "gpus", list)
    monkeypatch.setattr(hours, "usable_cores", lambda: 2)
    assert hours.this_hardware() == hours.CPU
    monkeypatch.setattr(hours, "usable_cores", lambda: 64)
    assert hours.this_hardware() == "64 CPU cores"


def test_the_table_shows_names_as_text_and_every_state(tmp_path, monkeypatch):
    wanted = units(tmp_path, "[red]x[/red]", "good")
    scheduler = Scheduler(tmp_path, wanted, LocalEngine([]), 0, FAKE)
    scheduler.works[0].note = "[bold]why"
    view = View("sweep")
    monkeypatch.setattr(view.console, "_width", 120)
    with view.console.capture() as shown:
        view.console.print(view.table(scheduler.works))
    assert "train/-red-x--red-/fastr" in shown.get()
    assert "[bold]why" in shown.get()
    assert "2 waiting" in shown.get()
    assert line(scheduler.works[0]) == "train/-red-x--red-/fastr: waiting, [bold]why"
    assert summarized(scheduler.works[1])["command"][:3] == ["fastr", "train", "good"]


WRONG = {
    "experiment": (["tabel1"], ["tabel1 is unknown. Did you mean table1? It is one of table1, "]),
    "no experiment": ([], ["sweep needs NAME, for example `fastr sweep table1 --dry-run`."]),
    "task": (["table1", "--tasks", "humanoid-wlak"], ["humanoid-walk"]),
    "method": (["table1", "--methods", "fster"], ["fster", "fastr"]),
    "method twice": (["table1", "--methods", "sac", "sac"], ["--methods", "once"]),
    "seed": (["table1", "--seeds", "-1"], ["--seeds", "0"]),
    "seed twice": (["table1", "--seeds", "1", "1"], ["--seeds names 1 twice"]),
    "many frames": (["table1", "--frames", "9" * 20], ["--frames", "too large"]),
    "frames": (["table1", "--frames", "0"], ["--frames", "at least 1"]),
    "jobs": (["smoke", "--jobs", "0"], ["--jobs", "from 1"]),
    "many jobs": (["smoke", "--jobs", "1001"], ["--jobs is 1001", "to 1000"]),
    "jobs of ray": (
        ["smoke", "--engine", "ray", "--jobs", "2"],
        ["--jobs is for --engine local, and this is --engine ray; leave it out"],
    ),
    "hours of a sweep": (["smoke", "--hours-on", "2 CPU cores"], ["--hours-on is for --dry-run"]),
    **{
        f"{name} of local": (["smoke", name, value], [f"{name} is for --engine ray"])
        for name, value in (
            ("--address", "node:6379"),
            ("--gpus-per-run", "1"),
            ("--cpus-per-run", "2"),
        )
    },
    "retries": (["smoke", "--retries", "-1"], ["--retries"]),
    "part": (["table1", "--seeds-per-run", "0"], ["--seeds-per-run"]),
    "impatient": (["smoke", "--", "--patience", "0"], ["--patience is 0.0; it must be from 1"]),
    "untracked": (["smoke", "--", "--track"], ["--track needs a value: it takes tensorboard"]),
    "its own": (["table1", "--", "--frames", "9"], ["--frames", "behind --"]),
    "nothing to keep": (["transfer", "--methods", "sac"], ["sac"]),
    "no replay": (["misfit", "--methods", "fastr"], ["ctrl-sr"]),
    "split misfit": (["misfit", "--seeds-per-run", "1"], ["--seeds-per-run"]),
}


@pytest.mark.parametrize(("arguments", "named"), WRONG.values(), ids=WRONG.keys())
def test_wrong_command_gets_one_sentence(arguments, named, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(["sweep", *arguments], *named)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["run", "run/sweep"])
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_sweep_inside_a_run_is_refused(out, more, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RunWriter.create(tmp_path / "run", {"train": {}, "provenance": {}}).close()
    before = sorted(tmp_path.rglob("*"))
    refused(["sweep", "smoke", "--out", out, *more], f"{tmp_path}/run is a run directory, and")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_of_options_that_no_training_takes_is_refused(capsys):
    arguments = ["smoke", "--methods", "td3", "--dry-run", "--", "--discont", "3"]
    assert cli.run(["sweep", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--discont" in said.err.splitlines()[-1]
    assert "`fastr train --method td3 --help` lists all options of td3." in said.err


def test_how_trainings_are_watched_is_no_part_of_them(tmp_path, capsys):
    assert tuple(f"--{field.name}" for field in fields(Watching)) == WATCHING
    watching = ["--patience", "300", "--track=tensorboard"]
    arguments = ["--tasks", "gym:Pendulum-v1", "--methods", "td3", "--json", "--dry-run"]
    assert cli.run(["sweep", "smoke", *arguments, "--", *watching]) == 0
    command = json.loads(capsys.readouterr().out)["runs"][0]["command"]
    assert command[-3:] == watching
    [unit] = units(tmp_path, "good", watching=("--patience", "300"))
    [other] = units(tmp_path, "good", watching=("--track", "wandb", "tensorboard"))
    RunWriter.create(unit.run, {"train": {}, "provenance": {"command": [*unit.command]}}).close()
    assert not state.finished(tmp_path, other)
    assert state.next_arguments(other) == ("resume", str(unit.run), *other.watching)


@pytest.fixture
def hearing():
    """These tests may run deaf, under nohup."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hearing")
def test_requests_to_stop_are_counted_and_the_handlers_given_back():
    before = signal.getsignal(signal.SIGTERM)
    with stop_requests("saving") as asked:
        for count, number in enumerate((signal.SIGINT, signal.SIGTERM), 1):
            os.kill(os.getpid(), number)
            assert len(asked) == count
    assert signal.getsignal(signal.SIGTERM) == before


def test_two_sweeps_on_one_directory_the_second_is_refused(tmp_path, capsys):
    (tmp_path / ".sweep").mkdir()
    with locked(tmp_path / ".sweep"):
        assert cli.run(["sweep", "smoke", "--out", str(tmp_path)]) == 2
    assert f"in use by process {os.getpid()}" in capsys.readouterr().err


def test_a_plan_runs_nothing_and_loads_no_jax(tmp_path):
    code = (
        "import sys, fastr.cli\n"
        "assert fastr.cli.run(sys.argv[1:]) == 0\n"
        "assert 'jax' not in sys.modules and 'ray' not in sys.modules"
    )
    arguments = ["sweep", "table1", "--dry-run", "--json", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    plan = json.loads(done.stdout)
    assert len(plan["runs"]) == 60
    assert plan["runs"][0]["command"][:3] == ["fastr", "train", "cheetah-run"]
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("with_examples")
def test_a_method_of_ones_own_is_swept_if_its_module_is_named(tmp_path, capsys, monkeypatch):
    arguments = ["sweep", "smoke", "--methods", "gated", "--dry-run", "--json", "--out"]
    assert cli.run([*arguments, str(tmp_path)]) == 2
    assert "The method gated is unknown." in (said := capsys.readouterr().err)
    assert "`fastr --import MODULE`" in said
    assert cli.run(["--import", "gated", *arguments, str(tmp_path)]) == 0
    command = json.loads(capsys.readouterr().out)["runs"][0]["command"]
    assert command[:4] == ["fastr", "--import", "gated", "train"]
    monkeypatch.setenv("PYTHONPATH", str(Path(sys.modules["gated"].__file__).parent), os.pathsep)
    assert cli.run(["--import", "gated", *arguments, str(tmp_path), "--", "--discont", "3"]) == 2
    assert "`fastr --import gated train --method gated --help` lists" in capsys.readouterr().err


def test_a_run_made_with_an_import_is_the_units_own(tmp_path):
    [unit] = units(tmp_path, "good", imports=("gated",))
    command = list(unit.command)
    RunWriter.create(unit.run, {"train": {}, "provenance": {"command": command}}).close()
    assert not state.finished(tmp_path, unit)
    [other] = units(tmp_path, "good", frames=200)
    with pytest.raises(UserError, match="was made by"):
        state.finished(tmp_path, other)


def real_rows(path):
    """Rows in no order, because evaluations arrive when they do; and without the clock."""
    rows = RunDirectory.open(path).rows()
    return sorted(json.dumps(row | {"seconds": 0}) for row in rows)


def test_the_same_rows_as_by_hand(tmp_path, capsys):
    """The command that the plan shows, and a real sweep with a process of its own for it."""
    choice = ["--tasks", "gym:Pendulum-v1", "--methods", "td3", "--out", str(tmp_path / "swept")]
    assert cli.run(["sweep", "smoke", *choice, "--dry-run", "--json"]) == 0
    command = json.loads(capsys.readouterr().out)["runs"][0]["command"]
    swept_run, hand = Path(command[-1]), tmp_path / "hand"
    assert cli.run([*command[1:-1], str(hand)]) == 0
    capsys.readouterr()
    assert cli.run(["sweep", "smoke", *choice, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["finished"]
    assert [run["state"] for run in summary["runs"]] == ["done"]
    assert real_rows(swept_run) == real_rows(hand)
    # Episodes of 200 frames, and evaluations at 0, 200, 400 and 600.
    assert len(real_rows(hand)) == 3 + 4
