"""The prediction of a diagnosis's memory, and what is said when it does not fit."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from fastr.training.memory import MEBIBYTE

from fastr.core import EnvSpec, UserError
from fastr.data.base import About
from fastr.studies.misfit import memory
from fastr.studies.misfit.config import KINDS, preset
from fastr.studies.misfit.diagnose import diagnose
from fastr.studies.misfit.program import Program
from fastr.training.cost import parameters
from transitions import walk, write_npz

SPEC = EnvSpec(24, 6)
CONFIG = preset("quick")

ABSURD = {
    "width": ["--hidden-dim", "2000000000"],
    "feature": ["--feature-dim", "2000000000", "--hidden-dim", "2000000000"],
    "batch": ["--batch-size", "100000"],
    "levels": ["--noise-levels", "10000"],
    "targets": ["--fourier-targets", "2000000000"],
}


@pytest.mark.parametrize("sizes", ABSURD.values(), ids=ABSURD.keys())
def test_absurd_sizes_are_one_sentence_before_anything_is_read(
    sizes, refused, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for module in ("fastr.training.memory", "fastr.studies.misfit.memory"):
        monkeypatch.setattr(f"{module}.available_on_host", lambda: 2**34)
    write_npz(Path("small.npz"), walk())
    command = ["misfit", "small.npz", "--preset", "quick", "--limit", "1000", *sizes]
    refused(command, "MiB of memory, and 16,384 MiB are free: use ")
    assert [path.name for path in tmp_path.iterdir()] == ["small.npz"]


def test_datasets_that_train_side_by_side_are_counted(monkeypatch):
    cells = 3 * len(CONFIG.seeds)
    needed = cells * memory.cell_bytes(CONFIG, SPEC)
    monkeypatch.setattr(memory, "free_bytes", lambda: needed)
    memory.check_fits(CONFIG, SPEC, 3)
    monkeypatch.setattr(memory, "free_bytes", lambda: needed - 1)
    memory.check_fits(CONFIG, SPEC, 2)
    size = f"{needed // MEBIBYTE:,} MiB"
    said = f"3 datasets with 3 seeds would take about {size}.*one dataset at a time"
    with pytest.raises(UserError, match=said):
        memory.check_fits(CONFIG, SPEC, 3)


def test_what_does_not_fit_side_by_side_does_not_begin(tmp_path, monkeypatch):
    config = replace(CONFIG, predictor=replace(CONFIG.predictor, batch_size=8))
    data = [walk(episodes=20, steps=10, seed=seed) for seed in (0, 1)]
    names = [str(write_npz(tmp_path / f"{i}.npz", each)) for i, each in enumerate(data)]
    alone = len(config.seeds) * memory.cell_bytes(config, EnvSpec(3, 2))
    monkeypatch.setattr(memory, "free_bytes", lambda: alone)
    monkeypatch.setattr("fastr.studies.misfit.diagnose.fit", lambda *_: pytest.fail("it trained"))
    with pytest.raises(UserError, match="2 datasets with 3 seeds would take about"):
        diagnose(names, config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_statistics_are_taken_of_a_sample(monkeypatch):
    config = replace(CONFIG, predictor=replace(CONFIG.predictor, fourier_targets=76))
    monkeypatch.setattr(memory, "available_on_host", lambda: 8 * (3 * 65_536 + 24) * 100)
    memory.check_statistics(config, About("log", SPEC, 10**9))
    monkeypatch.setattr(memory, "available_on_host", lambda: 8 * (3 * 65_536 + 24) * 100 - 1)
    memory.check_statistics(config, About("log", SPEC, 65_535))
    memory.check_statistics(replace(config, limit=65_535), About("log", SPEC, 10**9))
    with pytest.raises(UserError, match=r"log: 100 targets .* fewer --fourier-targets"):
        memory.check_statistics(config, About("log", SPEC, 10**9))


def test_nothing_is_said_where_the_memory_is_not_known(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    monkeypatch.setattr(memory, "available_on_host", lambda: None)
    memory.check_fits(CONFIG, SPEC, 10**9)
    memory.check_statistics(CONFIG, About("log", EnvSpec(10**9, 1), 10**9))


@pytest.mark.parametrize("kind", KINDS)
def test_the_prediction_is_near_what_the_compiler_allocates(kind):
    """One update of one predictor, within a factor of two; the best parameters are beside it."""
    program, clock = Program(CONFIG, kind, SPEC), jax.ShapeDtypeStruct((), jnp.int32)
    single, scales = jax.eval_shape(program.fresh, clock), memory.shapes_of(CONFIG.predictor, SPEC)
    rows = jax.ShapeDtypeStruct((CONFIG.predictor.batch_size, 2 * 24 + 6), jnp.float32)
    lowered = jax.jit(program.update).lower(single, scales, rows, clock, clock)
    found = lowered.compile().memory_analysis()
    assert found is not None
    total = found.argument_size_in_bytes + found.temp_size_in_bytes
    predicted = sum(memory.predictor_bytes(CONFIG, kind, SPEC)) - 4 * parameters(single.parameters)
    assert total / 2 < predicted < 2 * total
