"""TD3 without a representation: targets and losses against NumPy, and what an update moves."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.agents.actor_critic import actor_loss, plain_q
from fastr.agents.td3 import TD3Config
from numpy_networks import np_mlp, np_plain_q, np_tree

CONFIG = TD3Config(hidden_dim=6, batch_size=8, target_rate=0.1, target_noise=1e-9)


@pytest.fixture(scope="module")
def agent(spec):
    """With targets of their own, so that reading the wrong copy shows."""
    agent = jax.jit(lambda key: CONFIG.init(spec, key))(jax.random.key(0))
    return replace(
        agent,
        target_critics=jax.tree.map(lambda leaf: leaf + 0.1, agent.target_critics),
        target_actor=jax.tree.map(lambda leaf: leaf - 0.1, agent.target_actor),
    )


@pytest.fixture(scope="module")
def batch(spec, make_batch):
    return make_batch(spec, CONFIG.batch_size, seed=1)


@pytest.fixture(scope="module")
def updated(agent, batch):
    step = jnp.zeros((), jnp.int32)
    return jax.jit(lambda agent: agent.update(batch, jax.random.key(7), step))(agent)


def np_actions(actor, states):
    return np.tanh([np_mlp(actor, state) for state in np.asarray(states, np.float64)])


def test_targets_and_errors(agent, batch, updated):
    actor = np_tree(agent.actor.layout.unpack(agent.target_actor))
    critics = np_tree(agent.critics.layout.unpack(agent.target_critics))
    following = np.asarray(batch.next_state, np.float64)
    values = np_plain_q(critics, following, np_actions(actor, following)).min(0)
    target = np.asarray(batch.reward) + 0.99 * np.asarray(batch.continues) * values
    states, actions = (np.asarray(x, np.float64) for x in (batch.state, batch.action))
    errors = np_plain_q(np_tree(agent.critics.net), states, actions) - target
    _, td_error, metrics = updated
    np.testing.assert_allclose(td_error, np.abs(errors).max(0), rtol=1e-3, atol=1e-4)
    assert float(metrics["critic_loss"]) == pytest.approx((errors**2).mean(1).sum(), rel=1e-4)


def test_the_actors_loss_is_the_mean_over_twins_and_batch(agent, batch):
    states = np.asarray(batch.state, np.float64)
    actions = np_actions(np_tree(agent.actor.net), states)
    values = np_plain_q(np_tree(agent.critics.net), states, actions)

    @jax.jit
    def losses(net, critics):
        find = lambda actions: plain_q(critics, batch.state, actions)  # noqa: E731
        return actor_loss(net, find, batch)[0], actor_loss(net, find, batch, 0.4)[0]

    plain, imitating = losses(agent.actor.net, agent.critics.net)
    assert float(plain) == pytest.approx(-values.mean(), rel=1e-4)
    distance = np.square(actions - np.asarray(batch.action)).mean()
    expected = -values.mean() / np.abs(values).mean() + 0.4 * distance
    assert float(imitating) == pytest.approx(expected, rel=1e-4)


def test_an_update_moves_networks_and_targets(agent, updated, flat):
    new = updated[0]
    for part in ("critics", "actor"):
        before, after = getattr(agent, part).parameters, getattr(new, part).parameters
        assert np.mean(flat(before) != flat(after)) > 0.9
        old, target = (flat(getattr(a, f"target_{part}")) for a in (agent, new))
        expected = 0.9 * old + 0.1 * flat(after)
        np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-6)
