"""The spectral actor-critic: which loss moves what, targets by hand, and seeds side by side."""

import copy
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.agents import spectral
from fastr.agents.actor_critic import DeterministicPolicy, actor_loss, squared_error
from fastr.agents.spectral import action_values, twin_q
from fastr.nn import stream
from fastr.representations.base import AbstractRepresentation
from fastr.training.learner import EXPLORATION, Cohort, Engine, held
from numpy_networks import np_plain_q, np_tree

ZERO = jnp.zeros((), int)
PARTS = ("representation", "critics", "actor")


@pytest.fixture(scope="module")
def agent(agent_config, spec, make_agent):
    return make_agent(agent_config, spec, seed=0)


@pytest.fixture(scope="module")
def batch(spec, agent_config, make_batch):
    return make_batch(spec, agent_config.batch_size, seed=1)


@pytest.fixture(scope="module")
def update(batch):
    """One update on the batch; compiled once for every agent of one configuration."""
    return jax.jit(lambda agent: agent.update(batch, jax.random.key(7), ZERO))


@pytest.fixture(scope="module")
def updated(update, agent):
    return update(agent)


def nudged(parameters):
    """Other parameters, near these."""
    waves = jnp.cos(jnp.arange(parameters.size, dtype=jnp.float32))
    return parameters + 0.05 * waves.reshape(parameters.shape)


def same(first, second):
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


# Which loss moves which networks.


def targets_of(agent, batch, key):
    """The TD targets of a batch, features included."""
    actions = agent.target_actions(batch.next_state, key)
    features = jax.vmap(agent.target_representation.feature)(batch.next_state, actions)
    return agent.td_target(batch, features)


def gain(actor, critics, net, batch):
    """The actor's loss on what these critics say of features of this representation."""
    contexts = jax.vmap(net.context)(batch.state)
    return actor_loss(
        actor,
        lambda actions: action_values(critics, net, batch.state, contexts, actions),
        batch,
    )


@pytest.fixture(scope="module")
def gradients(agent, updated, batch, loss_gradient):
    """The gradient of each loss by its own network, at the arguments Algorithm 1 gives it."""
    representation_key, target_key = jax.random.split(jax.random.key(7))

    @jax.jit
    def compiled(agent, new_critics):
        frozen = agent.target_representation
        features = jax.vmap(frozen.feature)(batch.state, batch.action)
        td_target = targets_of(agent, batch, target_key)
        return (
            jax.grad(lambda net: squared_error(twin_q(net, features), td_target)[0])(
                agent.critics.net
            ),
            jax.grad(lambda net: gain(net, new_critics, frozen, batch)[0])(agent.actor.net),
        )

    critics, actor = compiled(agent, updated[0].critics.net)
    representation = loss_gradient(agent.representation.net, batch, representation_key)
    return {"representation": representation, "critics": critics, "actor": actor}


