"""The command line as a new user types it: each wrong command gets one helpful sentence."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastr.cli import ON_TASKS, OTHERS, run, training, usage_of
from fastr.cli.runtime import cache_folder, configure
from fastr.cli.show import print_table
from fastr.cli.training import averaged, going_on
from fastr.cli.wrong_options import SEVERAL, in_words, missing, one_sentence
from fastr.core import UserError
from fastr.runs.directory import RunWriter
from fastr.runs.letters import spell_out
from fastr.training.config import preset, to_json
from fastr.training.profile import STAGES
from fastr.training.progress import TrainingProgress

WRONG = {
    "unknown command": (["trian", "walker-walk"], ["trian", "train"]),
    "loud command": (["TRAIN", "walker-walk"], ["Did you mean train or transfer?"]),
    "option first": (
        ["--preset", "quick", "train", "walker-walk"],
        ["--preset stands before the command, which comes first: `fastr train ...`"],
    ),
    "task first": (["walker-walk", "train"], ["walker-walk stands before the command"]),
    "commas": (["info", "walker-walk", "--seeds", "0,1"], ["0,1 is not that, with commas instead"]),
    "exponent": (
        ["info", "walker-walk", "--frames", "1e6"],
        ["'1e6' is not a whole number in digi"],
    ),
    "help on nothing": (["help", "trian"], ["trian is not a command", "Did you mean train"]),
    "more than the version": (
        ["--version", "walker-walk"],
        ["walker-walk is one word too many; `fastr --version` takes none."],
    ),
    "no task": (["train"], ["TASK", "walker-walk"]),
    "loud task": (["info", "WALKER"], ["Did you mean walker-"]),
    "large batch": (
        ["info", "gym:Pendulum-v1", "--batch-size", "1000000000"],
        ["--batch-size is 1000000000; it must be from 1 to 100000."],
    ),
    "unknown task": (["train", "humanoid-wlak"], ["humanoid-wlak", "humanoid-walk"]),
    "unknown method": (["train", "walker-walk", "--method", "fster"], ["fster", "fastr"]),
    "unknown preset": (["info", "walker-walk", "--preset", "papr"], ["papr", "paper"]),
    "unknown option": (
        ["info", "walker-walk", "--discont", "0.9"],
        ["There is no option --discont. Did you mean --discount?"],
    ),
    "another method's option": (
        ["info", "walker-walk", "--method", "sac", "--feature-dim", "9"],
        ["option --feature-dim.", "`fastr info --method sac --help` lists all options of sac."],
    ),
    "unknown option =": (["info", "walker-walk", "--x=0.9"], ["There is no option --x. `fastr"]),
    "two words": (["info", "walker", "walk"], ["walk is one word too many. `fastr info --help`"]),
    "no method": (["info", "walker-walk", "--method"], ["--method needs a name. It is one of"]),
    "no seeds =": (["info", "walker-walk", "--seeds=", "0"], ["--seeds needs a value: it takes"]),
    "no tracker": (["resume", "nowhere", "--track"], ["--track needs a value: it takes tensor"]),
    "no precision =": (
        ["info", "walker-walk", "--precision="],
        ["--precision needs a value: it is one of float32, tf32, bfloat16. `fastr info --help`"],
    ),
    "no preset": (["sweep", "smoke", "--preset", "None"], ["--preset None is unknown."]),
    "no experiment": (["sweep", ""], ["name needs a value: it is one of table1, "]),
    "no precision": (["info", "walker-walk", "--precision"], ["--precision needs a value. `fastr"]),
    "no budget": (["train", "walker-walk", "--frames"], ["--frames needs a value. `fastr train"]),
    "no directory =": (["theory", "--out="], ["--out is empty; give it a value, or leave it out."]),
    "no directory": (
        ["theory", "--out", ""],
        ["--out is empty; give it a value, or leave it out."],
    ),
    "no number of a shift": (["info", "walker-walk@dead="], ["@dead= is not a shift"]),
    "no word": (["eval", ""], ["A word of the command is empty; give it a value"]),
    "valued flag": (["info", "walker-walk", "--json="], ["an option that takes no value has a ="]),
    "not a number": (["info", "walker-walk", "--frames", "many"], ["--frames", "many"]),
    "seed twice": (["train", "walker-walk", "--seeds", "1", "1"], ["--seeds", "once"]),
    "negative seed": (["train", "walker-walk", "--seeds", "-1"], ["--seeds", "0"]),
    "no frames": (["train", "walker-walk", "--frames", "0"], ["--frames", "at least 1"]),
    "negative frames": (["train", "walker-walk", "--frames", "-2"], ["--frames", "at least 1"]),
    "frame skip": (["info", "walker-walk", "--frame-skip", "3"], ["--frame-skip 3"]),
    "discrete actions": (["info", "gym:CartPole-v1"], ["gym:CartPole-v1", "Discrete"]),
    "unknown gym id": (["info", "gym:HalfCheeta-v5"], ["HalfCheeta-v5"]),
    "a file": (["info", "../robots/arm.py"], ["is written my_module:MyRobot-v0"]),
    "a module's file": (["info", "arm.py:Arm-v0"], ["without its .py: write arm:Arm-v0."]),
    "no module": (["info", "no_such_package:Robot-v0"], ["no_such_package"]),
    "too many seeds": (
        ["train", "walker-walk", "--seeds", *map(str, range(1_000)), "--frames", "100000000"],
        ["1,000 seeds of fastr would take about", "MiB", "at most", "--replay-capacity"],
    ),
    "relative module": (["--import", ".x", "info", "walker-walk"], ["--import .x", "PYTHONPATH"]),
    "nothing to import": (["--import"], ["--import needs the name of a Python module, and then"]),
    "no out": (["collect", "walker-walk"], ["--out"]),
    "nothing to collect": (
        ["collect", "walker-wlak", "--out", "data"],
        ["walker-wlak", "walker-walk"],
    ),
    "no policy": (
        ["collect", "walker-walk", "--policy", "greedy", "--out", "data"],
        ["--policy greedy", "walker-walk"],
    ),
    "no transitions": (
        ["collect", "walker-walk", "--transitions", "0", "--out", "data"],
        ["--transitions", "at least 1"],
    ),
    "many transitions": (
        ["collect", "walker-walk", "--transitions", "9" * 14, "--out", "data"],
        ["--transitions is too large"],
    ),
    "no dataset": (["misfit"], ["DATASET"]),
    "no such dataset": (["misfit", "nowhere"], ["nowhere"]),
    "no run": (["resume", "nowhere"], ["nowhere", "not a run"]),
    "no run to evaluate": (["eval", "nowhere"], ["nowhere", "not a run"]),
    "no video": (["play", "nowhere"], ["--video", "--window"]),
    "no run to film": (["play", "nowhere", "--video", "a.mp4"], ["nowhere", "not a run"]),
    "no place to export to": (["export", "nowhere"], ["--out"]),
    "no run to export": (["export", "nowhere", "--out", "there"], ["nowhere", "not a run"]),
    "unknown export": (["export", "nowhere", "--out", "there", "--format", "onx"], ["onx", "onnx"]),
    "negative episodes": (
        ["export", "nowhere", "--out", "there", "--episodes", "-1"],
        ["--episodes", "from 0"],
    ),
    "unknown part": (["theory", "seperation"], ["seperation", "separation"]),
    "theory seed twice": (["theory", "--seeds", "1", "1"], ["--seeds", "once"]),
    "collected seed twice": (
        ["collect", "walker-walk", "--out", "d", "--seeds", "0", "0"],
        ["--seeds names 0 twice"],
    ),
    "collected seed": (
        ["collect", "walker-walk", "--out", "d", "--seeds", "-1"],
        ["--seeds -1", "from 0 to 2147483647"],
    ),
    "misfit seed twice": (["misfit", "data", "--seeds", "1", "1"], ["--seeds", "once"]),
    "theory negative seed": (["theory", "--seeds", "-1"], ["--seeds", "0"]),
    "theory option": (["theory", "--output", "here"], ["--output", "--out"]),
    "no episodes": (["eval", "nowhere", "--episodes", "0"], ["--episodes", "from 1"]),
    "many episodes of an export": (
        ["export", "nowhere", "--out", "there", "--episodes", "9" * 20],
        ["--episodes", "to 100000"],
    ),
    "many episodes": (["eval", "nowhere", "--episodes", "9" * 20], ["--episodes", "to 100000"]),
    "many updates": (["bench", "walker-walk", "--updates", "9" * 20], ["--updates", "to 1000000"]),
    "no repeats": (["bench", "walker-walk", "--repeats", "0"], ["--repeats", "from 1 to 10000"]),
    "no whole number": (["train", "walker-walk", "--frames", "4k"], ["--frames", "whole number"]),
    "no number": (["train", "walker-walk", "--discount", "high"], ["--discount", "not a number"]),
    "half a comparison": (
        ["report", "r", "--compare", "a", "b"],
        ["--compare takes NAME TASK FILE"],
    ),
    "no return": (["report", "--reach", "abc"], ["--reach takes numbers; abc is not that."]),
    "no price": (
        ["report", "r", "--price-per-hour", "x"],
        ["--price-per-hour: 'x' is not a number."],
    ),
    "no seed": (
        ["train", "walker-walk", "--seeds", "a"],
        ["--seeds takes whole numbers; a is not"],
    ),
    "unknown score": (
        ["train", "walker-walk", "--score", "l3"],
        ["--score l3 is unknown. Did you mean l2? It is one of l2, raw, layernorm."],
    ),
    "nothing to transfer": (
        ["transfer"],
        ["transfer needs --shift, for example `fastr transfer runs/gait --shift permutation:7`."],
    ),
    "no source": (["transfer", "--shift", "dead=1:0"], ["transfer needs RUN", "--shift dead=1:0`"]),
    "nothing to resume": (["resume"], ["resume needs RUN, for example `fastr resume runs/gait`."]),
    "nothing to export": (["export"], ["export needs RUN and --out, for example `fastr export"]),
    "no run to collect": (
        ["collect", "runs/nope", "--out", "data"],
        ["runs/nope is not a run directory: it does not exist."],
    ),
}


def test_a_run_is_one_directory_whatever_its_task_is_called(monkeypatch):
    places = []

    def begun(_, path):
        places.append(path)
        raise UserError("That is enough.")

    monkeypatch.setattr(training, "begun", begun)
    assert run(["train", "gym:Adroit/Door-v1", "--preset", "quick"]) == 2
    [place] = places
    assert str(place).startswith("runs/gym-Adroit-Door-v1-fastr-")


@pytest.mark.parametrize(("arguments", "named"), WRONG.values(), ids=WRONG.keys())
def test_wrong_command_gets_one_sentence(arguments, named, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(arguments, *named)
    assert list(tmp_path.iterdir()) == []


MODULES = {
    "syntax": ("x = 1\ny = (\n", "line 2: SyntaxError: '(' was never closed."),
    "raises": ("def f():\n    raise KeyError('a')\nf()\n", "line 2: KeyError: 'a'."),
    "calls": ("import json\njson.loads('')\n", "line 2: JSONDecodeError: "),
    "exits": ("import sys\nsys.exit(3)\n", "line 2: it ended itself with sys.exit(3)."),
    "imports": ("import no_such_module_at_all\n", "line 1: No module named"),
}


@pytest.mark.parametrize(("text", "said"), MODULES.values(), ids=MODULES.keys())
def test_a_module_that_fails_is_named_with_its_line(text, said, refused, tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    place = f"--import broken_module failed in {tmp_path / 'broken_module.py'}, {said}"
    refused(["--import", "broken_module", "--version"], place)


INTERRUPTED = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # these tests may run deaf, under nohup
from importlib import import_module
import fastr.cli
fastr.cli.run = lambda _: (import_module("interrupting"), time.sleep(20))
fastr.cli.main()
"""


