"""The packed optimiser against Optax on the tree and against Adam written out in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fastr.nn import optim
from fastr.nn.networks import LayerNorm, ResidualMLP
from fastr.nn.optim import Adam, Layout, Trainable, polyak

RATE = 0.05
STEPS = 3


@pytest.fixture(scope="module")
def net(make_weights):
    shapes = jax.eval_shape(lambda key: ResidualMLP(2, 3, 4, 1, key=key), jax.random.key(0))
    return make_weights(shapes, seed=0)


def bowl(net):
    """A loss with a known gradient: sum of (p^4 / 4 + p), so p^3 + 1."""
    loss = sum(jnp.sum(leaf**4 / 4 + leaf) for leaf in jax.tree.leaves(net))
    return loss, {"loss": loss}


@pytest.fixture(scope="module")
def trained(net):
    """The parameters after 0, 1, 2 and 3 steps."""
    stages = [Trainable.of(net, Adam(RATE))]
    step = jax.jit(lambda trainable: trainable.step(bowl))
    for _ in range(STEPS):
        trainable, metrics = step(stages[-1])
        # Metrics pass through, and are those before the step.
        assert metrics["loss"] == pytest.approx(float(bowl(stages[-1].net)[0]), rel=1e-5)
        stages.append(trainable)
    return stages


@pytest.fixture(scope="module")
def nets(trained):
    """The networks after 0, 1, 2 and 3 steps."""
    return [trainable.net for trainable in trained]


@pytest.fixture(params=[0, 6, 10**6], ids=["none small", "some small", "all small"])
def small(request, monkeypatch):
    """Where small leaves end, among leaves of 3 to 12 parameters."""
    monkeypatch.setattr(optim, "SMALL", request.param)
    return request.param


def test_packing_keeps_every_leaf_in_its_place(net, small):
    layout = Layout.of(net)
    packed = layout.pack(net)
    leaves = jax.tree.leaves(net)
    assert packed.small.shape == (sum(leaf.size for leaf in leaves if leaf.size < small),)
    assert [leaf.shape for leaf in packed.large] == [
        leaf.shape for leaf in leaves if leaf.size >= small
    ]
    again = layout.unpack(packed)
    assert jax.tree.structure(again) == jax.tree.structure(net)
    jax.tree.map(np.testing.assert_array_equal, again, net)


@pytest.mark.usefixtures("small")
def test_where_a_leaf_is_packed_does_not_matter_to_its_steps(net, nets):
    trainable = Trainable.of(net, Adam(RATE))
    step = jax.jit(lambda trainable: trainable.step(bowl)[0])
    for t in range(1, STEPS + 1):
        trainable = step(trainable)
        jax.tree.map(
            lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7),
            trainable.net,
            nets[t],
        )


def test_layouts_of_equal_networks_are_equal_and_hash_alike():
    first, second = Layout.of(LayerNorm(3)), Layout.of(LayerNorm(3))
    assert first == second
    assert hash(first) == hash(second)
    assert first != Layout.of(LayerNorm(4))


def test_steps_are_those_of_adam_written_out(trained, flat):
    parameters = flat(trained[0].parameters)
    mean = np.zeros_like(parameters)
    square = np.zeros_like(parameters)
    for t in range(1, STEPS + 1):
        gradient = parameters**3 + 1
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        corrected = (mean / (1 - 0.9**t), square / (1 - 0.999**t))
        parameters = parameters - RATE * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
        np.testing.assert_allclose(flat(trained[t].parameters), parameters, rtol=1e-5, atol=2e-6)


def test_steps_are_those_of_optax_on_the_tree(trained, net):
    adam = optax.adam(RATE)

    @jax.jit
    def step(net, state):
        updates, state = adam.update(jax.grad(lambda net: bowl(net)[0])(net), state)
        return optax.apply_updates(net, updates), state

    state = adam.init(net)
    for t in range(1, STEPS + 1):
        net, state = step(net, state)
        for ours, theirs in zip(jax.tree.leaves(trained[t].net), jax.tree.leaves(net), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_polyak_is_the_weighted_mean():
    target, online = jnp.asarray([0.0, 1.0, -4.0]), jnp.asarray([1.0, 1.0, 4.0])
    np.testing.assert_allclose(polyak(target, online, 0.25), [0.25, 1.0, -2.0])
    np.testing.assert_array_equal(polyak(target, online, 0.0), target)
    np.testing.assert_array_equal(polyak(target, online, 1.0), online)


def test_a_target_at_its_online_network_stays_there_exactly():
    parameters = jnp.asarray(np.random.default_rng(0).normal(size=1000), jnp.float32)
    np.testing.assert_array_equal(polyak(parameters, parameters, 0.005), parameters)