@pytest.mark.parametrize("part", PARTS)
def test_each_network_takes_one_adam_step_on_its_own_loss(agent, updated, gradients, flat, part):
    before, after = getattr(agent, part), getattr(updated[0], part)
    gradient = flat(before.layout.pack(gradients[part]))
    moments = after.moments[0]
    assert int(moments.count) == 1
    scale = np.abs(gradient).max()
    np.testing.assert_allclose(flat(moments.mu), 0.1 * gradient, rtol=1e-3, atol=1e-6 * scale)
    mean, square = flat(moments.mu), flat(moments.nu)
    step = before.adam.learning_rate * mean / 0.1 / (np.sqrt(square / 0.001) + 1e-8)
    expected = flat(before.parameters) - step
    np.testing.assert_allclose(flat(after.parameters), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("part", PARTS)
def test_every_parameter_but_the_held_bias_has_a_gradient(gradients, part):
    gradient = gradients[part]
    still = [leaf for leaf in jax.tree.leaves(gradient) if not np.any(leaf)]
    held = []
    if part == "representation":
        held = [gradient.contrast.next_state_encoder.encoder.outlet.bias]
    assert list(map(id, still)) == list(map(id, held))


def test_learning_rates_are_the_configurations(agent, agent_config):
    assert agent.representation.adam.learning_rate == agent_config.representation_learning_rate
    assert agent.critics.adam.learning_rate == agent_config.critic_learning_rate
    assert agent.actor.adam.learning_rate == agent_config.actor_learning_rate


def copied(part):
    """What the target holds of a network."""
    if isinstance(part.net, AbstractRepresentation):
        return spectral.readable(part)
    return part.parameters


@pytest.mark.parametrize("part", PARTS)
def test_targets_move_by_polyak_of_the_new_networks(agent, updated, agent_config, flat, part):
    old, new = (flat(getattr(a.target, part)) for a in (agent, updated[0]))
    online = flat(copied(getattr(updated[0], part)))
    rate = agent_config.target_rate
    np.testing.assert_allclose(new, (1 - rate) * old + rate * online, rtol=1e-5, atol=1e-6)
    assert np.any(new != old)


def test_nothing_but_its_own_loss_reaches_the_representation(agent, update, updated):
    """Other critics, actor and targets leave its step as it was, to the bit."""
    other = replace(
        agent,
        critics=replace(agent.critics, parameters=jax.tree.map(nudged, agent.critics.parameters)),
        actor=replace(agent.actor, parameters=jax.tree.map(nudged, agent.actor.parameters)),
        target=jax.tree.map(nudged, agent.target),
    )
    new = update(other)[0]
    assert same(new.representation, updated[0].representation)
    assert not same(new.critics, updated[0].critics)
    assert not same(new.actor, updated[0].actor)


def test_critics_and_actor_read_the_target_features(agent, update, updated):
    """Another online representation moves neither, to the bit."""
    other = replace(
        agent,
        representation=replace(
            agent.representation, parameters=jax.tree.map(nudged, agent.representation.parameters)
        ),
    )
    new = update(other)[0]
    assert not same(new.representation, updated[0].representation)
    assert same(new.critics, updated[0].critics)
    assert same(new.actor, updated[0].actor)


def test_critics_do_not_read_the_online_actor(agent, update, updated):
    actor = replace(agent.actor, parameters=jax.tree.map(nudged, agent.actor.parameters))
    new = update(replace(agent, actor=actor))[0]
    assert same(new.critics, updated[0].critics)
    assert not same(new.actor, updated[0].actor)


def test_online_features_are_the_new_networks(agent_config, spec, make_agent, batch, updated):
    """Algorithm 1 with the representation after its step: the TD error says which was read."""
    config = replace(agent_config, feature_source="online")
    agent = make_agent(config, spec, seed=0)

    @jax.jit
    def both(agent):
        new, td_error, _ = agent.update(batch, jax.random.key(7), ZERO)
        features = jax.vmap(new.representation.net.feature)(batch.state, batch.action)
        td_target = targets_of(agent, batch, jax.random.split(jax.random.key(7))[1])
        return td_error, td_target, twin_q(agent.critics.net, features)

    td_error, td_target, values = map(np.asarray, both(agent))
    np.testing.assert_allclose(td_error, np.abs(td_target - values).max(0), rtol=1e-4, atol=1e-5)
    assert np.abs(td_error - updated[1]).max() > 1e-2


def test_critics_may_read_state_and_action_too(agent_config, spec, make_agent, batch):
    """[psi(s, a); s; a] and its successor, against NumPy."""
    agent = make_agent(replace(agent_config, critic_reads="all"), spec, seed=0)
    target_key = jax.random.split(jax.random.key(7))[1]

    @jax.jit
    def both(agent):
        features = jax.vmap(agent.target_representation.feature)
        actions = agent.target_actions(batch.next_state, target_key)
        read = (features(batch.state, batch.action), features(batch.next_state, actions), actions)
        return *read, agent.update(batch, jax.random.key(7), ZERO)[1]

    features, following, actions, td_error = map(np.asarray, both(agent))
    critics = np_tree(agent.critics.net)
    values = np_plain_q(critics, np.hstack([features, batch.state]), batch.action)
    critics = np_tree(agent.critics.layout.unpack(agent.target.critics))
    after = np_plain_q(critics, np.hstack([following, batch.next_state]), actions).min(0)
    wanted = np.asarray(batch.reward) + 0.99 * np.asarray(batch.continues) * after
    np.testing.assert_allclose(td_error, np.abs(values - wanted).max(0), rtol=1e-3, atol=1e-4)


def test_representation_and_actor_may_learn_now_and_then(
    agent_config, spec, make_agent, batch, updated, flat
):
    config = replace(agent_config, representation_updates=2, actor_updates=3)
    agent = make_agent(config, spec, seed=0)
    update = jax.jit(lambda step: agent.update(batch, jax.random.key(7), step))
    moved = [
        {part for part in PARTS if not same(getattr(new, part), getattr(agent, part))}
        for new, _, _ in map(update, range(4))
    ]
    assert moved == [set(PARTS), {"critics"}, {"representation", "critics"}, {"critics", "actor"}]
    # What was not measured is 0, and the engine keeps the last value.
    metrics = update(1)[2]
    assert metrics["nce_loss"] == metrics["actor_loss"] == 0 != metrics["critic_loss"]
    new, always = (flat(each.critics.parameters) for each in (update(0)[0], updated[0]))
    np.testing.assert_allclose(new, always, rtol=1e-5, atol=1e-6)


# The actor's gradient.


def test_the_actors_gradient_flows_through_the_action_encoder(agent, batch):
    """An action encoder that ignores the action leaves the actor no gradient at all."""
    gradient = jax.jit(
        jax.grad(
            lambda actor, net: gain(actor, agent.critics.net, net, batch)[0],
        )
    )
    net = agent.representation.net
    deaf = eqx.tree_at(
        lambda net: net.action_encoder.encoder.inlet.weight, net, replace_fn=jnp.zeros_like
    )
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient(agent.actor.net, net)))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient(agent.actor.net, deaf)))