@pytest.mark.parametrize(
    ("command", "sent", "code", "out", "err"),
    [
        ("info", "SIGINT", 130, "imported\n", "fastr: stopped.\n"),
        ("info", "SIGTERM", 143, "imported\n", "fastr: stopped.\n"),
        ("train", "SIGINT", -signal.SIGINT, "", ""),
        ("train", "SIGTERM", -signal.SIGTERM, "", ""),
    ],
)
def test_an_interrupt_is_not_lost_in_an_import(command, sent, code, out, err, tmp_path):
    kill = (
        f"import os, signal\nos.kill(os.getpid(), signal.{sent})\nprint('imported', flush=True)\n"
    )
    (tmp_path / "interrupting.py").write_text(kill)
    line = [sys.executable, "-c", INTERRUPTED, command]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        line, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, out, err)


def test_help_on_a_command_is_that_commands(capsys):
    for words in (["export", "--help"], ["help", "export"]):
        with pytest.raises(SystemExit, match="0"):
            run(words)
    said = capsys.readouterr().out
    assert said == said[: len(said) // 2] * 2
    assert said.startswith("usage: fastr export")


TERMINATED = """
import os, signal, sys, tempfile, time
signal.signal(signal.SIGINT, getattr(signal, sys.argv.pop()))
import fastr.cli
def work(_):
    with tempfile.TemporaryDirectory(dir=sys.argv[2]):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
fastr.cli.run = work
fastr.cli.main()
"""


@pytest.mark.parametrize("hearing", ["default_int_handler", "SIG_IGN"])
def test_a_command_tidies_up_before_sigterm_ends_it(hearing, tmp_path):
    line = [sys.executable, "-c", TERMINATED, "bench", str(tmp_path), hearing]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (143, "fastr: stopped.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_was_started_deaf_to_sigterm_stays_so(tmp_path):
    deaf = TERMINATED.replace("import fastr", "signal.signal(15, signal.SIG_IGN)\nimport fastr")
    line = [sys.executable, "-c", deaf.replace("sleep(20)", "sleep(0)"), "bench", str(tmp_path)]
    ended = subprocess.run([*line, "SIG_DFL"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_version_is_told(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fastr 0.")


def test_a_stopped_run_says_what_goes_on_with_it():
    config = preset("walker-walk", "fastr", "quick")
    assert going_on(config, Path("runs/a")) == "fastr resume runs/a"
    own = replace(config, task="arm:Reach-v0")
    assert going_on(own, Path("runs/a")) == "fastr --import arm resume runs/a"
    assert going_on(own, Path("my runs/a")) == "fastr --import arm resume 'my runs/a'"


@pytest.mark.parametrize(
    "box",
    [
        "╭─ Value error ─╮\n│ Error parsing --frames: it │\n│ is odd. │\n│ ─── │\n│ Help │\n╰─╯\n",
        " Value error \n ------ \n  Error parsing --frames: it\n  is odd.\n  ------\n  Helptext\n",
    ],
)
def test_a_message_in_either_kind_of_box_is_one_sentence(box):
    assert one_sentence(box, usage_of("train")) == "--frames: it is odd."


def test_none_is_no_name_to_choose():
    said = in_words("invalid choice 'on' for argument '--x'. Expected one of ('None', 'one')")
    assert said == "--x on is unknown. Did you mean one? It is one of one"


def test_a_training_without_a_terminal_says_what_is_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("fastr.training.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = TrainingProgress(preset("walker-walk", "fastr", "quick"))
    for seconds, frames, updates in (
        (1.0, 2_000, 0),
        (100.0, 6_000, 2_000),
        (1100.0, 7_000, 3_000),
    ):
        now[0] = seconds
        row = {"kind": "episode", "seed": 0, "frames": frames, "updates": updates}
        progress(row | {"seconds": seconds})
    first, second = capsys.readouterr().err.splitlines()
    assert first == "walker-walk: frame 6,000 of 25,000, about 0.1 h left, 20 updates/s, 100 s"
    # A thousand updates in a thousand seconds, and 9,000 agent steps to come.
    assert second == "walker-walk: frame 7,000 of 25,000, about 2.5 h left, 1.0 updates/s, 1,100 s"


def test_every_command_has_its_example():
    for name in (*ON_TASKS, *OTHERS, "misfit", "sweep"):
        said = missing(f"Missing from fastr {name}: PATH Where. (required)", usage_of(name))
        assert f", for example `fastr {name}" in said


def test_a_file_in_a_run_is_not_the_run(tmp_path, refused):
    config = to_json(preset("walker-walk", "fastr", "quick"))
    run_directory = tmp_path / "a run"
    RunWriter.create(run_directory, {"train": config, "provenance": {}}).close()
    file = run_directory / "config.json"
    for command in (["resume", str(file)], ["collect", str(file), "--out", str(tmp_path / "data")]):
        refused(command, f"{file} is a file, not a run directory. Did you mean {run_directory}?")
    refused(["eval", str(run_directory)], f"no checkpoint yet; `fastr resume '{run_directory}'`")


def test_a_run_stopped_before_its_first_evaluation_shows_no_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training, "train_and_draw", lambda *_: signal.SIGTERM)
    config, path = preset("walker-walk", "fastr", "quick"), tmp_path / "run"
    with RunWriter.create(path, {"train": to_json(config), "provenance": {}}) as writer:
        training.draw(config, writer)
        assert training.train_to_the_end(training.Train(config), config, writer, None) == 143
    said = capsys.readouterr()
    go_on = f"go on with `fastr resume {path}`"
    assert (said.out, said.err) == ("", f"fastr: stopped before the first evaluation; {go_on}.\n")
    assert not list(path.glob("curve.*"))


@pytest.mark.parametrize(("count", "said"), [(9, "all 9"), (10, "last 10"), (11, "last 10")])
def test_a_mean_says_what_it_is_over(count, said):
    assert averaged(count) == f"mean of {said} evaluations"


def test_another_config_in_the_same_directory_is_refused(tmp_path, refused):
    config = to_json(preset("walker-walk", "fastr", "quick"))
    with RunWriter.create(tmp_path / "run", {"train": config, "provenance": {}}) as writer:
        writer.append({"kind": "episode"})
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    arguments = ["train", "walker-walk", "--preset", "quick", "--discount", "0.9"]
    refused([*arguments, "--out", str(tmp_path / "run")], "discount")
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize(
    ("method", "encoders"),
    [
        ("fastr", {"state_encoder": 1_350_144, "action_encoder": 1_326_592}),
        ("ctrl-sr", {"joint_encoder": 1_360_896}),
    ],
)
def test_info_counts_the_papers_networks(method, encoders, capsys):
    assert run(["info", "humanoid-walk", "--method", method, "--preset", "paper", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    shared = {
        "next_state_encoder": 1_415_680,
        "time_embedding": 65_920,
        "temperature": 25,
        "reward_head": 790_017,
        "critics": 1_580_034,
        "actor": 573_973,
    }
    assert report["parameters"] == encoders | shared
    assert report["parameters_total"] == sum((encoders | shared).values())
    assert (report["agent_steps"], report["updates"]) == (500_001, 495_001)


@pytest.mark.parametrize(
    ("method", "total"),
    [
        ("diff-sr", 24_349_336),
        ("sac", 6_613_037),
        ("sac-2layer", 3_458_093),
        ("td7", 1_143_063),
        ("td3", 1_722_903),
    ],
)
def test_info_counts_the_baselines(method, total, capsys):
    assert run(["info", "humanoid-walk", "--method", method, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parameters_total"] == sum(report["parameters"].values()) == total


def test_multiply_adds_are_those_of_the_layers(capsys):
    arguments = ["--preset", "quick", "--noise-levels", "1", "--json"]
    run(["info", "walker-walk", *arguments])
    one = json.loads(capsys.readouterr().out)["multiply_adds_per_update"]
    run(["info", "walker-walk", *arguments[:-2], "3", "--json"])
    three = json.loads(capsys.readouterr().out)["multiply_adds_per_update"]
    sizes = preset("walker-walk", "fastr", "quick").agent
    hidden, batch = sizes.representation.hidden_dim, sizes.batch_size
    products = 2 * sizes.representation.blocks
    # A further level: the next-state factor without its last layer (its inlet, whose 24 inputs and
    # a place per level are padded to 32, needs no gradient for its input), the scores with what
    # rounding left over, and the level's time embedding with its share of the inlet.
    rows = batch * (3 * products * hidden * hidden + 2 * 32 * hidden)
    scores = 3 * batch * batch * hidden + 2 * batch * hidden
    time = 3 * (128 * 256 + 256 * 128 + 128 * hidden) - 128 * 256
    assert three - one == 2 * (rows + scores + time)


def test_help_names_every_hyperparameter(capsys):
    with pytest.raises(SystemExit) as end:
        run(["train", "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for name in ("--discount", "--feature-dim", "--score", "--frames", "--seeds", "--out"):
        assert name in said


@pytest.mark.parametrize("name", [*ON_TASKS, *OTHERS, "misfit", "sweep"])
def test_help_gives_every_default_once_and_as_a_value(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        run([name, "--help"])
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    for option in " ".join(lines).split(" --"):
        assert not re.search(r"\(default: (None|'')?\)", option), option
        assert not re.search(r"\{None|None\}|\{\{", option), option
        # What the parser adds stands last and has no full stop behind it.
        assert not re.search(r"\(default.*\(default: [^()]*\)$", option), option


@pytest.mark.parametrize("name", [*ON_TASKS, *OTHERS, "misfit", "sweep"])
def test_help_breaks_a_line_where_the_next_word_does_not_fit(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        run([name, "--help"])
    description, options = capsys.readouterr().out.split("\n\n ", 1)
    _, *paragraphs = description.split("\n\n")
    for line, following in pairwise("\n\n".join(paragraphs).splitlines()):
        assert max(map(len, (line, following))) <= 80
        assert not line or not following or len(f"{line} {following.split()[0]}") > 80
    breaks = 0
    for line, following in pairwise(options.splitlines()):
        column = len(following) - len(following.lstrip())
        # Not the first line of a text, below an option that is too long for its column.
        if following.strip() and column > 2 and line[column - 2 : column] == "  ":
            assert len(line.rstrip()) + len(f" {following.split()[0]}") > 80, line
            breaks += 1
    assert breaks


def test_options_of_several_values_say_what_they_take(capsys):
    found = set()
    for name in (*ON_TASKS, *OTHERS, "misfit", "sweep"):
        with pytest.raises(SystemExit):
            run([name, "--help"])
        found |= set(re.findall(r"(--[a-z-]+) \[", capsys.readouterr().out))
    assert found == SEVERAL.keys()


def test_a_reader_that_leaves_early_gets_no_traceback():
    command = [sys.executable, "-m", "fastr.cli", "report", "--help"]
    reader, writer = os.pipe()
    os.close(reader)
    shown = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (shown.returncode, shown.stderr) == (1, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_was_closed_leads_nowhere(closed, tmp_path):
    # A file that the command opens must not get the number of what is printed to.
    opened = (
        "import os\nfirst = os.open(os.devnull, os.O_RDONLY)\nprint(first, file=open('n', 'w'))"
    )
    (tmp_path / "opening.py").write_text(opened)
    line = f"{shlex.quote(sys.executable)} -m fastr.cli --import opening --version {closed}"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        ["sh", "-c", line],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == ("" if closed.count(">&-") - closed.count("2>&-") else "fastr 0.1.0\n")
    assert int((tmp_path / "n").read_text()) > 2


PRINTING = """
import os
import fastr.cli
from fastr.cli.show import print_json
def work(_):
    print("a module", flush=True)
    os.system("echo a simulator")
    return print_json({"result": 1})
fastr.cli.run = work
fastr.cli.main()
"""


def test_with_json_nobody_else_prints_on_stdout():
    line = [sys.executable, "-c", PRINTING, "info"]
    ended = subprocess.run([*line, "--json"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, '{"result": 1}\n')
    assert sorted(ended.stderr.splitlines()) == ["a module", "a simulator"]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ended.stdout == 'a module\na simulator\n{"result": 1}\n'
    # Somebody who asks for help pages through it.
    ended = subprocess.run([*line, "--json", "--help"], capture_output=True, text=True, check=False)
    assert ended.stdout == 'a module\na simulator\n{"result": 1}\n'


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_table_is_printed_whatever_letters_stdout_knows(encoding, monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", written)
    spell_out()
    monkeypatch.setenv("COLUMNS", "30")
    rows = [("[red]ü± …", 2.5), ("x\udcff:smile:", 1), ("y" * 30, 1)]
    print_table("1 ± 2, in a title of more letters", ("–", "b"), rows)
    written.flush()
    title, *lines = written.buffer.getvalue().decode(encoding).splitlines()
    sign = {"ascii": "+-", "latin-1": "±", "utf-8": "±"}[encoding]
    letter = {"ascii": "?", "latin-1": "ü", "utf-8": "ü"}[encoding]
    end = {"ascii": "...", "latin-1": "...", "utf-8": "…"}[encoding]
    assert title == f"1 {sign} 2, in a title of more letters"
    assert f"[red]{letter}{sign} {end} " in lines[3]
    assert "x?:smile:" in lines[4]
    assert len({len(line) for line in lines}) == 1
    # Nothing is cut off.
    assert "".join(lines).count("y") == 30


def test_help_without_arguments_lists_the_commands():
    shown = subprocess.run(
        [sys.executable, "-m", "fastr.cli", "--help"], capture_output=True, text=True, check=True
    )
    names = "train resume eval play export info bench collect misfit report"
    for name in names.split():
        assert f"fastr {name}" in shown.stdout


def test_help_is_given_behind_an_option_without_its_values(capsys):
    with pytest.raises(SystemExit) as ended:
        run(["info", "--seeds", "--help"])
    assert ended.value.code == 0
    assert "usage: fastr info" in capsys.readouterr().out


def test_bench_reports_its_units_as_json(capsys):
    sizes = ["--feature-dim", "8", "--hidden-dim", "8", "--batch-size", "8", "--noise-levels", "1"]
    arguments = ["bench", "gym:Pendulum-v1", "--preset", "quick", "--updates", "2", "--json"]
    assert run([*arguments, "--repeats", "2", "--seeds", "0", "1", *sizes]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["seeds"] == 2
    assert len(report["milliseconds_each_repeat"]) == 2
    rate = 1e3 / report["milliseconds_per_joint_update"]
    assert report["joint_updates_per_second"] == pytest.approx(rate)
    assert report["seed_updates_per_second"] == pytest.approx(2 * rate)
    assert report["peak_memory_bytes"] > 2**20
    stages = report["stage_milliseconds_per_agent_step"]
    assert all(stages[name] > 0 for name in (*STAGES[:-1], "simulation", "evaluation"))
    # What belongs to no stage is small change: the clock, the metrics, copies.
    assert stages["other"] < sum(stages[name] for name in STAGES[:-1])
    floors = [report[f"{kind}_floor_milliseconds"] for kind in ("arithmetic", "memory")]
    measured = report["milliseconds_per_joint_update"]
    assert report["measured_over_floor"] == pytest.approx(measured / max(floors))
    assert min(floors) > 0
    loop, host = (report[f"loop_{whose}milliseconds_per_agent_step"] for whose in ("", "host_"))
    assert report["loop_rate_over_update_rate"] == pytest.approx(measured / loop)
    beside = host.pop("hand over the update, beside the rest")
    assert len(host) == 3
    assert min(beside, *host.values()) > 0
    assert sum(host.values()) < loop
    assert report["loop_share_beside_an_evaluation"] == 1


def test_bench_says_when_its_evaluation_was_over_early(capsys):
    arguments = ["bench", "toy_envs:Count-v0", "--method", "td3", "--preset", "quick"]
    sizes = ["--hidden-dim", "8", "--batch-size", "8", "--updates", "1000", "--repeats", "1"]
    assert run([*arguments, *sizes, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert 0 < report["loop_share_beside_an_evaluation"] < 1


def test_bench_needs_nothing_of_the_run_it_would_inherit_from(capsys):
    arguments = ["bench", "gym:Pendulum-v1", "--preset", "quick", "--updates", "1", "--json"]
    sizes = ["--feature-dim", "8", "--hidden-dim", "8", "--batch-size", "8", "--noise-levels", "1"]
    kept = ["--keep", "state-factor", "--source", "nowhere"]
    assert run([*arguments, "--repeats", "1", *sizes, *kept]) == 0
    assert json.loads(capsys.readouterr().out)["loop_milliseconds_per_agent_step"] > 0


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("toy_envs:DeadWorker-v0", "The environment of seed 1 died"),
        ("toy_envs:DeadEvaluation-v0", "The evaluation died"),
    ],
)
def test_bench_says_which_of_its_processes_died(task, said, refused):
    options = ["--method", "td3", "--preset", "quick", "--seeds", "1", "--batch-size", "8"]
    options += ["--updates", "1", "--repeats", "1", "--frame-skip", "1"]
    refused(["bench", task, *options], f"{said}: its process ended with exit code 3.", code=1)


@pytest.mark.parametrize("command", ["report", "misfit", "eval", "resume"])
def test_a_path_that_cannot_be_opened_gets_one_sentence(command, capsys):
    assert run([command, "x" * 5_000]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fastr: xxx")
    assert "File name too long" in said
    assert said.count("\n") == 1
    assert len(said) < 400


def test_a_user_without_a_home_keeps_no_programs(monkeypatch, tmp_path):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    configure()
    assert cache_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fastr" / "jax"
