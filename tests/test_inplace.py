"""Only what a function needs passes through its compiled form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from fastr.training.inplace import InPlace


def scaled(tree, factor):
    """Changes one leaf, reads another, leaves the rest."""
    moved = tree | {"moved": tree["moved"] + factor * tree["read"]}
    return moved, tree["read"].sum() + tree["shown"][0]


@pytest.fixture
def tree():
    return {name: jnp.arange(3.0) + i for i, name in enumerate(("moved", "read", "idle", "shown"))}


@pytest.fixture
def program(tree):
    place = SingleDeviceSharding(jax.devices()[0])
    shapes = jax.eval_shape(lambda: tree)
    shardings = (jax.tree.map(lambda _: place, shapes), place)
    return InPlace(scaled, shapes, jax.ShapeDtypeStruct((), jnp.float32), shardings)


def test_it_is_the_function(tree, program):
    expected, expected_result = scaled(tree, 2.0)
    expected = jax.tree.map(np.asarray, expected)
    after, result = program(tree, 2.0)
    assert jax.tree.all(jax.tree.map(np.array_equal, after, expected))
    assert result == expected_result


def test_what_stays_is_the_same_array_and_what_moves_is_written_in_place(tree, program):
    after, _ = program(tree, 2.0)
    assert all(after[name] is tree[name] for name in ("read", "idle", "shown"))
    assert tree["moved"].is_deleted()


def test_a_leaf_may_become_anothers_new_value(tree):
    def handed_on(tree, _):
        return tree | {"moved": tree["idle"]}, tree["shown"][0]

    place = SingleDeviceSharding(jax.devices()[0])
    shapes = jax.eval_shape(lambda: tree)
    shardings = (jax.tree.map(lambda _: place, shapes), place)
    program = InPlace(handed_on, shapes, jax.ShapeDtypeStruct((), jnp.float32), shardings)
    after, _ = program(tree, 0.0)
    np.testing.assert_array_equal(after["moved"], after["idle"])
    assert after["idle"][1] == 3.0
