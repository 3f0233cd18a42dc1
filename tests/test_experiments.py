"""The paper's experiments are what the paper says, and their commands can be typed."""

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastr.agents.spectral import SpectralConfig
from fastr.cli import command
from fastr.core import Method, Preset
from fastr.studies.experiments import (
    EXPERIMENTS,
    FRAMES,
    JOINT_METHODS,
    SEEDS,
    SHIFTS,
    WITHOUT_STATE_PART,
    Grid,
    slug,
)
from fastr.training.config import METHODS, preset

OUT = Path("/nowhere")


def planned(name, **changes):
    usual = EXPERIMENTS[name]
    options = {"tasks": usual.tasks, "methods": usual.methods, "seeds": SEEDS[usual.preset]}
    options |= {"frames": usual.frames or FRAMES[usual.preset], "preset": usual.preset}
    return usual.units(Grid(OUT, **(options | {"options": usual.options} | changes)))


def kinds(units):
    found = [unit.arguments[0] for unit in units]
    return {kind: found.count(kind) for kind in found}


def test_sizes_of_the_experiments():
    table = planned("table1")
    assert kinds(table) == {"train": 60, "report": 1}
    assert {unit.seeds for unit in table if unit.trains} == {5}
    assert len({unit.arguments[1] for unit in table if unit.trains}) == 10
    ablation = planned("ablation", tasks=("walker-walk",))
    assert [unit.method for unit in ablation] == ["ctrl-sr", "concat", "tucker", "fastr", ""]
    assert ablation[-1].needs == tuple(ablation[:4])
    assert kinds(planned("ablation")) == {"train": 5 * 4, "report": 1}
    transfer = planned("transfer")
    assert kinds(transfer) == {"train": 2 * 2 + 2 * len(SHIFTS) * 4, "transfer": 2 * len(SHIFTS)}
    assert kinds(planned("misfit")) == {"train": 26, "collect": 13, "misfit": 13, "report": 1}


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


def test_experiments_in_one_directory_share_their_runs():
    table = planned("table1")
    for name in ("transfer", "ablation", "misfit"):
        shared = [unit for unit in planned(name) if unit.trains and unit in table]
        assert {unit.method for unit in shared} == {"ctrl-sr", "fastr"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_units_are_in_order_in_different_places_and_can_be_typed(name):
    units, seen = planned(name), set()
    assert len({unit.product for unit in units}) == len(units)
    for i, unit in enumerate(units):
        assert all(need in units[:i] for need in unit.needs)
        assert unit.product.is_relative_to(OUT)
        if (unit.arguments[0], unit.method) not in seen:
            seen.add((unit.arguments[0], unit.method))
            options = command(*unit.arguments)
            if unit.trains:
                assert options.config.method == unit.method
                assert len(options.config.seeds) == unit.seeds
                assert options.out == unit.product


def test_values_known_twice_agree():
    """Experiments do not load JAX, so they repeat what the configuration knows."""
    for name in get_args(Preset):
        config = preset("", "fastr", name)
        assert (FRAMES[name], SEEDS[name]) == (config.frames, config.seeds)
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
    units = grid.trainings()
    assert len({unit.product for unit in units}) == len(units) == 2 * len(grid.parts)
    assert sum(unit.seeds for unit in units) == 2 * len(seeds)


@given(st.text(max_size=30))
def test_a_slug_is_one_harmless_part_of_a_path(name):
    assert (OUT / slug(name)).parent == OUT
    assert not slug(name).startswith(".")
