"""Large trees that compiled programs take in and give back quickly."""

from functools import cache
from typing import Any

import jax
from jax.tree_util import GetAttrKey, keystr, register_pytree_with_keys


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
