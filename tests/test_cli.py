"""The command line: exit codes, one sentence for bad input, help, clean JSON, requests to stop."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fastr.cli import run, training
from fastr.cli.interrupts import end_at_once, stop_requests
from fastr.cli.main import COMMANDS
from fastr.core import UserError
from fastr.runs.directory import RunWriter
from fastr.training.config import preset, to_json
from fastr.training.progress import TrainingProgress
from saved_runs import save_run

FASTR = [sys.executable, "-m", "fastr.cli"]
WRONG = {
    "unknown command": (["trian", "walker-walk"], ["trian is not a command", "mean train"]),
    "no task": (["train"], ["fastr train needs a TASK", "fastr train walker-walk"]),
    "unknown method": (["info", "walker-walk", "--method", "fster"], ["fster", "Did you mean fa"]),
    "no seeds": (["info", "walker-walk", "--seeds"], ["--seeds is empty"]),
    "frame skip": (
        ["info", "walker-walk", "--frame-skip", "3"],
        ["--frames", "a multiple of --frame-skip 3"],
    ),
    "too large": (
        ["train", "walker-walk", "--seeds", *map(str, range(1_000)), "--frames", "100000000"],
        ["1,000 seeds of fastr would take about", "MiB", "at most", "--replay-capacity"],
    ),
    "no run": (["resume", "nowhere"], ["nowhere is not a run directory: it does not exist."]),
    "many episodes": (["eval", "nowhere", "--episodes", "9" * 20], ["--episodes", "too large"]),
    "no module": (["--import", "no_such_module", "--version"], ["--import no_such_module failed"]),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG.keys())
def test_bad_input_gets_one_sentence(arguments, words, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(arguments, *words)
    assert list(tmp_path.iterdir()) == []


OPTIONS = {
    "unknown": (["train", "walker-walk", "--discont", "0.9"], ["--discont", "--discount"]),
    "of another method": (
        ["info", "walker-walk", "--method", "sac", "--feature-dim", "9"],
        ["--feature-dim"],
    ),
    "not a number": (["info", "walker-walk", "--frames", "4k"], ["--frames", "4k"]),
    "unknown choice": (["export", "r", "--out", "o", "--format", "onx"], ["--format", "onnx"]),
    "for all trainings": (["sweep", "smoke", "--", "--patience", "long"], ["--patience", "long"]),
}


@pytest.mark.parametrize(("arguments", "words"), OPTIONS.values(), ids=OPTIONS.keys())
def test_wrong_options_are_named_by_the_parser(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    for word in words:
        assert word in said.err


def test_a_module_that_fails_is_named_with_its_line(refused, tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("def f():\n    raise KeyError('a')\nf()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    place = f"{tmp_path / 'broken_module.py'}:2"
    refused(["--import", "broken_module", "--version"], f"KeyError: 'a', {place})")


# Help


def test_the_list_of_commands_needs_no_jax():
    code = (
        "import sys; from fastr.cli import run; assert run(['--help']) == 0; "
        "assert 'jax' not in sys.modules"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name, command in COMMANDS.items():
        assert f"  {name} " in said.stdout
        assert command.about in said.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        run([name, "--help"])
    said = capsys.readouterr().out
    assert said.startswith(f"usage: fastr {name}")
    assert "(default: None)" not in said


def test_help_has_the_defaults_of_the_chosen_preset(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    for options, frames, noise in ((["--preset", "paper"], 1_000_000, 25), ([], 100_000, 4)):
        with pytest.raises(SystemExit):
            run(["train", *options, "--help"])
        lines = [line for line in capsys.readouterr().out.splitlines() if "(default:" in line]
        for option, value in (("--frames ", frames), ("--noise-levels ", noise)):
            (line,) = [line for line in lines if option in line]
            assert f"(default: {value})" in line


# Output


PRINTING = """
import os
import fastr.cli.main
from fastr.cli.show import print_json
def work(_):
    print("a module", flush=True)
    os.system("echo a simulator")
    return print_json({"result": 1})
