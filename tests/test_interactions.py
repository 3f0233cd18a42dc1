"""Interactions of state and action factors: each score as a sum over indices, and its limits."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.core import EnvSpec, UserError
from fastr.envs.anatomy import Group
from fastr.representations.block import BlockConfig
from fastr.representations.concat import ConcatConfig
from fastr.representations.cp import CPConfig
from fastr.representations.factored import block_products
from fastr.representations.low_rank import LowRankConfig
from fastr.representations.ranking import FactorEncoder
from fastr.representations.scores import InnerProduct
from fastr.representations.tree import ProductEncoder, TreeConfig, matched_width
from fastr.representations.tucker import TuckerConfig
from numpy_networks import np_mish

KEY = jax.random.key(0)
SIZES = {"hidden_dim": 6, "blocks": 1, "noise_levels": 2, "fourier_dim": 8, "head_dim": 4}
GROUPS = "a=0,2;b=1|a=0-1"
CONFIGS = {
    "concat": ConcatConfig(feature_dim=8, **SIZES),
    "tucker": TuckerConfig(feature_dim=4, **SIZES),
    "block": BlockConfig(feature_dim=8, factor_dim=4, block_dim=2, **SIZES),
    "low-rank": LowRankConfig(feature_dim=4, rank=2, **SIZES),
    "tree": TreeConfig(feature_dim=4, groups=GROUPS, **SIZES),
}
ANCHORS, CANDIDATES = 5, 7


def factors(count, size, seed):
    return np.random.default_rng(seed).normal(size=(count, size))


def single(array):
    return jnp.asarray(array, jnp.float32)


def trilinear(states, actions, cores):
    """sum_ij phi_s,i M_ij phi_a,j, written out."""
    scores = np.zeros((len(states), len(cores)))
    for n, (state, action) in enumerate(zip(states, actions, strict=True)):
        for c, core in enumerate(cores):
            scores[n, c] = sum(
                state[i] * core[i, j] * action[j]
                for i in range(len(state))
                for j in range(len(action))
            )
    return scores


@pytest.mark.parametrize("size", [1, 2, 4])
def test_block_products_are_the_sum_over_blocks(size):
    """From the diagonal (blocks of one) to the full core (one block)."""
    states, actions = factors(ANCHORS, 4, 0), factors(ANCHORS, 4, 1)
    entries = factors(CANDIDATES, 4 * size, 2)
    cores = np.zeros((CANDIDATES, 4, 4))
    for c in range(CANDIDATES):
        for b in range(4 // size):
            part = slice(b * size, (b + 1) * size)
            cores[c, part, part] = entries[c].reshape(-1, size, size)[b]
    anchors = jax.vmap(lambda x, y: block_products(x, y, size))(single(states), single(actions))
    found = InnerProduct(anchors)(single(entries)[None])[:, 0]
    np.testing.assert_allclose(found, trilinear(states, actions, cores), rtol=1e-4, atol=1e-5)


def test_a_superdiagonal_tucker_core_is_cp():
    states, actions = factors(ANCHORS, 4, 0), factors(ANCHORS, 4, 1)
    diagonal = factors(CANDIDATES, 4, 2)
    cores = np.stack([np.diag(m).ravel() for m in diagonal])
    products = jax.vmap(lambda x, y: block_products(x, y, 4))(single(states), single(actions))
    tucker = InnerProduct(products)(single(cores)[None])
    cp = InnerProduct(single(states * actions))(single(diagonal)[None])
    np.testing.assert_allclose(tucker, cp, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def low_rank(spec):
    """Networks of rank 0, 2 and 4, raw scores: what they are applied to is given by hand."""

    def build(rank):
        config = LowRankConfig(feature_dim=4, rank=rank, score="raw", **SIZES)
        return config.init(spec, KEY)

    return build


@pytest.mark.parametrize("rank", [0, 2])
def test_low_rank_is_its_sum_over_indices(low_rank, rank):
    states, actions = factors(ANCHORS, 4, 0), factors(ANCHORS, 4, 1)
    parts = factors(CANDIDATES, 4 * (1 + 2 * rank), 2)
    cores = []
    for row in parts:
        diagonal, *thin = np.split(row, 1 + 2 * rank)
        core = np.diag(diagonal)
        for left, right in zip(thin[:rank], thin[rank:], strict=True):
            core = core + np.outer(left, right)
        cores.append(core)
    found = low_rank(rank).score(single(states), single(actions))(single(parts)[None])[:, 0]
    np.testing.assert_allclose(found, trilinear(states, actions, cores), rtol=1e-4, atol=1e-5)


def test_full_rank_with_the_right_factors_is_tucker(low_rank):
    """M = I M^T^T: left columns the unit vectors, right columns the rows of M."""
    states, actions = factors(ANCHORS, 4, 0), factors(ANCHORS, 4, 1)
    cores = factors(CANDIDATES, 16, 2).reshape(-1, 4, 4)
    parts = np.stack(
        [np.concatenate([np.zeros(4), np.eye(4).ravel(), core.ravel()]) for core in cores]
    )
    found = low_rank(4).score(single(states), single(actions))(single(parts)[None])[:, 0]
    np.testing.assert_allclose(found, trilinear(states, actions, cores), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score", ["l2", pytest.param("raw", marks=pytest.mark.slow)])
def test_rank_zero_is_cp_exactly(spec, make_batch, score):
    """The same parameters, loss and gradients, to the bit."""
    sizes = {"feature_dim": 4, "score": score, **SIZES}
    batch = make_batch(spec, 6, seed=0)

    @jax.jit
    def both(key):
        nets = CPConfig(**sizes).init(spec, key), LowRankConfig(rank=0, **sizes).init(spec, key)
        return [jax.value_and_grad(lambda net: net.loss(batch, KEY)[0])(net) for net in nets]

    cp, low = both(KEY)
    for ours, theirs in zip(jax.tree.leaves(low), jax.tree.leaves(cp), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_l2_score_has_the_scale_of_the_diagonal(spec):
    """Scaling a state factor changes neither part of a normalised low-rank score."""
    net = LowRankConfig(feature_dim=4, rank=2, **SIZES).init(spec, KEY)
    states, actions = single(factors(ANCHORS, 4, 0)), single(factors(ANCHORS, 4, 1))
    parts = single(factors(CANDIDATES, 20, 2))
    found, scaled = (net.score(factor * states, actions)(parts[None]) for factor in (1.0, 5.0))
    np.testing.assert_allclose(scaled, found, rtol=1e-4, atol=1e-5)


def test_concat_is_one_layer_on_both_factors(spec, make_batch):
    net = CONFIGS["concat"].init(spec, KEY)
    batch = make_batch(spec, 6, seed=0)
    state, action = batch.state[0], batch.action[0]
    pair = np.concatenate([net.state_encoder(state), net.action_encoder(action)])
    hidden = pair.astype(np.float64) @ np.asarray(net.projection.weight, np.float64)
    expected = np_mish(hidden + np.asarray(net.projection.bias, np.float64))
    expected /= np.linalg.norm(expected)
    np.testing.assert_allclose(net.feature(state, action), expected, rtol=1e-4, atol=1e-5)


# A block is between CP and Tucker: now and then is enough.
RARE = ("block",)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=[pytest.mark.slow] * (name in RARE))
        for name, config in CONFIGS.items()
    ],
)
def test_everything_but_the_unseen_constant_learns(config, spec, make_batch):
    """Each loss is finite and reaches every parameter but the bias that no softmax sees."""
    batch = make_batch(spec, 6, seed=0)

    @jax.jit
    def gradient(key):
        net = config.init(spec, key)
        return jax.value_and_grad(lambda net: net.loss(batch, KEY)[0])(net)

    loss, slopes = gradient(KEY)
    assert np.isfinite(loss)
    bias = np.asarray(slopes.contrast.next_state_encoder.encoder.outlet.bias)
    # With a low-rank core only the diagonal's constant is unseen: those of U and V are in products.
    np.testing.assert_array_equal(bias == 0, np.arange(bias.size) < config.unseen_dim)
    still = [leaf for leaf in jax.tree.leaves(slopes) if not np.any(leaf)]
    assert len(still) == (config.unseen_dim == bias.size)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_critics_fit_the_feature(config, spec):
    net = config.init(spec, KEY)
    feature = net.feature(jnp.ones(spec.state_dim), jnp.zeros(spec.action_dim))
    assert config.head(KEY)(feature).shape == ()


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="--block-dim is 3"):
        replace(CONFIGS["block"], block_dim=3)
    with pytest.raises(UserError, match="--feature-dim is 9"):
        replace(CONFIGS["block"], feature_dim=9)
    with pytest.raises(UserError, match="must be even"):
        replace(CONFIGS["concat"], feature_dim=7)


@pytest.mark.parametrize(
    "score", ["l2", *(pytest.param(form, marks=pytest.mark.slow) for form in ("raw", "layernorm"))]
)
def test_a_tree_of_one_group_is_cp_exactly(spec, make_batch, score):
    """With the same weights: the same loss and gradients, to the bit."""
    sizes = {"feature_dim": 4, "score": score, **SIZES}
    batch = make_batch(spec, 6, seed=0)
    cp = CPConfig(**sizes).init(spec, KEY)
    tree = TreeConfig(groups="0-2|0-1", **sizes).init(spec, jax.random.key(1))
    structure = jax.tree.structure(tree)
    alike = jax.tree.unflatten(structure, jax.tree.leaves(cp))

    @jax.jit
    def learned(net):
        return jax.value_and_grad(lambda net: net.loss(batch, KEY)[0])(net)

    for ours, theirs in zip(*(jax.tree.leaves(learned(net)) for net in (alike, cp)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_tree_is_the_product_of_its_parts(spec):
    """psi_k = prod_g phi_g,k(s_g) prod_h phi_h,k(a_h): each part sees its own entries alone."""
    net = TreeConfig(feature_dim=4, score="raw", groups=GROUPS, **SIZES).init(spec, KEY)
    state, action = single(factors(1, 3, 0)[0]), single(factors(1, 2, 1)[0])
    first, second = net.state_encoder.encoders
    (third,) = net.action_encoder.encoders
    parts = first(state[jnp.asarray([0, 2])]), second(state[1:2]), third(action)
    expected = np.prod([np.asarray(part, np.float64) for part in parts], axis=0)
    np.testing.assert_allclose(net.feature(state, action), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("score", ["l2", "layernorm"])
def test_a_fresh_product_of_many_parts_uses_its_coordinates(score):
    """Ten factors around zero would have about 4 of 512 coordinates differ from nothing."""
    groups = "0-1;2-3;4-5;6-7;8-9|0;1;2;3;4"
    config = TreeConfig(score=score, groups=groups, **SIZES)
    states, actions = single(factors(32, 10, 0)), single(factors(32, 5, 1))

    @jax.jit
    def features(key):
        return jax.vmap(config.init(EnvSpec(10, 5), key).feature)(states, actions)

    # Networks this small differ: 9 to 25 coordinates each under "l2".
    energy = np.square([features(key) for key in jax.random.split(KEY, 16)])
    used = energy.sum(axis=-1) ** 2 / np.square(energy).sum(axis=-1)
    assert used.mean() > 12


def test_parts_together_have_the_parameters_of_one_encoder():
    config = TreeConfig(feature_dim=64, hidden_dim=128)
    inputs = [9, 5, 3]
    width = matched_width(inputs, config)

    def parameters(hidden):
        groups = np.split(np.arange(sum(inputs)), np.cumsum(inputs)[:-1])
        sides = tuple(Group(str(i), tuple(map(int, group))) for i, group in enumerate(groups))
        sizes = replace(config, hidden_dim=hidden)
        parts = [FactorEncoder(len(side.entries), 64, sizes, key=KEY) for side in sides]
        return sum(leaf.size for leaf in jax.tree.leaves(parts))

    one = FactorEncoder(sum(inputs), 64, config, key=KEY)
    budget = sum(leaf.size for leaf in jax.tree.leaves(one))
    assert parameters(width) <= budget < parameters(width + 8)
    assert matched_width([sum(inputs)], config) == 128


def test_a_part_does_not_see_the_others_entries(spec):
    """With one part's factor away from zero, the product's slope there is that part's alone."""
    net = TreeConfig(feature_dim=4, groups=GROUPS, **SIZES).init(spec, KEY)
    encoder = net.state_encoder
    assert isinstance(encoder, ProductEncoder)
    alone = eqx.tree_at(
        lambda e: e.encoders,
        encoder,
        tuple(e if i == 1 else lambda _: jnp.ones(4) for i, e in enumerate(encoder.encoders)),
    )
    slopes = jax.jacobian(alone)(jnp.ones(3))
    np.testing.assert_array_equal(np.any(slopes, axis=0), [False, True, False])
