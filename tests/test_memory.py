"""The prediction of a run's memory, and what is said when it does not fit."""

from dataclasses import replace
from unittest.mock import Mock

import jax
import pytest

from fastr.core import EnvSpec, UserError
from fastr.training import memory
from fastr.training.config import preset
from fastr.training.count import memory_bytes, seed_bytes
from fastr.training.learner import Engine
from fastr.training.memory import MEBIBYTE, available_on_host, check_fits

SPEC = EnvSpec(24, 6)
CONFIG = preset("walker-walk", "fastr", "quick")


@pytest.mark.parametrize("free_seeds", [0, 1, 3])
def test_the_error_names_how_many_seeds_fit(free_seeds, monkeypatch):
    config = preset("walker-walk", "fastr", "paper")
    each = seed_bytes(config, SPEC)
    monkeypatch.setattr(memory, "free_bytes", lambda: free_seeds * each + each // 2)
    with pytest.raises(UserError) as error:
        check_fits(config, SPEC)
    expected = (
        f"at most {free_seeds} --seeds" if free_seeds else "alone does not fit; use a smaller"
    )
    assert expected in str(error.value)
    monkeypatch.setattr(memory, "free_bytes", lambda: 5 * each)
    check_fits(config, SPEC)


def test_seeds_share_the_memory_of_several_devices(monkeypatch):
    config = replace(CONFIG, seeds=(0, 1, 2, 3))
    each = seed_bytes(config, SPEC)
    monkeypatch.setattr(memory, "seed_sharding", lambda _: Mock(num_devices=2))
    monkeypatch.setattr(memory, "free_bytes", lambda: 2 * each)
    check_fits(config, SPEC)
    monkeypatch.setattr(memory, "free_bytes", lambda: 2 * each - 1)
    with pytest.raises(UserError, match=rf"about {2 * each // MEBIBYTE:,} MiB.*at most 2 --seeds"):
        check_fits(config, SPEC)


@pytest.mark.parametrize(
    ("backend", "checkpoint_frames", "rows"),
    [
        ("cpu", 10_000, 2 * 5_000),
        ("cpu", 0, 2 * 12_501),
        ("cpu", 50_000, 2 * 12_501),
        ("gpu", 10_000, 5_000),
    ],
)
def test_saving_is_counted(monkeypatch, backend, checkpoint_frames, rows):
    """A slice on its way, here all that is new; and where the device is the host, the copy."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    config = replace(CONFIG, checkpoint_frames=checkpoint_frames)
    assert memory_bytes(config, SPEC)["saving"] == rows * 4 * SPEC.row_dim
    many = replace(config, seeds=tuple(range(500)))
    assert memory_bytes(many, SPEC)["saving"] < memory_bytes(config, SPEC)["saving"]


def test_nothing_is_said_where_the_memory_is_not_known(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    check_fits(CONFIG, SPEC)


def test_this_host_says_how_much_is_free():
    assert 2**20 < available_on_host() < 2**50


def test_the_prediction_is_near_what_the_compiler_allocates():
    """State exactly (but for a few counters); intermediate values within a factor of two."""
    engine = Engine(CONFIG.agent, SPEC, (0,), capacity=CONFIG.capacity, random_steps=1)
    shapes = jax.eval_shape(engine.init)
    found = engine.improve.lower(shapes, engine.no_metrics()).compile().memory_analysis()
    assert found is not None
    predicted = seed_bytes(CONFIG, SPEC)
    total = found.argument_size_in_bytes + found.temp_size_in_bytes
    assert total / 2 < predicted < 2 * total
