"""A registered agent does everything that the built-in ones do, through the command line."""

import json
import shutil

import numpy as np
import pytest

from fastr.cli import after_imports, run
from fastr.runs import RunDirectory
from fastr.training.loop import Trainer

pytestmark = pytest.mark.usefixtures("with_examples")
TRAIN = ["--import", "redq", "train", "gym:Pendulum-v1", "--method", "redq", "--preset", "laptop"]
TRAIN += ["--ensemble", "3", "--hidden-dim", "8", "--batch-size", "16", "--seeds", "0", "1"]
TRAIN += ["--frames", "300", "--random-frames", "100", "--eval-frames", "150"]
TRAIN += ["--eval-episodes", "1", "--checkpoint-frames", "150"]


class Killed(BaseException):
    """Nothing of ours catches it."""


def test_it_trains_resumes_evaluates_exports_and_appears_in_a_report(tmp_path, monkeypatch, capsys):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run([*TRAIN, "--out", str(whole)]) == 0

    def kill(trainer, actions, step=Trainer.step):
        step(trainer, actions)
        if trainer.state.next_step == 120:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", kill)
        with pytest.raises(Killed):
            run([*TRAIN, "--out", str(killed)])
    assert run(["--import", "redq", "resume", str(killed)]) == 0
    ours, theirs = (RunDirectory.open(path).latest().arrays() for path in (killed, whole))
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)

    capsys.readouterr()
    assert run(["--import", "redq", "eval", str(whole), "--episodes", "2", "--json"]) == 0
    assert [len(seed["returns"]) for seed in json.loads(capsys.readouterr().out)["seeds"]] == [2, 2]
    export = [str(whole), "--format", "safetensors", "--out", str(tmp_path / "policy")]
    assert run(["--import", "redq", "export", *export]) == 0
    assert (tmp_path / "policy" / "policy.safetensors").exists()
    shutil.rmtree(killed)
    assert run(["report", str(whole), "--out", str(tmp_path / "report")]) == 0
    assert "redq" in (tmp_path / "report" / "index.html").read_text()


def test_subsets_larger_than_the_ensemble_are_refused(refused):
    arguments = after_imports([*TRAIN, "--subset", "4", "--out", "none"])
    refused(arguments, "--subset is 4; it must be from 1 to 3")