def test_the_actors_loss_is_the_mean_over_twins_and_batch(agent, batch):
    @jax.jit
    def both(agent):
        net = agent.target_representation
        actions = jax.vmap(agent.policy())(batch.state)
        values = twin_q(agent.critics.net, jax.vmap(net.feature)(batch.state, actions))
        loss, _ = gain(agent.actor.net, agent.critics.net, net, batch)
        return loss, values

    loss, values = both(agent)
    assert values.shape == (2, batch.reward.size)
    assert float(loss) == pytest.approx(-np.asarray(values).mean(), rel=1e-5)


# Values by hand.


def constant_critics(critics, values):
    """Critics that say these two numbers everywhere."""
    return eqx.tree_at(
        lambda net: (net.outlet.weight, net.outlet.bias),
        critics,
        (jnp.zeros_like(critics.outlet.weight), jnp.asarray(values, jnp.float32)[:, None]),
    )


@pytest.fixture(scope="module")
def td_target(batch):
    return jax.jit(lambda agent, key: targets_of(agent, batch, key))


def with_targets(agent, critics=None, actor=None):
    target = agent.target
    if critics is not None:
        target = replace(target, critics=agent.critics.layout.pack(critics))
    if actor is not None:
        target = replace(target, actor=agent.actor.layout.pack(actor))
    return replace(agent, target=target)


def test_td_target_by_hand(agent, td_target, batch):
    """Critics that say 5 and 2: r + 0.99 * 2, and r alone where the next state is terminal."""
    hand_made = with_targets(agent, critics=constant_critics(agent.critics.net, [5.0, 2.0]))
    reward = np.asarray(batch.reward, np.float64)
    expected = reward + 0.99 * 2.0
    expected[0] = reward[0]
    assert batch.continues[0] == 0.0
    np.testing.assert_allclose(td_target(hand_made, jax.random.key(0)), expected, rtol=1e-6)


