"""Contrastive representations against the paper's equations written out in float64 NumPy."""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastr.core import EnvSpec
from fastr.nn.optim import Adam, Trainable
from fastr.representations.interactions import CPConfig
from fastr.representations.joint import JointConfig
from fastr.representations.ranking import Contrast
from fastr.representations.scores import (
    InnerProduct,
    contrasted,
    furthest_lead,
    perturb,
    positives,
    ranking_loss,
    vp_signal,
)

SCORES = ("l2", "raw", "layernorm")
BATCH, LEVELS = 6, 3
KEY = jax.random.key(5)


# The equations, for one vector at a time and with the modules' weights.


def np_linear(layer, x):
    return x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)


def np_layer_norm(norm, x):
    unit = (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-6)
    return unit * np.asarray(norm.weight, np.float64) + np.asarray(norm.bias, np.float64)


def np_mish(x):
    return x * np.tanh(np.logaddexp(0.0, x))


def np_encoder(factor, x):
    """App. Implementation: inlet, blocks x + W2 mish(W1 LN(x)), mish, outlet, LN if asked for."""
    hidden = np_linear(factor.encoder.inlet, x)
    for block in factor.encoder.blocks:
        hidden = hidden + np_linear(
            block.second, np_mish(np_linear(block.first, np_layer_norm(block.norm, hidden)))
        )
    output = np_linear(factor.encoder.outlet, np_mish(hidden))
    return output if factor.norm is None else np_layer_norm(factor.norm, output)


def np_time(embedding, level):
    angles = level * np.array([10_000.0 ** (-k / 63) for k in range(64)])
    waves = np.concatenate([np.cos(angles), np.sin(angles)])
    return np_linear(embedding.second, np_mish(np_linear(embedding.first, waves)))


def np_signal(levels):
    """abar as the product of the schedule's steps, b_min 0.1 and b_max 10."""
    product, signal = 1.0, []
    for t in range(1, levels + 1):
        product *= math.exp(-0.1 / levels - 0.5 * (10 - 0.1) * (2 * t - 1) / levels**2)
        signal.append(product)
    return np.array(signal)


def np_feature(representation, state, action):
    if hasattr(representation, "state_encoder"):
        feature = np_encoder(representation.state_encoder, state) * np_encoder(
            representation.action_encoder, action
        )
    else:
        feature = np_encoder(representation.encoder, np.concatenate([state, action]))
    if representation.contrast.config.score == "l2":
        feature = feature / np.sqrt(feature @ feature)
    return feature


def np_logits(representation, batch, noise):
    """g(s_i, a_i, s'_j; beta_m) for every anchor i, level m and candidate j."""
    contrast = representation.contrast
    levels, size, _ = noise.shape
    signal = np_signal(levels)
    logits = np.zeros((size, levels, size))
    for m in range(levels):
        for j in range(size):
            noisy = (
                math.sqrt(signal[m]) * batch.next_state[j] + math.sqrt(1 - signal[m]) * noise[m, j]
            )
            time = np_time(contrast.time_embedding, m)
            candidate = np_encoder(contrast.next_state_encoder, np.concatenate([noisy, time]))
            if contrast.config.score == "raw":
                candidate = np.tanh(candidate)
            for i in range(size):
                logits[i, m, j] = (
                    np_feature(representation, batch.state[i], batch.action[i]) @ candidate
                )
        if contrast.config.score == "l2":
            logits[:, m] /= math.exp(contrast.log_temperature[m])
    return logits


def np_ranking(logits):
    """Eq. (nce): -log of the true candidate's share, averaged."""
    size, levels, _ = logits.shape
    total = 0.0
    for m in range(levels):
        for i in range(size):
            others = sum(math.exp(logits[i, m, j]) for j in range(size))
            total -= math.log(math.exp(logits[i, m, i]) / others)
    return total / (levels * size)


def np_reward(head, feature):
    angles = np_linear(head.projection, np_layer_norm(head.norm, feature))
    waves = np.concatenate([np.sin(angles), np.cos(angles)])
    hidden = np_layer_norm(head.hidden_norm, np_linear(head.hidden, waves))
    return np_linear(head.outlet, np.where(hidden > 0, hidden, np.expm1(hidden)))[0]


