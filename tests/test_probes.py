"""Probe problems whose values and best actions are known, learned by whole updates.

One program per method, compiled once, learns all of them: a problem is 128 transitions, and every
problem has two one-hot states, one action coordinate and a discount of 1/2.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.agents import spectral, td7_networks
from fastr.agents.actor_critic import plain_q
from fastr.agents.sac import SACConfig
from fastr.agents.spectral import SpectralConfig
from fastr.agents.td3 import TD3Config
from fastr.agents.td7 import TD7, TD7Config
from fastr.agents.td7_networks import Pair
from fastr.core import EnvSpec
from fastr.representations.diffusion import DiffusionConfig
from fastr.representations.interactions import CPConfig
from fastr.transition import Transition

DISCOUNT = 0.5
ROWS, BATCH = 128, 16
BEST_ACTION = 0.3
SPEC = EnvSpec(state_dim=2, action_dim=1)
SIZES = {"feature_dim": 16, "hidden_dim": 16, "blocks": 0, "fourier_dim": 32, "head_dim": 16}
COMMON = {"batch_size": BATCH, "discount": DISCOUNT}
RATES = {"target_rate": 0.02, "critic_learning_rate": 3e-3, "actor_learning_rate": 1e-3}
SPECTRAL = SpectralConfig(
    representation=CPConfig(noise_levels=2, **SIZES),
    representation_learning_rate=1e-3,
    actor_dim=16,
    **COMMON,
    **RATES,
)
CONFIGS = {
    "fastr": SPECTRAL,
    "diff-sr": replace(SPECTRAL, representation=DiffusionConfig(noise_levels=4, **SIZES)),
    # A temperature next to nothing: values are then those without entropy.
    "sac": SACConfig(
        hidden_dim=16,
        hidden_layers=2,
        initial_temperature=1e-4,
        temperature_learning_rate=0.0,
        **COMMON,
        **RATES,
    ),
    "td7": TD7Config(
        embedding_dim=16,
        hidden_dim=16,
        learning_rate=3e-3,
        target_updates=20,
        **COMMON,
    ),
    "td3": TD3Config(hidden_dim=16, **COMMON, **RATES),
}


def values_of(agent, rows):
    """The mean of the twin critics in every row."""
    if isinstance(agent, spectral.Spectral):
        features = jax.vmap(agent.target_representation.feature)(rows.state, rows.action)
        return jnp.mean(spectral.twin_q(agent.critics.net, features), axis=0)
    if isinstance(agent, TD7):
        fixed = agent.encoder.layout.unpack(agent.fixed_encoder)
        zs = jax.vmap(fixed.zs)(rows.state)
        zsa = jax.vmap(fixed.zsa)(zs, rows.action)
        values = td7_networks.twin_q(agent.critics.net, rows.state, rows.action, zsa, zs)
        return jnp.mean(values, axis=0)
    return jnp.mean(plain_q(agent.critics.net, rows.state, rows.action), axis=0)


def newest_policy(agent):
    """The policy as learned so far, whatever the agent keeps for evaluation."""
    if isinstance(agent, TD7):
        return agent.kept(Pair(agent.actor.parameters, agent.fixed_encoder))
    return agent.policy()


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


# Diff-SR's agent is FaStR's, on another representation: not for every day.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(config, id=name, marks=pytest.mark.slow if name == "diff-sr" else ())
        for name, config in CONFIGS.items()
    ],
)
def learn(request):
    """The critics' mean and the policy at both states after 1,500 updates on a problem."""

    def step(carry, numbered):
        agent, rows = carry
        number, key = numbered
        draw_key, update_key = jax.random.split(key)
        chosen = jax.random.randint(draw_key, (BATCH,), 0, ROWS)
        batch = jax.tree.map(lambda column: column[chosen], rows)
        return (agent.update(batch, update_key, number)[0], rows), None

    @jax.jit
    def compiled(rows):
        init_key, key = jax.random.split(jax.random.key(0))
        agent = request.param.init(SPEC, init_key)
        numbered = jnp.arange(1500, dtype=jnp.int32), jax.random.split(key, 1500)
        (agent, _), _ = jax.lax.scan(step, (agent, rows), numbered)
        return values_of(agent, rows), jax.vmap(newest_policy(agent))(jnp.eye(2))

    return lambda rows: map(np.asarray, compiled(rows))


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
