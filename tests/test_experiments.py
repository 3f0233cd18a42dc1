"""The paper's experiments are what the paper says, and every command of theirs can be typed."""

import shlex
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastr.agents.spectral import SpectralConfig
from fastr.cli import command
from fastr.core import Method, Preset, UserError, option
from fastr.studies.experiments import (
    EXPERIMENTS,
    FRAMES,
    JOINT_METHODS,
    SEEDS,
    SHIFTS,
    WITHOUT_STATE_PART,
    trainings,
)
from fastr.studies.units import Grid, refuse_same_place, slug
from fastr.sweep.hours import STEADY, updates
from fastr.training.config import METHODS, TrainConfig, preset

OUT = Path("/nowhere")


def planned(name, **changes):
    usual = EXPERIMENTS[name]
    frames = usual.frames or FRAMES[usual.preset]
    options = {"tasks": usual.tasks, "methods": usual.methods, "seeds": usual.seeds}
    options |= {"frames": frames, "preset": usual.preset, "options": usual.options}
    return usual.units(Grid(OUT, **(options | changes)))


def kinds(units):
    return [unit.arguments[0] for unit in units]


def test_table1_is_ten_tasks_under_six_methods():
    units = planned("table1")
    assert kinds(units) == ["train"] * 60
    assert {unit.seeds for unit in units} == {5}
    assert len({unit.arguments[1] for unit in units}) == 10
    assert len({unit.method for unit in units}) == 6


def test_ablation_is_four_conditions_on_humanoid_and_quadruped():
    units = planned("ablation")
    assert kinds(units) == ["train"] * 5 * 4
    assert {unit.method for unit in units} == {"ctrl-sr", "concat", "tucker", "fastr"}
    assert sum("humanoid" in unit.arguments[1] for unit in units) == 3 * 4


def test_transfer_has_two_sources_and_four_curves_for_each_task_and_shift():
    units = planned("transfer")
    figures = [unit for unit in units if unit.arguments[0] == "transfer"]
    assert kinds(units).count("train") == 2 * 2 + 2 * len(SHIFTS) * 4
    assert len(figures) == 2 * len(SHIFTS)
    for figure in figures:
        assert len(figure.needs) == 2 + 4


@pytest.mark.parametrize("task", ["walker-walk", "walker-walk@latency=2"])
def test_conditions_are_the_runs_that_transfer_would_make(task):
    """Else it would refuse to compare them, after all the training."""
    units = {unit.name: unit for unit in planned("transfer", tasks=(task,))}
    figures = [unit for unit in units.values() if unit.arguments[0] == "transfer"]
    for figure in figures:
        transfer = command(*figure.arguments)
        for source in transfer.sources:
            trained = command(*units[str(source.relative_to(OUT))].arguments).config
            for keep in (trained.agent.representation.keepable, "nothing"):
                wanted = transfer.condition(source, trained, keep)
                ours = units[str((transfer.out / wanted.label).relative_to(OUT))]
                assert command(*ours.arguments).config == wanted.config
                assert ours in figure.needs


def test_by_hand_the_diagnostic_is_the_sweeps():
    """The line in docs/reproducing.md has the options of the sweep's, but for places."""
    page = (Path(__file__).parents[1] / "docs" / "reproducing.md").read_text()
    by_hand = next(line for line in page.splitlines() if line.startswith("fastr misfit "))
    typed = command(*shlex.split(by_hand)[1:])
    swept = command(*next(u.arguments for u in planned("misfit") if u.arguments[0] == "misfit"))
    assert typed.config == swept.config


def test_misfit_reads_the_joint_methods_replay_of_thirteen_tasks():
    units = planned("misfit")
    assert {kind: kinds(units).count(kind) for kind in kinds(units)} == {
        "train": 26, "collect": 13, "misfit": 13, "misfit-figure": 1,
    }  # fmt: skip
    for unit in units:
        if unit.arguments[0] == "collect":
            assert [need.method for need in unit.needs] == ["ctrl-sr"]
    assert "misfit-figure" not in kinds(planned("misfit", methods=("ctrl-sr",)))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_needs_come_first_and_places_are_different(name):
    units = planned(name)
    for i, unit in enumerate(units):
        assert all(need in units[:i] for need in unit.needs)
        assert unit.product.is_relative_to(OUT)
    assert len({unit.product for unit in units}) == len(units)
    refuse_same_place(units)


def test_experiments_in_one_directory_share_their_runs():
    table = planned("table1")
    for name in ("transfer", "ablation", "misfit"):
        own = [unit for unit in planned(name) if unit.arguments[0] == "train"]
        shared = [unit for unit in own if unit in table]
        assert {unit.method for unit in shared} == {"ctrl-sr", "fastr"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_kind_of_command_is_one_that_the_command_line_takes(name):
    seen = set()
    for unit in planned(name):
        if (unit.arguments[0], unit.method) not in seen:
            seen.add((unit.arguments[0], unit.method))
            options = command(*unit.arguments)
            if unit.arguments[0] == "train":
                assert (options.config.method, options.config.frames) == (unit.method, unit.frames)
                assert len(options.config.seeds) == unit.seeds
                assert options.config.updates == updates(unit)
                assert options.out == unit.product


def test_what_is_said_twice_is_said_alike():
    assert TrainConfig.seeds == SEEDS
    for name in get_args(Preset):
        assert FRAMES[name] == preset("", "fastr", name).frames
        for method in METHODS:
            [unit] = trainings(Grid(OUT, ("a",), (method,), (0,), FRAMES[name], name))
            assert updates(unit) == preset("", method, name).updates
    known = {option(field.name) for field in fields(TrainConfig)} | {"--out"}
    for agent in METHODS.values():
        parts = (agent, getattr(agent, "representation", agent))
        known |= {option(field.name) for part in parts for field in fields(part)}
    assert known >= STEADY
    assert set(get_args(Method)) == set(METHODS)
    for name, agent in METHODS.items():
        spectral = isinstance(agent, SpectralConfig)
        kept = agent.representation.keepable if spectral else "nothing"
        assert (kept == "nothing") == (name in WITHOUT_STATE_PART)
        assert (kept == "encoder") == (name in JOINT_METHODS)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9, unique=True), st.integers(1, 12))
def test_parts_deal_out_every_seed_once_and_in_order(seeds, size):
    grid = Grid(OUT, ("a", "b"), ("fastr",), tuple(seeds), 10, seeds_per_run=size)
    assert [seed for part in grid.parts for seed in part] == seeds
    assert all(len(part) == size for part in grid.parts[:-1])
    units = trainings(grid)
    assert len({unit.product for unit in units}) == len(units) == 2 * len(grid.parts)
    assert sum(unit.seeds for unit in units) == 2 * len(seeds)


@given(st.text(max_size=30))
def test_a_slug_is_one_harmless_part_of_a_path(name):
    part = slug(name)
    assert (OUT / part).parent == OUT
    assert not part.startswith(".")
    assert part == slug(part)


def test_two_tasks_with_one_place_are_refused():
    with pytest.raises(UserError, match="Two runs would both be"):
        refuse_same_place(planned("smoke", tasks=("gym:A-v0", "gym-A-v0")))