# The modules themselves, each compiled once.


@pytest.fixture(scope="module")
def batch(spec, make_batch):
    return make_batch(spec, BATCH, seed=0)


@pytest.fixture(scope="module")
def exact_batch(batch):
    return jax.tree.map(lambda array: np.asarray(array, np.float64), batch)


# The score's forms are shared code: one of them with the joint encoder is enough for every day.
@pytest.fixture(
    scope="module",
    params=[
        *(("cp", score) for score in SCORES),
        ("joint", "l2"),
        *(pytest.param(("joint", score), marks=pytest.mark.slow) for score in SCORES[1:]),
    ],
    ids="-".join,
)
def representation(request, spec, cp_config, joint_config, make_weights):
    kind, score = request.param
    config = replace({"cp": cp_config, "joint": joint_config}[kind], score=score)
    shapes = jax.eval_shape(lambda key: config.init(spec, key), KEY)
    return make_weights(shapes, seed=1)


@pytest.fixture(scope="module")
def evaluate(representation):
    """Features, logits for this noise, and loss with its metrics for the key's noise."""

    @jax.jit
    def compiled(net, batch, noise, key):
        features = jax.vmap(net.feature)(batch.state, batch.action)
        states = perturb(batch.next_state, noise, vp_signal(LEVELS))
        logits = net.contrast.logits(InnerProduct(features), states, jnp.arange(LEVELS))
        return features, logits, *net.loss(batch, key)

    return lambda batch, noise: compiled(representation, batch, noise, KEY)


@pytest.fixture(scope="module")
def noise():
    """What the loss draws from its key."""
    return jax.random.normal(KEY, (LEVELS, BATCH, 3))


@pytest.fixture(scope="module")
def evaluated(evaluate, batch, noise):
    return evaluate(batch, noise)


def test_features_are_the_equations(representation, evaluated, exact_batch):
    expected = [
        np_feature(representation, state, action)
        for state, action in zip(exact_batch.state, exact_batch.action, strict=True)
    ]
    np.testing.assert_allclose(evaluated[0], expected, rtol=1e-4, atol=1e-5)


def test_feature_norm_is_one_only_for_l2(representation, evaluated):
    norms = np.linalg.norm(evaluated[0], axis=-1)
    if representation.contrast.config.score == "l2":
        np.testing.assert_allclose(norms, 1.0, rtol=1e-5)
    else:
        assert np.ptp(norms) > 0.1


def test_logits_are_the_equations(representation, evaluated, exact_batch, noise):
    _, logits, _, _ = evaluated
    expected = np_logits(representation, exact_batch, np.asarray(noise, np.float64))
    assert np.ptp(expected) > 0.3
    # Up to a constant per anchor and level, which no softmax sees.
    found, expected = (x - np.mean(x, axis=-1, keepdims=True) for x in (logits, expected))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


def test_loss_is_the_equations(representation, evaluated, exact_batch, noise):
    _, _, loss, metrics = evaluated
    contrast = representation.contrast
    nce = np_ranking(np_logits(representation, exact_batch, np.asarray(noise, np.float64)))
    errors = [
        np_reward(contrast.reward_head, np_feature(representation, state, action)) - reward
        for state, action, reward in zip(
            exact_batch.state, exact_batch.action, exact_batch.reward, strict=True
        )
    ]
    assert float(metrics["nce_loss"]) == pytest.approx(nce, rel=2e-5)
    assert float(metrics["reward_loss"]) == pytest.approx(np.mean(np.square(errors)), rel=1e-4)
    assert float(loss) == pytest.approx(nce + np.mean(np.square(errors)), rel=5e-5)
    if contrast.config.score == "l2":
        temperature = np.mean(np.exp(np.asarray(contrast.log_temperature, np.float64)))
        assert float(metrics["temperature"]) == pytest.approx(temperature, rel=1e-6)


def test_networks_name_every_parameter_once(representation):
    named = jax.tree.leaves(representation.networks())
    assert sorted(map(id, named)) == sorted(map(id, jax.tree.leaves(representation)))


