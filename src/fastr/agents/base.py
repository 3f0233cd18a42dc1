"""What every agent promises to the engine that trains it."""

import abc
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from fastr.training.replay import PrioritizedReplay, Replay
from fastr.transition import Metrics, Transition

Tree = TypeVar("Tree")


class AbstractPolicy(eqx.Module):
    """The greedy policy alone, as arrays: what evaluation, rendering and export need."""

    @abc.abstractmethod
    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " action"]:
        """The action in this state, in [-1, 1]."""


class AbstractAgent(eqx.Module):
    """An immutable pytree of arrays: scan it, vmap it over seeds, save it."""

    @abc.abstractmethod
    def policy(self) -> AbstractPolicy:
        """The greedy policy, for evaluation."""

    @abc.abstractmethod
    def explore(self, state: Float[Array, " state"], key: PRNGKeyArray) -> Float[Array, " action"]:
        """The behaviour action, for collecting data."""

    @abc.abstractmethod
    def update(
        self, batch: Transition, key: PRNGKeyArray, step: Int[Array, ""]
    ) -> tuple["AbstractAgent", Float[Array, " batch"], Metrics]:
        """One gradient step: the new agent, each row's |TD error|, scalars to log.

        `step` counts updates from 0, the same for all seeds.
        """

    def end_episode(
        self,
        episode_return: Float[Array, ""],  # noqa: ARG002
        updates: Int[Array, ""],  # noqa: ARG002
    ) -> "AbstractAgent":
        """After a training episode of this return, `updates` updates into the run."""
        return self

    def empty_replay(self, capacity: int, row_dim: int) -> Replay | PrioritizedReplay:
        """Room for so many packed transitions, drawn from in the way that this agent asks for."""
        return Replay.empty(capacity, row_dim)

    @property
    def keeps(self) -> bool:
        """Whether a part of it never moves; then observations stay in that part's units, too."""
        return False

    def inherit(self, source: "AbstractAgent") -> "AbstractAgent":  # noqa: ARG002
        """With the part that never moves taken from another agent of the same method."""
        return self

    @abc.abstractmethod
    def networks(self) -> dict[str, PyTree]:
        """Every online parameter once, under the name of the network it belongs to."""


def chosen(condition: Bool[Array, ""], yes: Tree, no: Tree) -> Tree:
    """One of two equal structures, leaf by leaf: a branch would make a device wait for its host."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
