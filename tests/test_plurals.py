"""One of something is not several."""

from dataclasses import replace
from pathlib import Path

import pytest

from fastr.cli.training import averaged
from fastr.core import EnvSpec, UserError, counted
from fastr.data.columns import check_shapes
from fastr.envs import load
from fastr.studies.misfit.verdict import dimension_sentence, doubts
from test_misfit import evidence

COLUMNS = {name: name for name in ("state", "action", "next_state", "episode")}
SHAPES = {"state": (9, 2), "action": (9, 3), "next_state": (9, 2), "episode": (9,)}


def wrong_shapes(**shapes: tuple[int, ...]) -> str:
    with pytest.raises(UserError) as error:
        check_shapes(Path("data.npz"), COLUMNS, SHAPES | shapes)
    return str(error.value)


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
    assert "has 1 row and" in wrong_shapes(action=(1, 3))
    assert "has 1 coordinate and" in wrong_shapes(next_state=(9, 1))
    with pytest.raises(UserError, match=r"this robot's 1 actuator\."):
        load("pendulum-swingup@dead=2", 2)
