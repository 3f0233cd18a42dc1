"""Probe problems whose values and best actions are known, learned by whole updates.

One program, compiled once, learns all of them: a problem is 128 transitions, and every problem has
two one-hot states, one action coordinate and a discount of 1/2.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.agents.spectral import SpectralConfig, twin_q
from fastr.representations.cp import CPConfig
from fastr.spec import EnvSpec
from fastr.types import Transition

DISCOUNT = 0.5
ROWS, BATCH = 128, 16
BEST_ACTION = 0.3
SPEC = EnvSpec(state_dim=2, action_dim=1)
CONFIG = SpectralConfig(
    representation=CPConfig(
        feature_dim=16, hidden_dim=16, blocks=0, noise_levels=2, fourier_dim=32, head_dim=16
    ),
    batch_size=BATCH,
    discount=DISCOUNT,
    target_rate=0.02,
    representation_learning_rate=1e-3,
    critic_learning_rate=3e-3,
    actor_learning_rate=1e-3,
    actor_dim=16,
)


def problem(state, next_state, reward, continues, action):
    """Transitions between numbered states."""
    columns = (
        np.eye(2)[state],
        action[:, None],
        np.eye(2)[next_state],
        np.broadcast_to(reward, ROWS),
        np.broadcast_to(continues, ROWS),
    )
    return Transition(*(jnp.asarray(column, jnp.float32) for column in columns))


@pytest.fixture(scope="module")
def learn(make_agent):
    """The critics' mean and the policy at both states after 600 updates on a problem."""

    def step(carry, key):
        agent, rows = carry
        draw_key, update_key = jax.random.split(key)
        chosen = jax.random.randint(draw_key, (BATCH,), 0, ROWS)
        batch = jax.tree.map(lambda column: column[chosen], rows)
        return (agent.update(batch, update_key, jnp.zeros((), int))[0], rows), None

    def compiled(agent, rows):
        keys = jax.random.split(jax.random.key(0), 600)
        (agent, _), _ = jax.lax.scan(step, (agent, rows), keys)
        net = agent.target_representation
        features = jax.vmap(net.feature)(rows.state, rows.action)
        return jnp.mean(twin_q(agent.critics.net, features), axis=0), jax.vmap(agent.policy())(
            jnp.eye(2)
        )

    agent = make_agent(CONFIG, SPEC, seed=0)
    agent = replace(
        agent,
        target=type(agent.target)(
            agent.representation.parameters, agent.critics.parameters, agent.actor.parameters
        ),
    )
    program = jax.jit(compiled)
    return lambda rows: map(np.asarray, program(agent, rows))


@pytest.fixture(scope="module")
def states():
    return np.arange(ROWS) % 2


@pytest.fixture(scope="module")
def actions():
    return np.random.default_rng(1).uniform(-1, 1, size=ROWS)


def test_a_constant_reward_that_ends_is_worth_itself(learn, states, actions):
    values, _ = learn(problem(states, 1 - states, 1.0, 0.0, actions))
    np.testing.assert_allclose(values, 1.0, atol=0.05)


def test_a_reward_one_step_late_is_worth_the_discount(learn, states, actions):
    """State 0 leads to state 1 for nothing, state 1 ends with a reward of 1."""
    values, _ = learn(problem(states, 1 - states, states, 1 - states, actions))
    np.testing.assert_allclose(values, np.where(states == 1, 1.0, DISCOUNT), atol=0.05)


def test_a_reward_forever_is_worth_its_series(learn, states, actions):
    """Two states in a loop: 1 / (1 - 1/2)."""
    values, _ = learn(problem(states, 1 - states, 1.0, 1.0, actions))
    np.testing.assert_allclose(values, 1 / (1 - DISCOUNT), atol=0.05)


def test_the_policy_finds_the_best_action(learn, states, actions):
    reward = -np.square(actions - BEST_ACTION)
    values, policy = learn(problem(states, states, reward, 0.0, actions))
    np.testing.assert_allclose(policy, BEST_ACTION, atol=0.1)
    assert np.abs(values - reward).mean() < 0.05
