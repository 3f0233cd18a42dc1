"""Large trees in compiled programs: stored flat, changed in place."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var
from jax.tree_util import GetAttrKey, keystr, register_pytree_with_keys
from jaxtyping import PyTree


class Flat:
    """A tree of named parts that is stored as a list of its leaves.

    JAX walks the trees that enter and leave a compiled program, at every call, class by class in
    Python. Here it finds one list.
    """

    def __init__(self, **parts: Any):
        self._leaves, structure = jax.tree.flatten(parts)
        self._layout = _layout(structure)

    def __init_subclass__(cls):
        register_pytree_with_keys(cls, Flat._with_names, cls._of, Flat._flattened)

    def part(self, name: str) -> Any:
        """One part, as the tree that it is."""
        return jax.tree.unflatten(self._layout.structure, self._leaves)[name]

    def _flattened(self) -> tuple[list[Any], "_Layout"]:
        return self._leaves, self._layout

    def _with_names(self) -> tuple[list[tuple[Any, Any]], "_Layout"]:
        """The same with the dotted path of each leaf for its name."""
        tree = jax.tree.unflatten(self._layout.structure, self._leaves)
        paths, _ = jax.tree_util.tree_flatten_with_path(tree)
        names = (keystr(path, simple=True, separator=".") for path, _ in paths)
        return list(zip(map(GetAttrKey, names), self._leaves, strict=True)), self._layout

    @classmethod
    def _of(cls, layout: "_Layout", leaves: Any) -> "Flat":
        made = object.__new__(cls)
        made._layout, made._leaves = layout, list(leaves)
        return made


class _Layout:
    """How leaves make a tree; one object for each kind, since every call compares it."""

    def __init__(self, structure: Any):
        self.structure = structure


@cache
def _layout(structure: Any) -> _Layout:
    return _Layout(structure)


class InPlace:
    """A compiled (tree, argument) -> (tree, result) that only passes leaves it reads or changes.

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
