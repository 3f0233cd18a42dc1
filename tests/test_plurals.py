"""One of something is not several."""

from dataclasses import replace

import pytest

from fastr.cli.training import averaged
from fastr.core import EnvSpec, UserError, counted
from fastr.envs import load
from fastr.studies.misfit.verdict import dimension_sentence, doubts
from test_misfit import evidence


def test_counts_agree_with_their_nouns():
    assert [counted(n, "seed") for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
    assert [counted(n, "entry", "entries") for n in (1, 2_000)] == ["1 entry", "2,000 entries"]


def test_one_of_something_is_said_so():
    one = evidence(1, 0.0, 0.1)
    assert dimension_sentence(one.spec).startswith("1 action dimension (")
    assert "Only 1 test episode:" in " ".join(doubts(replace(one, test_episodes=1), "none", "none"))
    assert EnvSpec(1, 1).in_words == "1 observation entry and 1 actuator"
    said = " ".join(doubts(replace(one, still=(0,), seeds=1), "none", "none"))
    assert "1 never varies (number 0" in said
    assert "Only 1 training seed:" in said
    assert averaged(1) == "mean of 1 evaluation"
    with pytest.raises(UserError, match=r"this robot's 1 actuator\."):
        load("pendulum-swingup@dead=2", 2)