def test_the_smaller_twin_counts_row_by_row(agent, td_target, batch):
    """Against both critics at the target policy's own action, with a noise of next to nothing."""
    config = replace(agent.config, target_noise=1e-9)
    quiet = replace(agent, config=config)

    @jax.jit
    def reference(agent):
        policy = DeterministicPolicy(agent.target.actor, agent.actor.layout)
        actions = jax.vmap(policy)(batch.next_state)
        features = jax.vmap(agent.target_representation.feature)(batch.next_state, actions)
        return twin_q(agent.critics.layout.unpack(agent.target.critics), features)

    # Level the twins, so that each is the smaller one in some rows.
    levelled = eqx.tree_at(
        lambda net: net.outlet.bias,
        quiet.critics.layout.unpack(quiet.target.critics),
        replace_fn=lambda bias: bias - jnp.mean(reference(quiet), axis=1, keepdims=True),
    )
    quiet = with_targets(quiet, critics=levelled)
    values = np.asarray(reference(quiet), np.float64)
    assert len(set(values.argmin(0))) == 2
    expected = np.asarray(batch.reward) + 0.99 * np.asarray(batch.continues) * values.min(0)
    np.testing.assert_allclose(td_target(quiet, jax.random.key(0)), expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def noisy_agent(agent_config, spec, make_agent):
    """With noise of 1e6 every coordinate of a target action lands on a bound."""
    return make_agent(replace(agent_config, target_noise=1e6), spec, seed=0)


@pytest.fixture(scope="module")
def drawn_and_possible(batch):
    """The TD targets, and what they would be at each of four actions."""

    @jax.jit
    def compiled(agent, actions):
        def values(action):
            net = agent.target_representation
            features = jax.vmap(lambda state: net.feature(state, action))(batch.next_state)
            twins = twin_q(agent.critics.layout.unpack(agent.target.critics), features)
            return batch.reward + 0.99 * batch.continues * jnp.min(twins, axis=0)

        return targets_of(agent, batch, jax.random.key(3)), jax.vmap(values)(actions)

    return compiled


@pytest.mark.parametrize(("centre", "reachable"), [(0.0, (-0.3, 0.3)), (1.0, (0.7, 1.0))])
def test_noise_on_target_actions_is_bounded(noisy_agent, drawn_and_possible, centre, reachable):
    """By 0.3 around the target policy's action, and then by the action space."""
    last = noisy_agent.actor.net.layers[-1]
    constant = eqx.tree_at(
        lambda net: (net.layers[-1].weight, net.layers[-1].bias),
        noisy_agent.actor.net,
        (jnp.zeros_like(last.weight), jnp.full_like(last.bias, 100.0 * centre)),
    )
    corners = jnp.asarray([[x, y] for x in reachable for y in reachable], jnp.float32)
    agent = with_targets(noisy_agent, actor=constant)
    drawn, possible = map(np.asarray, drawn_and_possible(agent, corners))
    distance = np.abs(possible - drawn[None])
    np.testing.assert_allclose(distance.min(0), 0.0, atol=1e-5)
    # Every corner is another value, and not all rows are on one of them.
    assert np.ptp(possible[:, 1:], axis=0).min() > 1e-3
    assert len(set(distance[:, 1:].argmin(0))) > 1


def test_the_critics_loss_sums_the_twins():
    """Critics that say 5 and 2, targets 1, 2 and 6: (16 + 9 + 1) / 3 + (1 + 0 + 16) / 3."""
    values = jnp.asarray([[5.0] * 3, [2.0] * 3])
    loss, metrics = squared_error(values, jnp.asarray([1.0, 2.0, 6.0]))
    assert float(loss) == pytest.approx(43 / 3, rel=1e-6)
    assert float(metrics["q_mean"]) == pytest.approx(3.5, rel=1e-6)


def test_exploration_is_the_policy_plus_clipped_noise(agent, batch):
    state = batch.state[0]
    keys = jax.random.split(jax.random.key(0), 4000)
    greedy, actions = jax.jit(
        lambda agent: (agent.policy()(state), jax.vmap(lambda k: agent.explore(state, k))(keys))
    )(agent)
    greedy, actions = np.asarray(greedy), np.asarray(actions)
    assert np.abs(actions).max() <= 1.0
    noise = actions - greedy
    inside = np.abs(greedy) < 0.4
    assert inside.any()
    # 4 standard errors of a standard deviation from 4000 draws.
    np.testing.assert_allclose(noise[:, inside].std(0), 0.2, rtol=4 / np.sqrt(8000))


# What the engine relies on.


def test_every_leaf_is_an_array(agent, agent_config, spec):
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(agent))
    shapes = jax.eval_shape(lambda key: agent_config.init(spec, key), jax.random.key(0))
    assert jax.tree.structure(shapes) == jax.tree.structure(agent)
    assert [leaf.shape for leaf in jax.tree.leaves(shapes)] == [
        leaf.shape for leaf in jax.tree.leaves(agent)
    ]


@pytest.mark.slow
def test_compiled_is_eager(agent, batch, updated):
    eager = agent.update(batch, jax.random.key(7), ZERO)
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(updated), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


