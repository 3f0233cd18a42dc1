"""The protocol's counters, and configurations from files that may hold anything."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastr.core import LARGEST, LARGEST_BATCH, MOST_LEVELS, UserError
from fastr.training.config import TrainConfig, from_json, preset, to_json

METHODS = ("fastr", "ctrl-sr")
PRESETS = ("paper", "laptop")


@pytest.fixture(scope="module")
def paper():
    return preset("humanoid-walk", "fastr", "paper")


def test_a_million_frames_are_the_papers_counts(paper):
    assert paper.frames == 1_000_000
    assert paper.agent_steps == 500_001
    assert paper.random_steps == 5_000
    assert paper.updates == 495_001
    assert paper.evaluations == 101
    assert paper.capacity == 500_001
    assert paper.seeds == (0, 1, 2, 3, 42)


def test_counters_follow_the_options(paper):
    small = replace(paper, frames=120, frame_skip=4, random_frames=40, eval_frames=20)
    assert small.agent_steps == 31
    assert small.random_steps == 10
    assert small.updates == 21
    assert small.evaluations == 7
    assert replace(small, replay_capacity=16).capacity == 16
    assert replace(small, random_frames=400).updates == 0


def test_the_paper_presets_differ_only_in_the_representation():
    fastr, ctrl = (preset("walker-run", method, "paper") for method in METHODS)
    assert type(fastr.agent.representation) is not type(ctrl.agent.representation)
    assert vars(fastr.agent.representation) == vars(ctrl.agent.representation)
    same_agent = replace(ctrl.agent, representation=fastr.agent.representation)
    assert replace(ctrl, method="fastr", agent=same_agent) == fastr


BAD_VALUES = [
    *((name, value) for name in ("frames", "frame_skip", "eval_frames") for value in (0, -2)),
    *((name, value) for name in ("eval_episodes", "replay_capacity") for value in (0, -1)),
    *((name, 7) for name in ("frames", "random_frames", "eval_frames", "checkpoint_frames")),
    *((name, -2) for name in ("random_frames", "checkpoint_frames")),
    ("random_frames", 0),
    ("keep_checkpoints", 0),
    ("seeds", ()),
    ("seeds", (1, 2, 1)),
    ("seeds", (-1,)),
    ("seeds", (2**31,)),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES, ids=str)
def test_a_bad_value_is_named(paper, name, value):
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')}\\b"):
        replace(paper, **{name: value})


@pytest.mark.parametrize("method", ["fastr", "sac", "td3", "td7"])
def test_a_batch_is_no_larger_than_a_device_counts(method):
    agent = preset("walker-walk", method, "paper").agent
    replace(agent, batch_size=LARGEST_BATCH)
    with pytest.raises(UserError, match="--batch-size is 100001; it must be from 1 to 100000"):
        replace(agent, batch_size=LARGEST_BATCH + 1)
    assert LARGEST_BATCH * MOST_LEVELS <= LARGEST


def test_a_value_of_another_kind_is_named_with_the_right_one(paper):
    for name, kind in (("frames", "a whole number"), ("task", "text"), ("agent", "an object")):
        with pytest.raises(UserError, match=rf"{name} is \[\], which is not {kind}\.$"):
            from_json(to_json(paper) | {name: []})


def test_the_smallest_legal_values_are_accepted(paper):
    replace(
        paper,
        seeds=(2**31 - 1,),
        frames=1,
        frame_skip=1,
        random_frames=1,
        eval_frames=1,
        eval_episodes=1,
        replay_capacity=1,
        checkpoint_frames=0,
        keep_checkpoints=1,
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_configuration_survives_its_file(method, name):
    config = replace(preset("dog-run", method, name), frames=1234, seeds=(5, 7))
    text = json.dumps(to_json(config))
    again = from_json(json.loads(text))
    assert again == config
    assert type(again.agent.representation) is type(config.agent.representation)
    assert json.dumps(to_json(again)) == text


def test_a_whole_number_may_stand_for_a_real_one(paper):
    values = to_json(paper)
    values["agent"]["discount"] = 1
    assert type(from_json(values).agent.discount) is float


def plain(config):
    """The configuration as a file would hold it."""
    return json.loads(json.dumps(to_json(config)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(values, prefix=()):
    """Where the numbers, names and groups of a configuration are."""
    for name, value in values.items():
        yield (*prefix, name)
        if isinstance(value, dict):
            yield from paths(value, (*prefix, name))


def with_value(values, path, value):
    """A copy of the plain values with one of them replaced."""
    copy = json.loads(json.dumps(values))
    place = copy
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return copy


PLAIN = plain(preset("humanoid-walk", "fastr", "paper"))
PATHS = list(paths(PLAIN))


def configuration_or_user_error(values):
    with contextlib.suppress(UserError):
        assert isinstance(from_json(values), TrainConfig)


@given(JSON)
@settings(deadline=None, max_examples=100)
def test_any_json_is_a_configuration_or_a_user_error(values):
    configuration_or_user_error(values)


@given(st.sampled_from(PATHS), JSON)
@settings(deadline=None, max_examples=300)
def test_any_value_anywhere_is_a_configuration_or_a_user_error(path, value):
    configuration_or_user_error(with_value(PLAIN, path, value))


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_a_value_of_another_kind_is_named(path):
    with pytest.raises(UserError, match=path[-1]):
        from_json(with_value(PLAIN, path, None))


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_a_missing_value_is_named(path):
    values = with_value(PLAIN, path, None)
    place = values
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    with pytest.raises(UserError, match=path[-1]):
        from_json(values)


def test_an_unknown_value_is_named():
    with pytest.raises(UserError, match="colour"):
        from_json(PLAIN | {"colour": "red"})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("method",), []),
        (("preset",), {}),
        (("agent", "discount"), 10**400),
        (("agent", "feature_source"), "banana"),
        (("agent", "representation", "score"), "banana"),
        (("agent", "representation", "precision"), "float128"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
def test_a_value_that_cannot_be_is_named(path, value):
    with pytest.raises(UserError, match=path[-1]):
        from_json(with_value(PLAIN, path, value))