# The schedule.


@pytest.mark.parametrize("levels", [1, 3, 25, 50])
def test_signal_is_the_product_of_the_schedules_steps(levels):
    signal = jax.jit(vp_signal, static_argnums=0)(levels)
    np.testing.assert_allclose(signal, np_signal(levels), rtol=1e-5)


def test_signal_has_the_published_values():
    signal = np.asarray(vp_signal(25))
    table = {0: 0.98815, 1: 0.96110, 2: 0.92009, 4: 0.80413, 9: 0.43518, 24: 0.00641}
    for index, value in table.items():
        assert signal[index] == pytest.approx(value, abs=6e-6)
    assert math.sqrt(1 - signal[0]) == pytest.approx(0.109, abs=5e-4)
    assert math.sqrt(1 - signal[24]) == pytest.approx(0.997, abs=5e-4)
    assert vp_signal(50)[0] == pytest.approx(0.99603, abs=6e-6)
    assert vp_signal(50)[49] == pytest.approx(0.00641, abs=6e-6)


def test_perturbation_keeps_the_variance():
    generator = np.random.default_rng(0)
    states = jnp.asarray(generator.normal(size=(40_000, 1)), jnp.float32)
    noise = jnp.asarray(generator.normal(size=(3, 40_000, 1)), jnp.float32)
    # The variance of 40,000 normal numbers is within 4 sqrt(2 / 40,000) of 1.
    perturbed = perturb(states, noise, vp_signal(3))
    np.testing.assert_allclose(np.var(perturbed, axis=(1, 2)), 1.0, atol=0.03)


def test_drawn_levels_are_different_and_score_as_among_all(spec, cp_config, make_weights, batch):
    config = replace(cp_config, noise_levels=5, levels_per_update=2)
    shapes = jax.eval_shape(lambda key: config.init(spec, key).contrast, KEY)
    contrast = make_weights(shapes, seed=2)
    draw = jax.jit(lambda key: contrast.perturbed(batch.next_state, key)[1])
    drawn = np.array([draw(key) for key in jax.random.split(KEY, 50)])
    assert np.all(drawn[:, 0] != drawn[:, 1])
    # Each level is in two fifths of the draws: 20 of 50, 7 below that is two standard deviations.
    assert np.all(np.bincount(drawn.ravel(), minlength=5) > 12)
    score = InnerProduct(jnp.ones((BATCH, 12)))
    noise = jax.random.normal(KEY, (5, *batch.next_state.shape))
    states = perturb(batch.next_state, noise, vp_signal(5))
    logits = jax.jit(lambda states, at: contrast.logits(score, states, at))
    some = jnp.array([3, 1])
    every = logits(states, jnp.arange(5))
    np.testing.assert_allclose(logits(states[some], some), every[:, some], rtol=1e-5, atol=1e-5)


# The ranking loss alone.

compiled_ranking_loss = jax.jit(ranking_loss)


@pytest.fixture(scope="module")
def random_logits():
    return jnp.asarray(3.0 * np.random.default_rng(3).normal(size=(5, 2, 5)), jnp.float32)


def plain_ranking_loss(logits):
    return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(logits, axis=-1), axis1=0, axis2=-1))


def test_ranking_loss_is_the_double_loop(random_logits):
    expected = np_ranking(np.asarray(random_logits, np.float64))
    assert float(compiled_ranking_loss(random_logits)) == pytest.approx(expected, rel=1e-6)


def test_ranking_loss_survives_large_logits():
    logits = jnp.asarray([[[1e4, -1e4]], [[0.0, 500.0]]])
    assert float(compiled_ranking_loss(logits)) == 0.0
    assert float(compiled_ranking_loss(jnp.flip(logits, axis=-1))) == pytest.approx((2e4 + 500) / 2)


def test_ranking_gradient_is_that_of_the_plain_formula(random_logits):
    # Scaled, so that the cotangent is not 1.
    ours, plain = (
        jax.jit(jax.grad(lambda logits, f=f: 2.5 * f(logits)))(random_logits)
        for f in (ranking_loss, plain_ranking_loss)
    )
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-7)
    # The candidates' shares sum to 1, so each row of the gradient sums to 0.
    np.testing.assert_allclose(np.sum(ours, axis=-1), 0.0, atol=1e-6)