SEEDS = (1, 3, 5)
RANDOM_STEPS = 4
STEPS, UPDATES = 10, 5


def engine(agent_config, spec, seeds):
    return Engine(agent_config, spec, seeds, capacity=8, random_steps=RANDOM_STEPS)


def experience(spec, seed, step):
    """The row and the state that a seed's environment would give at a step; the same each time."""
    generator = np.random.default_rng((seed, step))
    row = generator.normal(size=spec.row_dim)
    row[-1] = 1.0
    return row.astype(np.float32), generator.normal(size=spec.state_dim).astype(np.float32)


def lived(engine, spec):
    """Ten steps and five updates of all seeds: their actions, their last metrics, their state."""
    cohort, metrics = engine.init(), engine.no_metrics()
    start = jax.tree.map(np.array, cohort)
    states = np.stack([experience(spec, seed, 0)[1] for seed in engine.seeds])
    actions = [np.asarray(engine.explore(cohort, states))]
    for step in range(1, STEPS + 1):
        rows, states = zip(*(experience(spec, seed, step) for seed in engine.seeds), strict=True)
        cohort, chosen, _ = engine.interact(cohort, np.hstack([rows, states]), 1)
        actions.append(np.asarray(chosen))
        if step > STEPS - UPDATES:
            cohort, metrics = engine.improve(cohort, metrics, 1)
    return start.tree, np.stack(actions), np.asarray(metrics), cohort.tree


@pytest.fixture(scope="module")
def company(agent_config, spec):
    return engine(agent_config, spec, SEEDS)


@pytest.fixture(scope="module")
def together(company, spec):
    return lived(company, spec)


def assert_same_life(ours, mine, theirs, other, tolerance):
    """One seed's actions, metrics and every array of its learner in two cohorts."""
    for seen, expected in zip(ours[1:3], theirs[1:3], strict=True):
        np.testing.assert_allclose(
            seen[..., mine, :], expected[..., other, :], rtol=10 * tolerance, atol=tolerance
        )
    leaves = jax.tree_util.tree_leaves_with_path(ours[3].learners)
    for (path, leaf), twin in zip(leaves, jax.tree.leaves(theirs[3].learners), strict=True):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(
            leaf[mine], twin[other], rtol=tolerance, atol=tolerance, err_msg=name
        )


def test_a_seed_does_not_notice_its_companions(company, together, spec):
    """The same program with other seeds beside seed 3, and in another place: equal to the bit."""
    others = copy.copy(company)
    others.seeds = (3, 7, 9)
    assert_same_life(lived(others, spec), 0, together, 1, tolerance=0.0)


@pytest.mark.slow
def test_a_seed_alone_is_the_same_seed_in_company(together, agent_config, spec):
    alone = lived(engine(agent_config, spec, SEEDS[1:2]), spec)
    assert_same_life(alone, 0, together, 1, tolerance=1e-5)


def test_the_clock_counts_steps_and_updates(together):
    cohort = together[3]
    assert int(cohort.steps) == STEPS
    assert int(cohort.updates) == UPDATES
    np.testing.assert_array_equal(cohort.learners.broken_at, [-1, -1, -1])
    np.testing.assert_array_equal(cohort.learners.seed, SEEDS)
    np.testing.assert_array_equal(cohort.learners.moments.count, [STEPS] * 3)


def test_seeds_differ_in_everything_random(together, agent_config):
    start, actions, metrics, cohort = together
    sizes = agent_config.representation
    # What starts at 0 or 1: two normalisations in each head, three in the actor, and the
    # temperatures. All else is drawn.
    head = 2 * (sizes.feature_dim + sizes.head_dim)
    constants = {
        "representation": head + sizes.noise_levels,
        "critics": 2 * head,
        "actor": 3 * 2 * agent_config.actor_dim,
    }
    for a, b in ((0, 1), (0, 2), (1, 2)):
        for part, count in constants.items():
            parameters = getattr(start.learners.agent, part).parameters.small
            assert np.sum(parameters[a] == parameters[b]) == count
            moved = np.asarray(getattr(cohort.learners.agent, part).parameters.small)
            assert np.mean(moved[a] == moved[b]) < 0.1
        # In the random phase and after it, not one coordinate of an action is shared.
        assert np.all((actions[:, a] != actions[:, b]) | (np.abs(actions[:, a]) == 1.0))
        assert np.any(metrics[a] != metrics[b])


