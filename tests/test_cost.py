"""What a run costs, and the refusal of one that does not fit."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from fastr.core import EnvSpec, UserError
from fastr.training import cost
from fastr.training.config import preset
from fastr.training.cost import MEBIBYTE, check_fits, free_bytes, info, state_bytes

SPEC = EnvSpec(24, 6)
CONFIG = preset("walker-walk", "fastr", "laptop")


@pytest.mark.parametrize("free_seeds", [0, 1, 3])
def test_the_error_names_how_many_seeds_fit(free_seeds, monkeypatch):
    config = preset("walker-walk", "fastr", "paper")
    each = sum(state_bytes(config, SPEC).values())
    monkeypatch.setattr(cost, "free_bytes", lambda: free_seeds * each + each // 2)
    words = f"at most {free_seeds} --seeds" if free_seeds else "alone does not fit; use a smaller"
    with pytest.raises(UserError, match=words):
        check_fits(config, SPEC)
    monkeypatch.setattr(cost, "free_bytes", lambda: 5 * each)
    check_fits(config, SPEC)


def test_seeds_share_the_memory_of_several_devices(monkeypatch):
    config = replace(CONFIG, seeds=(0, 1, 2, 3))
    each = sum(state_bytes(config, SPEC).values())
    monkeypatch.setattr(cost, "seed_sharding", lambda _: Mock(num_devices=2))
    monkeypatch.setattr(cost, "free_bytes", lambda: 2 * each)
    check_fits(config, SPEC)
    monkeypatch.setattr(cost, "free_bytes", lambda: 2 * each - 1)
    with pytest.raises(UserError, match=rf"about {2 * each // MEBIBYTE:,} MiB.*at most 2 --seeds"):
        check_fits(config, SPEC)


def test_this_host_knows_its_free_memory():
    free = free_bytes()
    assert free is not None
    assert 2**20 < free < 2**50


def test_memory_is_the_replay_the_networks_and_the_update():
    small = replace(CONFIG.agent, representation=replace(CONFIG.agent.representation, blocks=0))
    found = info(replace(CONFIG, agent=small), SPEC)["device_bytes_per_seed"]
    assert found["replay"] == 4 * CONFIG.capacity * SPEC.row_dim
    # At the least the gradient is one of the intermediate values.
    assert found["networks_and_optimisers"] / 5 < found["update"] < 2**28