def test_positives_are_the_diagonals(random_logits):
    expected = np.diagonal(np.asarray(random_logits), axis1=0, axis2=2).T
    np.testing.assert_array_equal(jax.jit(positives)(random_logits), expected)


def test_equal_logits_give_the_log_of_the_batch():
    rows = np.random.default_rng(0).normal(size=(512, 1, 1))
    logits = jnp.asarray(np.broadcast_to(rows, (512, 1, 512)), jnp.float32)
    assert float(compiled_ranking_loss(logits)) == pytest.approx(6.2383, abs=5e-5)


def test_identical_next_states_under_identical_noise_cannot_be_ranked(evaluate, batch):
    """All candidates are then one vector: any weights give ln(batch)."""
    generator = np.random.default_rng(1)
    state = jnp.asarray(np.tile(generator.normal(size=3), (BATCH, 1)), jnp.float32)
    noise = jnp.asarray(np.tile(generator.normal(size=(LEVELS, 1, 3)), (1, BATCH, 1)), jnp.float32)
    _, logits, _, _ = evaluate(replace(batch, next_state=state), noise)
    np.testing.assert_allclose(np.ptp(logits, axis=-1), 0.0, atol=1e-5)
    assert float(compiled_ranking_loss(logits)) == pytest.approx(math.log(BATCH), rel=1e-6)


# Single facts about the factors.


def test_cp_feature_is_the_product_of_its_factors(spec, cp_config, make_weights, batch):
    config = replace(cp_config, score="raw")
    shapes = jax.eval_shape(lambda key: config.init(spec, key), KEY)
    net = make_weights(shapes, seed=2)

    @jax.jit
    def parts(state, action):
        return net.feature(state, action), net.state_encoder(state), net.action_encoder(action)

    feature, state_factor, action_factor = parts(batch.state[0], batch.action[0])
    np.testing.assert_allclose(feature, state_factor * action_factor, rtol=1e-5)


@pytest.fixture(
    scope="module", params=["l2", *(pytest.param(s, marks=pytest.mark.slow) for s in SCORES[1:])]
)
def cp_gradient(request, spec, cp_config, make_weights, make_batch, loss_gradient):
    """The gradient of FaStR's whole loss; for "l2" the program that test_spectral.py uses too."""
    config = replace(cp_config, score=request.param, blocks=0)
    shapes = jax.eval_shape(lambda key: config.init(spec, key), KEY)
    batch = make_batch(spec, 8, seed=2)
    return request.param, loss_gradient(make_weights(shapes, seed=3), batch, KEY)


def held(net, score):
    """The leaves that the ranking loss cannot identify under this score."""
    encoder = net.contrast.next_state_encoder
    return {
        "l2": [encoder.encoder.outlet.bias],
        "layernorm": [encoder.norm.bias] if encoder.norm else [],
        "raw": [],
    }[score]


def test_every_parameter_but_the_unidentified_constant_has_a_gradient(cp_gradient):
    score, gradient = cp_gradient
    still = [leaf for leaf in jax.tree.leaves(gradient) if not np.any(leaf)]
    assert list(map(id, still)) == list(map(id, held(gradient, score)))


def test_the_loss_does_not_see_the_constant_that_is_held(spec, cp_config, make_weights, batch):
    shapes = jax.eval_shape(lambda key: cp_config.init(spec, key), KEY)
    net = make_weights(shapes, seed=4)
    shifted = eqx.tree_at(
        lambda net: net.contrast.next_state_encoder.encoder.outlet.bias,
        net,
        replace_fn=lambda bias: bias + jnp.linspace(-2.0, 2.0, bias.size),
    )
    loss = jax.jit(lambda net: net.loss(batch, KEY)[1]["nce_loss"])
    assert float(loss(net)) == pytest.approx(float(loss(shifted)), rel=2e-6)