fastr.cli.main.run = work
fastr.cli.main.main()
"""


def test_with_json_stdout_has_the_result_alone():
    line = [sys.executable, "-c", PRINTING, "info", "--json"]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, '{"result": 1}\n')
    assert sorted(ended.stderr.splitlines()) == ["a module", "a simulator"]


def test_a_reader_that_leaves_early_gets_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    shown = subprocess.run(
        [*FASTR, "--help"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (shown.returncode, shown.stderr) == (1, "")


# Requests to stop


INTERRUPTED = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # these tests may run under nohup
import fastr.cli.main
fastr.cli.main.run = lambda _: (os.kill(os.getpid(), signal.SIGINT), time.sleep(20))
fastr.cli.main.main()
"""


def test_ctrl_c_ends_a_command_with_130():
    line = [sys.executable, "-c", INTERRUPTED, "info"]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "fastr: stopped.\n")


SAVING = """
import os, signal, sys, time
from fastr.cli.interrupts import end_at_once, stop_requests
signal.signal(signal.SIGINT, signal.default_int_handler)
with stop_requests("saving", then=end_at_once) as asked:
    for number in sys.argv[1:]:
        os.kill(os.getpid(), int(number))
    time.sleep(0.1)
sys.exit(len(asked))
"""


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ([signal.SIGTERM, signal.SIGTERM], 2),
        ([signal.SIGINT, signal.SIGINT], -signal.SIGINT),
    ],
)
def test_the_first_request_is_answered_and_a_second_ctrl_c_ends_at_once(sent, code):
    line = [sys.executable, "-c", SAVING, *(str(int(number)) for number in sent)]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (code, "\nfastr: saving\n")


def test_an_ignored_signal_stays_ignored_and_handlers_are_restored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    term = signal.getsignal(signal.SIGTERM)
    try:
        with stop_requests("saving", then=end_at_once) as asked:
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert asked == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == term


@pytest.mark.parametrize(
    ("task", "advice"),
    [("walker-walk", "fastr resume"), ("toy_envs:Count-v0", "fastr --import toy_envs resume")],
)
def test_a_stopped_run_says_how_to_continue_it(task, advice, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training, "train_and_draw", lambda *_: signal.SIGTERM)
    config, path = preset(task, "fastr", "laptop"), tmp_path / "a run"
    with RunWriter.create(path, {"train": to_json(config), "provenance": {}}) as writer:
        assert training.train_and_report(training.Train(config), config, writer, None) == 143
    said = capsys.readouterr()
    assert said.out == ""
    assert f"; continue with `{advice} '{path}'`.\n" in said.err


@pytest.mark.parametrize(
    ("frames", "advice"),
    [(4_000, "finished: play it with `fastr eval "), (8_000, "`fastr resume ")],
)
def test_a_run_that_exists_is_not_trained_again(frames, advice, tmp_path, refused):
    config, path = save_run(tmp_path / "run", frames=frames), tmp_path / "run"
    with pytest.raises(UserError, match=f"{advice}{path}"):
        training.Train(config, out=path).run()
    refused(["train", "walker-walk", "--preset", "laptop", "--out", str(path)], "holds another run")


# Progress


