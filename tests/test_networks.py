"""Networks against closed forms, plain formulas and published parameter counts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.agents.spectral import SpectralConfig
from fastr.core import EnvSpec
from fastr.nn.activations import LAYER_NORM_EPSILON, elu, l2_normalize, mish
from fastr.nn.networks import (
    MLP,
    FourierHead,
    LayerNorm,
    Linear,
    ResidualMLP,
    TimeEmbedding,
    sinusoid,
)
from fastr.representations.interactions import CPConfig
from fastr.representations.joint import JointConfig

HUMANOID = EnvSpec(state_dim=67, action_dim=21)


def parameters(build):
    """How many numbers a network has; nothing is allocated."""
    shapes = jax.eval_shape(build, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.fixture(scope="module")
def mish_inputs():
    extremes = [-100.0, -88.0, -50.0, -20.0, 19.99, 20.0, 20.01, 50.0, 88.0, 100.0]
    return np.concatenate([np.linspace(-12, 12, 481), extremes]).astype(np.float32)


def mish_reference(x):
    """x tanh(softplus(x)) and its derivative, in float64."""
    x = x.astype(np.float64)
    gate = np.tanh(np.logaddexp(0.0, x))
    # 1 - tanh^2 in a form without cancellation.
    slope = np.cosh(np.minimum(np.logaddexp(0.0, x), 300.0)) ** -2.0
    return x * gate, gate + x * slope / (1.0 + np.exp(-x))


def test_mish_is_its_definition(mish_inputs):
    """Value, and gradients by input and bias; half of the argument comes in as the bias."""
    half = jnp.asarray(mish_inputs / 2)
    value, pullback = jax.vjp(jax.jit(mish), half, half)
    by_input, by_bias = pullback(jnp.ones_like(half))
    expected, slope = mish_reference(mish_inputs)
    # exp(-88) is not normal in float32 and may be taken for 0.
    np.testing.assert_allclose(value, expected, rtol=3e-6, atol=1e-36)
    np.testing.assert_allclose(by_input, slope, rtol=3e-6, atol=1e-6)
    np.testing.assert_array_equal(by_bias, by_input)


def test_mish_of_a_layer_sums_its_bias_gradient_over_the_batch(make_weights):
    """Against autodiff of the plain formula, for weights, bias and inputs."""
    shapes = jax.eval_shape(lambda key: Linear(3, 4, key=key), jax.random.key(0))
    layer = make_weights(shapes, seed=0)
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)

    def plain(layer, x):
        hidden = layer(x)
        return hidden * jnp.tanh(jax.nn.softplus(hidden))

    ours, theirs = (
        jax.jit(jax.grad(lambda net, x, f=f: jnp.sum(jax.vmap(f, (None, 0))(net, x) ** 2), (0, 1)))(
            layer, inputs
        )
        for f in (Linear.mish, plain)
    )
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_mish_keeps_the_precision_of_its_input():
    low = jnp.asarray([-3.0, 0.5, 30.0], jnp.bfloat16)
    value = mish(low, jnp.zeros_like(low))
    assert value.dtype == jnp.bfloat16
    exact = mish_reference(np.asarray(low, np.float32))[0]
    np.testing.assert_allclose(value.astype(jnp.float32), exact, rtol=2**-8)


def layer_norm(x, weight, bias):
    norm = eqx.tree_at(lambda net: (net.weight, net.bias), LayerNorm(x.size), (weight, bias))
    return norm(x)


def plain_layer_norm(x, weight, bias):
    variance = jnp.mean((x - jnp.mean(x)) ** 2)
    return (x - jnp.mean(x)) / jnp.sqrt(variance + LAYER_NORM_EPSILON) * weight + bias


# At 1e-3 the input's variance is the epsilon's, so that the epsilon's place is seen too.
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_layer_norm_and_its_three_gradients_are_the_plain_formula(scale):
    generator = np.random.default_rng(0)
    arguments = [jnp.asarray(generator.normal(size=11), jnp.float32) for _ in range(3)]
    arguments[0] = scale * (arguments[0] + 2.0)
    direction = jnp.asarray(generator.normal(size=11), jnp.float32)

    def value_and_gradients(function):
        value, pullback = jax.vjp(function, *arguments)
        return value, *pullback(direction)

    ours, plain = (
        jax.jit(lambda f=f: value_and_gradients(f))() for f in (layer_norm, plain_layer_norm)
    )
    for mine, theirs in zip(ours, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


def test_layer_norm_starts_as_pure_normalisation():
    output = np.asarray(LayerNorm(64)(jnp.linspace(5.0, 9.0, 64)))
    assert abs(output.mean()) < 1e-6
    assert output.std() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("inputs", "count"), [(67, 1_350_144), (21, 1_326_592), (195, 1_415_680), (88, 1_360_896)]
)
def test_encoder_size(inputs, count):
    assert parameters(lambda key: ResidualMLP(inputs, 512, 512, 2, key=key)) == count
    assert count == 1_315_840 + 512 * inputs


def test_head_embedding_and_actor_sizes():
    assert parameters(lambda key: FourierHead(512, 1024, 512, key=key)) == 790_017
    assert parameters(lambda key: TimeEmbedding(key=key)) == 65_920
    sizes = (67, 512, 512, 512, 21)
    assert parameters(lambda key: MLP(sizes, elu, key=key)) == 573_973


@pytest.mark.parametrize(
    ("representation", "count"), [(CPConfig(), 7_102_385), (JointConfig(), 5_786_545)]
)
def test_all_online_networks_of_the_paper_on_humanoid(representation, count):
    config = SpectralConfig(representation=representation)
    assert parameters(lambda key: config.init(HUMANOID, key).networks()) == count


def test_every_weight_starts_uniform_within_the_inverse_root_of_its_inputs():
    layer = jax.jit(lambda key: Linear(64, 400, key=key))(jax.random.key(0))
    bound = 1 / 8
    for values in (np.asarray(layer.weight), np.asarray(layer.bias)):
        assert np.abs(values).max() <= bound
        assert np.abs(values).max() > 0.98 * bound
        # A uniform variable on +-b has standard deviation b / sqrt(3); 4 standard errors.
        assert values.std() == pytest.approx(bound / 3**0.5, rel=4 * (0.2 / values.size) ** 0.5)
        assert abs(values.mean()) < 4 * bound / (3 * values.size) ** 0.5


def test_two_layers_of_one_network_start_different():
    net = jax.jit(lambda key: ResidualMLP(8, 8, 8, 2, key=key))(jax.random.key(0))
    weights = [leaf for leaf in jax.tree.leaves(net) if leaf.ndim == 2]
    assert len(weights) == 6
    assert len(np.unique(np.stack(weights))) == 6 * 64


def test_sinusoid_has_64_frequencies_with_both_ends():
    frequencies = np.exp(-np.log(10_000.0) * np.arange(64) / 63)
    assert frequencies[0] == 1.0
    assert frequencies[-1] == pytest.approx(1e-4)
    for level in (0, 1, 24):
        expected = np.concatenate([np.cos(level * frequencies), np.sin(level * frequencies)])
        np.testing.assert_allclose(sinusoid(jnp.float32(level)), expected, atol=5e-6)


def test_fourier_features_approximate_a_gaussian_kernel():
    """<z(x), z(y)> / (D/2) -> exp(-|x - y|^2 / 2) for a standard normal projection.

    A term cos(w (x - y)) has variance (1 - k^2)^2 / 2 about the kernel's value k, so the error
    shrinks like the root of that over D/2; 4 standard deviations are allowed.
    """
    generator = np.random.default_rng(0)
    points = generator.normal(size=(12, 3)).astype(np.float32)
    unit = (points - points.mean(1, keepdims=True)) / points.std(1, keepdims=True)
    squares = ((unit[:, None] - unit[None]) ** 2).sum(-1)
    kernel = np.exp(-squares / 2)
    for fourier in (64, 1024, 16_384):
        half = fourier // 2
        head = jax.eval_shape(
            lambda key, d=fourier: FourierHead(3, d, 4, key=key), jax.random.key(0)
        )
        head = eqx.tree_at(
            lambda net: (net.norm.weight, net.norm.bias, net.projection),
            head,
            (
                jnp.ones(3),
                jnp.zeros(3),
                eqx.tree_at(
                    lambda layer: (layer.weight, layer.bias),
                    head.projection,
                    (
                        jnp.asarray(generator.normal(size=(3, half)), jnp.float32),
                        jnp.asarray(generator.uniform(size=half), jnp.float32),
                    ),
                ),
            ),
        )
        features = np.asarray(jax.jit(jax.vmap(head.fourier))(jnp.asarray(points)))
        assert features.shape == (12, fourier)
        error = np.abs(features @ features.T / half - kernel)
        assert np.all(error <= 4 * (1 - kernel**2) / np.sqrt(2 * half) + 1e-4)


def test_l2_normalize_has_norm_one_and_a_finite_gradient_at_zero():
    unit = l2_normalize(jnp.asarray([3.0, 0.0, -4.0]))
    np.testing.assert_allclose(unit, [0.6, 0.0, -0.8], atol=1e-6)
    zero = jnp.zeros(3)
    np.testing.assert_array_equal(l2_normalize(zero), zero)
    assert np.all(np.isfinite(jax.jit(jax.jacobian(l2_normalize))(zero)))


@pytest.mark.parametrize("net", ["mlp", "head"])
def test_in_bfloat16_hidden_layers_round_and_outputs_do_not(net):
    """Outputs and gradients are float32 and near the exact ones: bfloat16 keeps 8 bits."""
    build = {"mlp": lambda key: MLP((8, 64, 64, 2), elu, key=key)}.get(
        net, lambda key: FourierHead(8, 64, 32, key=key)
    )
    module = build(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (8,))

    @jax.jit
    def both(module, x):
        return module(x), jax.grad(lambda module: jnp.sum(module(x)))(module)

    exact, rounded = both(module, x), both(module, x.astype(jnp.bfloat16))
    for fine, coarse in zip(*map(jax.tree.leaves, (exact, rounded)), strict=True):
        assert coarse.dtype == jnp.float32
        np.testing.assert_allclose(coarse, fine, atol=0.05 * np.abs(fine).max() + 1e-3)
    assert np.any(np.asarray(exact[0]) != np.asarray(rounded[0]))


def test_elu_is_the_formula_with_its_slope():
    x = jnp.asarray([-30.0, -2.0, -1e-3, 0.0, 1e-3, 2.0])
    np.testing.assert_allclose(elu(x), np.where(x > 0, x, np.expm1(x)), rtol=1e-5, atol=1e-7)
    slopes = jax.vmap(jax.grad(elu))(x)
    np.testing.assert_allclose(slopes, np.where(x > 0, 1.0, np.exp(x)), rtol=1e-6)
