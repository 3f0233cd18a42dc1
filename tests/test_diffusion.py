"""Diff-SR's representation: its loss against NumPy, and a denoiser that is known exactly."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiling import optimised
from fastr.core import EnvSpec
from fastr.nn.networks import sinusoid
from fastr.nn.optim import Adam, Trainable
from fastr.representations.diffusion import DiffusionConfig
from fastr.transition import Transition
from numpy_networks import np_layer_norm, np_linear, np_mish, np_tree

CONFIG = DiffusionConfig(
    feature_dim=5, hidden_dim=6, blocks=1, noise_levels=4, fourier_dim=8, head_dim=6
)
KEY = jax.random.key(3)
BATCH = 6


@pytest.fixture(scope="module")
def net(spec, make_weights):
    return make_weights(jax.eval_shape(lambda key: CONFIG.init(spec, key), KEY), seed=2)


@pytest.fixture(scope="module")
def batch(spec, make_batch):
    return make_batch(spec, BATCH, seed=1)


@pytest.fixture(scope="module")
def drawn():
    """The levels and the noise that the loss draws from its key."""
    level_key, noise_key = jax.random.split(KEY)
    levels = jax.random.randint(level_key, (BATCH,), 0, CONFIG.noise_levels)
    return np.asarray(levels), np.asarray(jax.random.normal(noise_key, (BATCH, 3)), np.float64)


def np_embedder(net, x):
    return np_linear(net.second, np_mish(np_linear(net.first, x)))


def np_encoder(net, x):
    x = np_linear(net.inlet, x)
    for block in net.blocks:
        normal = np_layer_norm(block.norm, x)
        x = x + np_linear(block.second, np_mish(np_linear(block.first, normal)))
    return np_linear(net.outlet, np_mish(x))


def np_feature(net, state, action):
    pair = [np_embedder(net.state_embedder, state), np_embedder(net.action_embedder, action)]
    return np_encoder(net.encoder, np.concatenate(pair))


def np_noise(net, feature, noisy, level):
    """phi^T mu, written as the double sum over coordinates."""
    time = np_embedder(net.time_embedding, np.asarray(sinusoid(jnp.asarray(float(level)))))
    matrix = np_encoder(net.noise_encoder, np.concatenate([noisy, time]))
    matrix = matrix.reshape(len(noisy), len(feature))
    return np.array(
        [sum(feature[k] * matrix[i, k] for k in range(len(feature))) for i in range(len(noisy))]
    )


def np_reward(head, feature):
    angles = np_linear(head.projection, np_layer_norm(head.norm, feature))
    fourier = np.concatenate([np.sin(angles), np.cos(angles)])
    hidden = np_layer_norm(head.hidden_norm, np_linear(head.hidden, fourier))
    return np_linear(head.outlet, np.where(hidden > 0, hidden, np.expm1(hidden)))[0]


def test_the_loss_is_the_equations(net, batch, drawn):
    levels, noise = drawn
    exact = np_tree(net)
    rows = [np.asarray(x, np.float64) for x in (batch.state, batch.action, batch.next_state)]
    denoising, rewards = [], []
    for i, (state, action, following) in enumerate(zip(*rows, strict=True)):
        time = (levels[i] + 1) / CONFIG.noise_levels
        signal = math.exp(-0.1 * time - 4.95 * time**2)
        noisy = math.sqrt(signal) * following + math.sqrt(1 - signal) * noise[i]
        feature = np_feature(exact, state, action)
        error = np_noise(exact, feature, noisy, levels[i]) - noise[i]
        denoising.append(np.sum(error**2))
        rewards.append((np_reward(exact.reward_head, feature) - float(batch.reward[i])) ** 2)
    loss, metrics = jax.jit(lambda net: net.loss(batch, KEY))(net)
    assert len(set(levels.tolist())) > 1
    assert float(metrics["denoising_loss"]) == pytest.approx(np.mean(denoising), rel=1e-4)
    assert float(metrics["reward_loss"]) == pytest.approx(np.mean(rewards), rel=1e-4)
    assert float(loss) == pytest.approx(np.mean(denoising) + 0.1 * np.mean(rewards), rel=1e-4)


def test_every_parameter_has_a_gradient(net, batch):
    gradient = jax.jit(jax.grad(lambda net: net.loss(batch, KEY)[0]))(net)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_the_bound_on_noisy_states_is_an_option(net):
    states, noise = 100.0 * jnp.ones((BATCH, 3)), jnp.zeros((BATCH, 3))
    levels = jnp.zeros(BATCH, int)
    assert float(net.noisy(states, noise, levels).max()) > 50
    clipped = replace(net, config=replace(CONFIG, noise_clip=10.0))
    assert float(clipped.noisy(states, noise, levels).max()) == 10.0


def test_it_recovers_the_denoiser_of_gaussian_next_states():
    """s' ~ N(m(a), 0.5^2) for two actions: E[eps | s'_t, a] is linear in s'_t, and known."""
    spec, spread, levels = EnvSpec(1, 1), 0.5, 5
    config = DiffusionConfig(
        feature_dim=16, hidden_dim=32, blocks=1, noise_levels=levels, fourier_dim=8, head_dim=4
    )
    size = 256
    action = jnp.where(jnp.arange(size) % 2 == 0, -1.0, 1.0)[:, None]
    centre = 1.5 * action

    def step(trainable, key):
        state_key, loss_key = jax.random.split(key)
        following = centre + spread * jax.random.normal(state_key, (size, 1))
        batch = Transition(jnp.zeros((size, 1)), action, following, jnp.zeros(size), jnp.ones(size))
        return trainable.step(lambda net: net.loss(batch, loss_key))

    @jax.jit
    def learned(key):
        init_key, data_key, late_key = jax.random.split(key, 3)
        trainable = Trainable.of(config.init(spec, init_key), Adam(3e-3))
        trainable, _ = jax.lax.scan(step, trainable, jax.random.split(data_key, 1000))
        # Then small steps: what is left is the network's error, not the last batches'.
        trainable = replace(trainable, adam=Adam(3e-4))
        trainable, _ = jax.lax.scan(step, trainable, jax.random.split(late_key, 500))
        return trainable.net

    with optimised():
        net = learned(jax.random.key(0))
    grid = jnp.linspace(-2.0, 2.0, 41)
    feature_of = jax.jit(lambda sign: net.feature(jnp.zeros(1), sign[None]))
    denoised = jax.jit(type(net).denoised)
    for sign in (-1.0, 1.0):
        feature = feature_of(jnp.asarray(sign))
        for level in range(levels):
            time = (level + 1) / levels
            signal = math.exp(-0.1 * time - 4.95 * time**2)
            middle = math.sqrt(signal) * 1.5 * sign
            variance = signal * spread**2 + 1 - signal
            # Where data are: within two standard deviations of the noisy state.
            noisy = middle + math.sqrt(variance) * grid
            expected = math.sqrt(1 - signal) * (noisy - middle) / variance
            found = denoised(
                net, jnp.tile(feature, (grid.size, 1)), noisy[:, None], jnp.full(grid.size, level)
            )[:, 0]
            # In 26 trainings with other seeds the largest was 0.092.
            assert np.sqrt(np.mean((found - expected) ** 2)) < 0.12