def test_a_training_without_a_terminal_says_what_is_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("fastr.training.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = TrainingProgress(preset("walker-walk", "fastr", "laptop"))
    for now[0], frames, updates in ((1.0, 2_000, 0), (100.0, 6_000, 2_000), (1100.0, 7_000, 3_000)):
        progress({"kind": "episode", "frames": frames, "updates": updates, "seconds": now[0]})
    # A thousand updates in a thousand seconds, and 46,500 agent steps to come.
    last = "frame 7,000 of 100,000, about 12.9 h left, 1.0 updates/s, 18 min so far"
    assert capsys.readouterr().err.splitlines()[-1] == f"walker-walk: {last}"


# info and bench


def info(capsys, *arguments):
    assert run(["info", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


ENCODERS = {
    "fastr": {"state_encoder": 1_350_144, "action_encoder": 1_326_592},
    "ctrl-sr": {"joint_encoder": 1_360_896},
}
TOTALS = {
    "diff-sr": 24_349_336,
    "sac": 6_613_037,
    "sac-2layer": 3_458_093,
    "td7": 1_143_063,
    "td3": 1_722_903,
}


@pytest.mark.parametrize("method", [*ENCODERS, *TOTALS])
def test_info_counts_the_papers_networks(method, capsys):
    report = info(capsys, "humanoid-walk", "--method", method, "--preset", "paper")
    if method in ENCODERS:
        assert report["parameters"] == ENCODERS[method] | {
            "next_state_encoder": 1_415_680,
            "time_embedding": 65_920,
            "temperature": 25,
            "reward_head": 790_017,
            "critics": 1_580_034,
            "actor": 573_973,
        }
        assert (report["agent_steps"], report["updates"]) == (500_001, 495_001)
    total = report["parameters_total"]
    assert total == sum(report["parameters"].values()) == TOTALS.get(method, total)


def test_multiply_adds_are_those_of_the_layers(capsys):
    sizes = ["--preset", "laptop", "--blocks", "1", "--levels-per-update", "0"]
    arguments = ["walker-walk", *sizes, "--noise-levels"]
    one, three = (
        info(capsys, *arguments, levels)["multiply_adds_per_update"] for levels in ("1", "3")
    )
    sizes = preset("walker-walk", "fastr", "laptop").agent
    hidden, batch = sizes.representation.hidden_dim, sizes.batch_size
    products = 2
    # A further level: the next-state factor without its last layer (its inlet, whose 24 inputs and
    # a place per level are padded to 32, needs no gradient for its input), the scores with what
    # rounding left over, and the level's time embedding with its share of the inlet.
    rows = batch * (3 * products * hidden * hidden + 2 * 32 * hidden)
    scores = 3 * batch * batch * hidden + 2 * batch * hidden
    time = 3 * (128 * 256 + 256 * 128 + 128 * hidden) - 128 * 256
    assert three - one == 2 * (rows + scores + time)


def test_bench_reports_its_units_as_json(capsys):
    sizes = ["--feature-dim", "8", "--hidden-dim", "8", "--batch-size", "8", "--noise-levels", "1"]
    arguments = ["bench", "gym:Pendulum-v1", "--preset", "laptop", "--updates", "2", "--json"]
    assert run([*arguments, "--repeats", "2", "--seeds", "0", "1", *sizes]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["seeds"] == len(report["milliseconds_each_repeat"]) == 2
    measured = report["milliseconds_per_joint_update"]
    assert report["joint_updates_per_second"] == pytest.approx(1e3 / measured)
    assert report["seed_updates_per_second"] == pytest.approx(2e3 / measured)
    assert report["peak_memory_bytes"] > 2**20
    floors = [report[f"{kind}_floor_milliseconds"] for kind in ("arithmetic", "memory")]
    assert min(floors) > 0
    assert report["measured_over_floor"] == pytest.approx(measured / max(floors))
    times = report["milliseconds_per_agent_step"]
    assert list(times) == ["update", "simulation", "evaluation", "loop"]
    assert times["update"] == measured
    slowest = max(list(times)[:3], key=lambda name: times[name])
    assert report["pace"].startswith(f"the {slowest} sets it")


def test_bench_says_which_of_its_processes_died(refused):
    options = ["--method", "td3", "--preset", "laptop", "--seeds", "1", "--batch-size", "8"]
    options += ["--updates", "1", "--repeats", "1", "--frame-skip", "1"]
    refused(
        ["bench", "toy_envs:DeadEvaluation-v0", *options],
        "The evaluation died: its process ended with exit code 3.",
        code=1,
    )
