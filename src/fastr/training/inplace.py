"""Compiled functions that change a small part of a large tree."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var
from jaxtyping import PyTree


class InPlace:
    """A compiled (tree, argument) -> (tree, result) through which only what it needs passes.

    Every array that enters or leaves a compiled program costs the host microseconds. Leaves that
    come back unchanged stay outside, those that are not even read are never handed over, and those
    that change are written in place: the tree that went in must not be used again.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], tuple[Any, Any]],
        tree: PyTree[jax.ShapeDtypeStruct],
        argument: jax.ShapeDtypeStruct,
        out_shardings: tuple[PyTree, Any],
    ):
        self.leaves, self.structure = jax.tree.flatten(tree)
        self.function = function
        self.changed, self.read = self._needs(argument)
        tree_shardings, result_sharding = out_shardings
        shardings = jax.tree.leaves(tree_shardings)
        self._program = jax.jit(
            self._changes,
            donate_argnums=0,
            out_shardings=([shardings[i] for i in self.changed], result_sharding),
        )

    def __call__(self, tree: Any, argument: Any) -> tuple[Any, Any]:
        """The tree after the function, and its result."""
        leaves = jax.tree.leaves(tree)
        changed, read = ([leaves[i] for i in kind] for kind in (self.changed, self.read))
        changed, result = self._program(changed, read, argument)
        for i, leaf in zip(self.changed, changed, strict=True):
            leaves[i] = leaf
        return jax.tree.unflatten(self.structure, leaves), result

    def _flat(self, leaves: list, argument: Any) -> tuple[list, Any]:
        tree, result = self.function(jax.tree.unflatten(self.structure, leaves), argument)
        return jax.tree.leaves(tree), result

    def _needs(self, argument: jax.ShapeDtypeStruct) -> tuple[list[int], list[int]]:
        """Which leaves change, and which are read without changing."""
        program = jax.make_jaxpr(self._flat)(self.leaves, argument).jaxpr
        count = len(self.leaves)
        before, after = program.invars[:count], program.outvars[:count]
        changed = [i for i in range(count) if after[i] is not before[i]]
        # A leaf may also become another one's new value as it is.
        results = [*program.outvars[count:], *(after[i] for i in changed)]
        used = [*results, *(v for e in program.eqns for v in e.invars)]
        used = {variable for variable in used if isinstance(variable, Var)}
        return changed, [i for i in range(count) if after[i] is before[i] and before[i] in used]

    def _changes(self, changed: list, read: list, argument: Any) -> tuple[list, Any]:
        # What is never read may be anything: the compiler drops it.
        leaves = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves]
        for places, values in ((self.changed, changed), (self.read, read)):
            for i, value in zip(places, values, strict=True):
                leaves[i] = value
        after, result = self._flat(leaves, argument)
        return [after[i] for i in self.changed], result
