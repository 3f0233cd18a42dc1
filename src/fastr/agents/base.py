"""The promise of an agent: what the engine that trains it, evaluation and export ask of it."""

import abc
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from fastr.core import EnvSpec, UserError
from fastr.nn.optim import Metrics
from fastr.nn.precision import Precision
from fastr.transition import Transition

Tree = TypeVar("Tree")
Part = Literal["all", "representation", "state-factor", "encoder"]
"""What an agent may take from another."""


class AgentConfig(abc.ABC):
    """Settings of an agent: the fields of a frozen dataclass, at least these, are options."""

    batch_size: int
    """Transitions per update."""
    normalize_observations: bool
    """Scale observations by running statistics."""
    precision: Precision
    """Arithmetic of matrix products."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    random_frames: ClassVar[int] = 10_000
    """Frames of random actions before the first update, unless a run says otherwise."""

    @abc.abstractmethod
    def init(self, spec: EnvSpec, key: PRNGKeyArray) -> "AbstractAgent":
        """A fresh agent for this environment."""

    def accelerated(self) -> "AgentConfig":
        """With the arithmetic that is fastest on an accelerator."""
        return self

    def laptop(self) -> "AgentConfig":
        """The same method at sizes and rates that learn in minutes on a CPU."""
        return self

    @property
    def priority_updates(self) -> int | None:
        """Updates between two renewals of the largest priority; None: replay is uniform."""
        return None


@runtime_checkable
class FeatureMap(Protocol):
    """A network that makes features of normalised states and actions."""

    def feature(self, state: Array, action: Array, /) -> Array:
        """The feature of one state-action pair."""
        ...


class AbstractPolicy(eqx.Module):
    """The greedy policy alone, as arrays: what evaluation, rendering and export need."""

    @abc.abstractmethod
    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " action"]:
        """The action in this state, in [-1, 1]."""

    def write(self, program: Any, value: str, action_dim: int) -> str:  # noqa: ARG002
        """Write the policy up to its tanh into a `fastr.export` program; name of the result."""
        raise UserError(f"{type(self).__name__} has no `write`, so it cannot be exported.")


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

        `step` counts updates from 0, the same for all seeds. A scalar of 0 was not measured this
        time: its last value is logged.
        """

    def end_episode(
        self,
        episode_return: Float[Array, ""],  # noqa: ARG002
        updates: Int[Array, ""],  # noqa: ARG002
    ) -> "AbstractAgent":
        """After a training episode of this return, `updates` updates into the run."""
        return self

    def feature_map(self) -> FeatureMap | None:
        """The network whose features the critics read; None for an agent without one."""
        return None

    @property
    def kept_networks(self) -> tuple[str, ...]:
        """Names of the networks that never move; with any, observation statistics are fixed too."""
        return ()

    def inherit(self, source: "AbstractAgent", part: Part) -> "AbstractAgent":
        """With a part of another agent of the same sizes; optimisers start anew."""
        if part != "all":
            raise UserError(f"--init-parts {part} is not possible: this method has no {part}.")
        theirs = dict(jax.tree_util.tree_flatten_with_path(source)[0])

        def taken(path: tuple, ours: Array) -> Array:
            optimiser = any(getattr(key, "name", "") == "moments" for key in path)
            return ours if optimiser else theirs[path]

        return jax.tree_util.tree_map_with_path(taken, self)

    @abc.abstractmethod
    def networks(self) -> dict[str, PyTree]:
        """Every online parameter once, under the name of the network it belongs to."""


def chosen(condition: Bool[Array, ""], yes: Tree, no: Tree) -> Tree:
    """One of two equal structures, leaf by leaf: a branch would make a device wait for its host."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
