"""SAC: its density against integrals, its losses against NumPy in float64, its temperature."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.agents.sac import (
    SACConfig,
    TanhGaussian,
    actor_loss,
    sampled,
    temperature_loss,
)
from numpy_networks import np_plain_q, np_tree

CONFIG = SACConfig(hidden_dim=8, hidden_layers=2, batch_size=8, target_rate=0.1)
ZERO = jnp.zeros((), jnp.int32)


@pytest.fixture(scope="module")
def agent(spec):
    agent = jax.jit(lambda key: CONFIG.init(spec, key))(jax.random.key(0))
    # Targets of their own, so that reading the wrong copy shows.
    return replace(agent, target_critics=jax.tree.map(lambda x: x + 0.1, agent.target_critics))


@pytest.fixture(scope="module")
def batch(spec, make_batch):
    return make_batch(spec, CONFIG.batch_size, seed=1)


@pytest.fixture(scope="module")
def updated(agent, batch):
    return jax.jit(lambda agent: agent.update(batch, jax.random.key(7), ZERO))(agent)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.8, 0.4), (-1.5, 0.2)])
def test_the_density_is_that_of_tanh_of_a_gaussian(mean, std):
    """It integrates to 1, and up to any action to the Gaussian's own distribution function."""
    policy = TanhGaussian(jnp.asarray([mean]), jnp.asarray([math.log(std)]))
    actions = np.tanh(mean + std * np.linspace(-7, 7, 20_001))
    before = jnp.asarray(np.arctanh(np.clip(actions, -1 + 1e-7, 1 - 1e-7)), jnp.float32)
    density = np.exp(np.asarray(jax.vmap(policy.log_density)(before[:, None]), np.float64))
    pieces = 0.5 * (density[1:] + density[:-1]) * np.diff(actions)
    assert pieces.sum() == pytest.approx(1.0, abs=1e-3)
    for quantile in (5_000, 10_000, 14_000):
        z = 14 * quantile / 20_000 - 7
        expected = 0.5 * (1 + math.erf(z / math.sqrt(2)))
        assert pieces[:quantile].sum() == pytest.approx(expected, abs=1e-3)


def test_the_density_of_several_coordinates_is_a_product():
    policy = TanhGaussian(jnp.asarray([0.3, -0.2]), jnp.asarray([0.1, -0.5]))
    parts = [
        TanhGaussian(policy.mean[i : i + 1], policy.log_std[i : i + 1]).log_density(
            jnp.asarray([0.7 * i])
        )
        for i in range(2)
    ]
    whole = policy.log_density(jnp.asarray([0.0, 0.7]))
    assert float(whole) == pytest.approx(float(parts[0] + parts[1]), rel=1e-6)


def test_the_density_is_finite_far_out():
    policy = TanhGaussian(jnp.asarray([40.0]), jnp.asarray([0.0]))
    action, log_density = policy.sample(jax.random.key(0))
    assert float(action[0]) == pytest.approx(1.0)
    assert np.isfinite(float(log_density))


def test_the_standard_deviation_is_bounded(agent, spec):
    loud = jax.tree.map(lambda leaf: 1e3 * jnp.ones_like(leaf), agent.actor.net)
    assert np.all(np.asarray(TanhGaussian.of(loud, jnp.ones(spec.state_dim)).log_std) == 2.0)


def test_targets_are_soft(agent, batch):
    key = jax.random.key(5)
    drawn = jax.jit(lambda agent: sampled(agent.actor.net, batch.next_state, key))(agent)
    actions, log_density = (np.asarray(array, np.float64) for array in drawn)
    critics = np_tree(agent.critics.layout.unpack(agent.target_critics))
    values = np_plain_q(critics, np.asarray(batch.next_state, np.float64), actions).min(0)
    soft = values - 0.2 * log_density
    expected = np.asarray(batch.reward) + 0.99 * np.asarray(batch.continues) * soft
    found = jax.jit(lambda agent: agent.td_target(batch, key))(agent)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_critics_loss_is_the_squared_error_summed_over_twins(agent, batch, updated):
    critics = np_tree(agent.critics.net)
    states, actions = (np.asarray(x, np.float64) for x in (batch.state, batch.action))
    values = np_plain_q(critics, states, actions)
    target_key, _ = jax.random.split(jax.random.key(7))
    target = np.asarray(jax.jit(lambda agent: agent.td_target(batch, target_key))(agent))
    expected = np.square(values - target).mean(1).sum()
    assert float(updated[2]["critic_loss"]) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(updated[1], np.abs(values - target).max(0), rtol=1e-3, atol=1e-4)


def test_the_actors_loss_trades_value_for_entropy(agent, batch):
    key, alpha = jax.random.key(6), 0.7
    net, critics = agent.actor.net, agent.critics.net
    loss, metrics = jax.jit(
        lambda net: actor_loss(net, critics, jnp.asarray(alpha), batch.state, key)
    )(net)
    actions, log_density = (
        np.asarray(array, np.float64) for array in sampled(net, batch.state, key)
    )
    values = np_plain_q(np_tree(critics), np.asarray(batch.state, np.float64), actions).min(0)
    assert float(loss) == pytest.approx((alpha * log_density - values).mean(), rel=1e-4)
    assert float(metrics["entropy"]) == pytest.approx(-log_density.mean(), rel=1e-4)


@pytest.mark.parametrize(("entropy", "sign"), [(-1.0, 1), (-3.0, -1)])
def test_the_temperature_pulls_the_entropy_to_minus_the_actions(entropy, sign):
    """Two actions: above an entropy of -2 alpha must fall, below it must rise."""
    gradient = jax.grad(lambda log: temperature_loss(log, jnp.asarray(entropy), 2)[0])(
        jnp.asarray(0.3)
    )
    assert float(gradient) == pytest.approx(sign * 1.0)


def test_an_update_moves_everything_once(agent, updated, flat):
    new = updated[0]
    assert float(jnp.exp(agent.temperature.net)) == pytest.approx(0.2)
    for part in ("critics", "actor", "temperature"):
        before, after = getattr(agent, part), getattr(new, part)
        assert np.mean(flat(before.parameters) != flat(after.parameters)) > 0.9
        assert int(after.moments[0].count) == 1
    rate = CONFIG.target_rate
    expected = (1 - rate) * flat(agent.target_critics) + rate * flat(new.critics.parameters)
    np.testing.assert_allclose(flat(new.target_critics), expected, rtol=1e-5, atol=1e-6)


def test_evaluation_takes_the_mean_and_exploration_a_sample(agent, batch):
    state = batch.state[0]
    mean = np.tanh(np.asarray(TanhGaussian.of(agent.actor.net, state).mean))
    np.testing.assert_allclose(agent.policy()(state), mean, rtol=1e-6)
    keys = jax.random.split(jax.random.key(0), 500)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: agent.explore(state, key)))(keys))
    assert np.abs(drawn).max() < 1.0
    assert drawn.std(0).min() > 0.1
