"""A tree kept as its leaves is the tree that it was made of, to JAX and to whoever looks in."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fastr.training.inplace import Flat


class Pair(eqx.Module):
    """A tree with something that is no array."""

    first: Array
    second: tuple[Array, ...]
    name: str = eqx.field(static=True)


class Kept(Flat):
    """Two parts."""

    def __init__(self, pair: Pair, clock: Array):
        super().__init__(pair=pair, clock=clock)


def kept(name: str = "a", size: int = 3) -> Kept:
    return Kept(Pair(jnp.arange(size), (jnp.ones(2), jnp.zeros(())), name), jnp.array(7))


def test_parts_come_out_as_they_went_in():
    pair = kept().part("pair")
    assert (type(pair), pair.name, type(pair.second)) == (Pair, "a", tuple)
    np.testing.assert_array_equal(pair.first, [0, 1, 2])
    assert kept().part("clock") == 7


def test_jax_sees_every_leaf_under_its_path():
    paths, _ = jax.tree_util.tree_flatten_with_path(kept())
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    assert names == ["clock", "pair.first", "pair.second.0", "pair.second.1"]
    assert [leaf.shape for _, leaf in paths] == [(), (3,), (2,), ()]
    doubled = jax.tree.map(lambda leaf: 2 * leaf, kept())
    assert isinstance(doubled, Kept)
    np.testing.assert_array_equal(doubled.part("pair").first, [0, 2, 4])


def test_programs_are_compiled_once_for_each_kind():
    @jax.jit
    def older(tree: Kept) -> Kept:
        return Kept(tree.part("pair"), tree.part("clock") + 1)

    tree = older(older(older(kept())))
    assert tree.part("clock") == 10
    assert older._cache_size() == 1
    # What is no array is part of the kind.
    assert older(kept(name="b")).part("pair").name == "b"
    assert older._cache_size() == 2


def test_kinds_are_told_apart():
    structure = jax.tree.structure
    assert structure(kept()) == structure(kept(size=5))
    assert structure(kept()) != structure(kept(name="b"))