def test_bfloat16_scores_are_float32_near_the_exact_ones(spec, cp_config, make_weights, batch):
    """bfloat16 keeps 8 bits, and the scores here are sums of a dozen products below 1."""
    shapes = jax.eval_shape(lambda key: cp_config.init(spec, key), KEY)
    exact = make_weights(shapes, seed=5).contrast
    low = with_config(exact, replace(cp_config, precision="bfloat16"))
    features = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, 12)), jnp.float32)
    features = features / jnp.linalg.norm(features, axis=-1, keepdims=True)
    states = jnp.stack([batch.next_state] * 3)
    scores = [
        jax.jit(lambda net: net.logits(InnerProduct(features), states, jnp.arange(3)))(net)
        for net in (exact, low)
    ]
    assert scores[1].dtype == jnp.float32
    assert np.any(np.asarray(scores[0]) != np.asarray(scores[1]))
    np.testing.assert_allclose(scores[1], scores[0], atol=0.05 * np.abs(scores[0]).max())


def test_what_the_loss_cannot_see_has_no_gradient():
    """All anchors equal, all candidates equal: every softmax is uniform, every gradient zero.

    But not when rounded to bfloat16, in which -511/512 is -1 and a row of softmax - own does not
    sum to zero: in a plain product, both are pushed along what they share.
    """
    anchors, candidates = jnp.ones((512, 4)), jnp.ones((1, 512, 4), jnp.bfloat16)

    def plain(anchors, candidates):
        return (anchors.astype(jnp.bfloat16) @ candidates[0].T)[:, None].astype(jnp.float32)

    def pushes(score):
        gradient = jax.grad(lambda *both: ranking_loss(score(*both)), argnums=(0, 1))
        return [float(jnp.max(jnp.abs(g))) for g in gradient(anchors, candidates)]

    assert min(pushes(plain)) > 1e-6
    assert pushes(contrasted) == [0.0, 0.0]


def test_gradients_of_contrasted_products_are_those_of_plain_ones():
    """In float32, where rows of softmax - own do sum to zero."""
    generator = np.random.default_rng(1)
    anchors = jnp.asarray(generator.normal(size=(6, 5)), jnp.float32)
    candidates = jnp.asarray(generator.normal(1.0, 1.0, size=(3, 6, 5)), jnp.float32)

    def gradients(score):
        loss = lambda anchors, candidates: ranking_loss(score(anchors, candidates))  # noqa: E731
        return jax.grad(loss, argnums=(0, 1))(anchors, candidates)

    plain = gradients(lambda a, c: jnp.einsum("ad,lcd->alc", a, c))
    for found, expected in zip(gradients(contrasted), plain, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)


# At these depths and sizes each gradient is a sum of hundreds of products of numbers rounded to 8
# bits, in which errors of 2^-9 average out to a few thousandths of the whole.
@pytest.mark.parametrize(
    "config", [CPConfig, pytest.param(JointConfig, marks=pytest.mark.slow)], ids=["cp", "joint"]
)
def test_bfloat16_gradients_agree_with_float32(config, make_weights, make_batch, flat):
    spec = EnvSpec(state_dim=7, action_dim=3)
    sizes = config(feature_dim=64, hidden_dim=64, noise_levels=4, fourier_dim=64, head_dim=32)
    batch = make_batch(spec, 64, seed=9)
    net = make_weights(jax.eval_shape(lambda key: sizes.init(spec, key), KEY), seed=8)
    low = with_precision(net, sizes, spec)
    gradient = jax.jit(jax.grad(lambda net: net.loss(batch, KEY)[0]))
    exact, rounded = gradient(net), gradient(low)
    assert {leaf.dtype for leaf in jax.tree.leaves(rounded)} == {jnp.dtype(jnp.float32)}
    error = np.linalg.norm(flat(rounded) - flat(exact)) / np.linalg.norm(flat(exact))
    assert 1e-5 < error < 0.02
    for name, network in exact.networks().items():
        a, b = flat(network), flat(rounded.networks()[name])
        assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.995, name


