"""What is kept never moves, all else does."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.agents.spectral import ENCODERS, SpectralConfig, with_kept
from fastr.core import UserError
from fastr.representations.diffusion import DiffusionConfig
from fastr.representations.interactions import CPConfig, TuckerConfig
from fastr.representations.joint import JointConfig
from fastr.training.learner import Learner

SIZES = {"feature_dim": 4, "hidden_dim": 6, "blocks": 1, "noise_levels": 2}
HEADS = {"fourier_dim": 8, "head_dim": 4}
CONFIGS = {
    "state-factor": CPConfig(**SIZES, **HEADS),
    "encoder": JointConfig(**SIZES, **HEADS),
}
UPDATES = 3


def learner(keep, seed):
    config = SpectralConfig(CONFIGS[keep], batch_size=8, actor_dim=6)
    return lambda spec, kept: Learner.init(replace(config, keep=kept), spec, 16, jnp.int32(seed))


@pytest.fixture(scope="module", params=CONFIGS)
def adapted(request, spec):
    """A source, what inherits from it, and that one after some updates."""
    keep = request.param
    rows = np.random.default_rng(0).normal(size=(2, 16, spec.row_dim)).astype(np.float32)

    @jax.jit
    def run(rows):
        def filled(one, rows):
            step = lambda i, one: one.observe(rows[i], i)  # noqa: E731
            return jax.lax.fori_loop(0, len(rows), step, one)

        source = filled(learner(keep, 0)(spec, "nothing"), rows[0])
        source, _ = source.improve(jnp.int32(16), jnp.int32(0))
        fresh = filled(learner(keep, 1)(spec, keep).inherit(source, keep), rows[1])
        improved = lambda i, one: one.improve(jnp.int32(16), i)[0]  # noqa: E731
        return source, fresh, jax.lax.fori_loop(0, UPDATES, improved, fresh)

    return keep, *run(rows)


def same(ours, theirs):
    return [
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    ]


def test_the_kept_part_comes_from_the_source_and_stays_to_the_bit(adapted):
    keep, source, fresh, after = adapted
    part = lambda net: getattr(net, ENCODERS[keep])  # noqa: E731
    origin = part(source.agent.representation.net)
    for one in (fresh, after):
        assert all(same(part(one.agent.representation.net), origin))
        assert all(same(part(one.agent.target_representation), origin))


def test_everything_else_moves(adapted):
    """But the last bias of the next-state factor, which no softmax sees."""
    keep, _, fresh, after = adapted
    names = {"state-factor": "state_encoder", "encoder": "joint_encoder"}
    ours, theirs = after.agent.networks(), fresh.agent.networks()
    for name, network in ours.items():
        if name == names[keep]:
            continue
        assert same(network, theirs[name]).count(True) == (name == "next_state_encoder"), name


def test_observation_statistics_are_the_sources(adapted):
    _, source, _, after = adapted
    assert all(same(after.moments, source.moments))


def test_all_is_everything_but_the_optimisers(spec):
    source, fresh = (learner("encoder", seed)(spec, "nothing") for seed in (0, 1))
    rows = np.random.default_rng(0).normal(size=(8, spec.row_dim)).astype(np.float32)
    for i, row in enumerate(rows):
        source = source.observe(jnp.asarray(row), jnp.int32(i))
    source, _ = jax.jit(Learner.improve)(source, jnp.int32(8), jnp.int32(0))
    after = fresh.inherit(source, "all")
    assert all(same(after.agent.networks(), source.agent.networks()))
    assert all(same(after.agent.target, source.agent.target))
    assert all(same(after.moments, source.moments))
    assert all(same(after.agent.critics.moments, fresh.agent.critics.moments))
    assert all(same(after.replay, fresh.replay))
    part = fresh.inherit(source, "representation")
    assert all(same(part.agent.representation.net, source.agent.representation.net))
    assert all(same(part.agent.critics.net, fresh.agent.critics.net))


@pytest.mark.parametrize(
    ("representation", "keep", "said"),
    [
        (CPConfig(), "encoder", "it can keep state-factor"),
        (TuckerConfig(), "encoder", "it can keep state-factor"),
        (JointConfig(), "state-factor", "it can keep encoder"),
        (DiffusionConfig(), "encoder", "it can keep nothing"),
    ],
)
def test_what_cannot_be_kept_is_refused(representation, keep, said):
    with pytest.raises(UserError, match=said):
        SpectralConfig(representation, keep=keep)


@pytest.mark.parametrize("keep", CONFIGS)
def test_encoders_without_blocks_are_kept_as_well(keep, spec):
    net = replace(CONFIGS[keep], blocks=0).init(spec, jax.random.key(0))
    still = with_kept(net, keep, jax.lax.stop_gradient)
    assert jax.tree.all(jax.tree.map(np.array_equal, still, net))