def test_targets_start_at_the_online_networks_in_memory_of_their_own(company):
    learners = company.init().tree.learners
    for part in PARTS:
        target, online = getattr(learners.agent.target, part), getattr(learners.agent, part)
        leaves = zip(
            jax.tree.leaves(target), jax.tree.leaves(jax.vmap(copied)(online)), strict=True
        )
        for slow, original in leaves:
            np.testing.assert_array_equal(slow, original)
        taken = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(online.parameters)}
        assert not taken & {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(target)}


def test_targets_are_copies_of_what_features_need_and_of_nothing_else(agent):
    """phi_s and phi_a; neither the next-state factor nor the reward head, which no critic reads."""
    net = agent.target_representation
    assert jax.tree.leaves(net.contrast) == []
    online = agent.representation.net
    for part in ("state_encoder", "action_encoder"):
        shapes = ([leaf.shape for leaf in jax.tree.leaves(getattr(n, part))] for n in (net, online))
        assert next(shapes) == next(shapes) != []


def test_random_actions_come_first_and_are_uniform(company, spec):
    """In the random phase, the uniform numbers of the seed's own stream whatever the state."""
    for step in range(2 * RANDOM_STEPS):
        fresh = company.init().tree
        cohort = held(Cohort(fresh.learners, jnp.asarray(step), fresh.updates))
        here, there = (
            np.asarray(company.explore(cohort, np.full((3, spec.state_dim), value, np.float32)))
            for value in (-1.0, 2.0)
        )
        assert np.array_equal(here, there) == (step < RANDOM_STEPS)
        keys = [
            jax.random.split(stream(jnp.asarray(seed), EXPLORATION, jnp.asarray(step)))[0]
            for seed in SEEDS
        ]
        uniform = [jax.random.uniform(key, here.shape[1:], minval=-1, maxval=1) for key in keys]
        assert np.array_equal(here, uniform) == (step < RANDOM_STEPS)


def test_improve_works_in_place(company, spec):
    cohort, metrics = company.init(), company.no_metrics()
    for step in range(3):
        rows = np.stack([np.hstack(experience(spec, seed, step)) for seed in SEEDS])
        cohort, *_ = company.interact(cohort, rows, 1)
    # Every array lies where it lay before, which an accelerator's recorded program relies on. What
    # belongs to NumPy, or is looked at by it, is not written over: hence a first update, and
    # nothing is read before the end.
    cohort, metrics = company.improve(cohort, metrics, 1)
    places = addresses(cohort, metrics)
    for _ in range(3):
        previous = cohort, metrics
        cohort, metrics = company.improve(*previous, 1)
        changed = previous[0].at(company._learned.changed)
        assert all(leaf.is_deleted() for leaf in [*changed, previous[1]])
        assert addresses(cohort, metrics) == places
    assert int(cohort.tree.updates) == 4
    assert metrics.shape == (3, len(company.metric_names))
    assert np.all(np.isfinite(metrics))


def addresses(*trees):
    """Where the arrays are in memory."""
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(trees)]


def test_the_first_update_that_is_not_finite_is_remembered(company, spec):
    """Seed 3 gets rewards that are no numbers after two good updates; the others never notice."""
    cohort, metrics = company.init(), company.no_metrics()

    def fill(cohort, *, broken):
        for step in range(company.capacity):
            rows = np.stack([np.hstack(experience(spec, seed, step)) for seed in SEEDS])
            if broken:
                rows[1, spec.row_dim - 2] = np.nan
            cohort, *_ = company.interact(cohort, rows, 1)
        return cohort

    cohort = fill(cohort, broken=False)
    for _ in range(2):
        cohort, metrics = company.improve(cohort, metrics, 1)
    assert np.all(np.isfinite(metrics))
    cohort = fill(cohort, broken=True)
    for _ in range(2):
        cohort, metrics = company.improve(cohort, metrics, 1)
        np.testing.assert_array_equal(cohort.tree.learners.broken_at, [-1, 2, -1])
    metrics = np.asarray(metrics)
    assert np.all(np.isfinite(metrics[[0, 2]]))
    assert np.isnan(metrics[1, company.metric_names.index("reward_loss")])