def with_precision(net, sizes, spec):
    """The same weights under bfloat16."""
    config = replace(sizes, precision="bfloat16")
    shapes = jax.eval_shape(lambda key: config.init(spec, key), KEY)
    return jax.tree.unflatten(jax.tree.structure(shapes), jax.tree.leaves(net))


def with_config(contrast, config):
    """The same weights under another configuration."""
    shapes = jax.eval_shape(lambda key: Contrast(EnvSpec(3, 2), config, key=key), KEY)
    return jax.tree.unflatten(jax.tree.structure(shapes), jax.tree.leaves(contrast))


# A finite Markov decision process whose ratios are known.

KERNEL = np.array(
    [
        [[4, 1, 1], [1, 2, 3]],
        [[1, 4, 1], [3, 2, 1]],
        [[2, 2, 2], [1, 1, 4]],
    ]
)
"""Of 6 visits to each state and action, how many go to each next state."""


def whole_population():
    """Every transition as often as it happens: 36 rows, on which sums are exact expectations."""
    rows = [
        (state, action, following)
        for (state, action, following), count in np.ndenumerate(KERNEL)
        for _ in range(count)
    ]
    return np.array(rows).T


# With candidates as frequent as their marginal, the loss of a row is the cross-entropy of
# softmax(g + ln p): at its optimum g = ln P(s'|s,a) / p(s') + c(s,a).
@pytest.mark.parametrize(
    "config", [CPConfig, pytest.param(JointConfig, marks=pytest.mark.slow)], ids=["cp", "joint"]
)
def test_the_optimum_is_the_log_ratio_of_a_finite_process(config, make_weights):
    spec = EnvSpec(state_dim=3, action_dim=2)
    sizes = config(
        feature_dim=16, hidden_dim=16, blocks=0, noise_levels=1, fourier_dim=4, head_dim=2
    )
    shapes = jax.eval_shape(lambda key: sizes.init(spec, key), KEY)
    trainable = Trainable.of(make_weights(shapes, seed=6), Adam(0.01))
    state, action, following = whole_population()
    states, actions = jnp.eye(3)[state], jnp.eye(2)[action]
    candidates = jnp.eye(3)[following][None]

    def logits(net):
        score = InnerProduct(jax.vmap(net.feature)(states, actions))
        return net.contrast.logits(score, candidates, jnp.zeros(1, int))

    def loss(net):
        value = ranking_loss(logits(net))
        return value, {"loss": value}

    @jax.jit
    def train(trainable):
        def steps(trainable):
            return jax.lax.scan(lambda net, _: net.step(loss), trainable, length=120)

        trainable, metrics = steps(trainable)
        # Adam's steps do not shrink by themselves, and at the optimum it scales rounding up to full
        # ones: smaller ones settle what large ones reached.
        trainable, settled = steps(replace(trainable, adam=Adam(0.001)))
        return logits(trainable.net)[:, 0], jnp.append(metrics["loss"], settled["loss"])

    scores, losses = train(trainable)
    conditional = KERNEL / 6
    marginal = KERNEL.sum((0, 1)) / 36
    ratio = np.log(conditional / marginal)
    information = np.sum(KERNEL / 36 * ratio)
    assert losses[0] > math.log(36) - information + 0.05
    assert float(losses[-1]) == pytest.approx(math.log(36) - information, abs=1e-4)
    first_of = [list(following).index(s) for s in range(3)]
    error = np.asarray(scores)[:, first_of] - ratio[state, action]
    error -= error.mean(1, keepdims=True)
    # The worst of six equally weighted rows is 6e-4 above its optimum, so by Pinsker its shares,
    # each at least 1/6, are within 0.017 of theirs: 0.1 in the logarithm, twice that when centred.
    assert np.abs(error).max() < 0.2
    assert np.abs(error).mean() < 0.02


@pytest.mark.parametrize("candidates", [1, 512, 8192, 10**6])
def test_the_ranking_loss_does_not_overflow_however_many_candidates_there_are(candidates):
    """e^85 is a float32, the sum of 8,192 of them is not."""
    largest = np.exp(np.float32(furthest_lead(candidates)))
    assert np.isfinite(np.float32(candidates) * largest)
    assert candidates * largest > 1e37
