"""A trained run in Python: NumPy arrays in, NumPy arrays out.

policy = fastr.load("runs/gait").trained(1)
action = policy.act(state)
feature = policy.features(state, action)
"""

import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from fastr.agents.base import AbstractPolicy
from fastr.core import EnvSpec, UserError
from fastr.nn.moments import Moments
from fastr.runs.checkpoints import Checkpoint
from fastr.runs.directory import RunDirectory
from fastr.training.config import TrainConfig, from_json
from fastr.training.learner import Learner, RawFeatures
from fastr.training.state import saved_cohort

Tree = TypeVar("Tree")

SLACK = 1e-6
"""How far beyond [-1, 1] rounding may put an action."""


@dataclass(frozen=True, eq=False)
class Trained:
    """One seed of a trained run at its newest checkpoint: made by `Run.trained`."""

    path: Path
    """The run's directory."""
    config: TrainConfig
    """What was trained: task, method, every hyperparameter."""
    spec: EnvSpec
    """Sizes of states and actions: `spec.state_dim`, `spec.action_dim`."""
    frames: int
    """Simulator steps that training had seen (not agent steps)."""
    seed: int
    """The seed whose policy this is, one of `config.seeds`."""
    _policies: AbstractPolicy = field(repr=False)
    _maps: RawFeatures | None = field(repr=False)
    """Of all seeds, stacked, on the host."""

    _moments: Moments = field(repr=False)

    @classmethod
    def of(cls, path: Path, config: TrainConfig, checkpoint: Checkpoint) -> "Trained":
        """The first seed of a run at a checkpoint."""
        cohort, spec = saved_cohort(config, checkpoint)
        # Only what acting and encoding need is kept: optimisers and critics are let go.
        policies = jax.device_get(jax.vmap(Learner.policy)(cohort.learners))
        maps = jax.device_get(jax.vmap(Learner.feature_map)(cohort.learners))
        moments = jax.device_get(cohort.learners.moments)
        frames, seed = checkpoint.frames, config.seeds[0]
        return cls(path, config, spec, frames, seed, policies, maps, moments)

    def with_seed(self, seed: int) -> "Trained":
        """The same run at another of its seeds; no file is read again."""
        if seed not in self.config.seeds:
            raise UserError(f"Seed {seed} is not in {self.path}; it has {list(self.config.seeds)}.")
        return replace(self, seed=seed)

    def every_seed(self) -> list["Trained"]:
        """All seeds of the run, in its order."""
        return [self.with_seed(seed) for seed in self.config.seeds]

    def act(self, state: object) -> Float32[np.ndarray, "*batch action"]:
        """Greedy actions in [-1, 1], of shape (..., action_dim).

        `state` holds raw observations as fastr's environments give them, of shape (state_dim,) or
        (..., state_dim): float32, parts in the environment's order, not normalised. The
        environment's own bounds are applied by the environment, or by what `fastr export` writes.
        Each new number of states compiles once.
        """
        states = _rows("state", state, self.spec.state_dim)
        return _reshaped(_actions(self.policy, _flat(states)), states.shape[:-1])

    def features(self, state: object, action: object) -> Float32[np.ndarray, "*batch feature"]:
        """The features that the critics read, of shape (..., feature_dim).

        For a spectral method psi(s, a), from the copy of the representation that the critics learn
        on; for TD7 the embedding zsa of the encoder that the policy reads. `state` is raw, `action`
        in [-1, 1]; both have the same leading axes. UserError for SAC and TD3, which have none.
        """
        states = _rows("state", state, self.spec.state_dim)
        actions = _rows("action", action, self.spec.action_dim)
        if states.shape[:-1] != actions.shape[:-1]:
            raise UserError(
                f"state has shape {states.shape} and action {actions.shape}; all axes but the last "
                "must agree."
            )
        if np.any(np.abs(actions) > 1.0 + SLACK):
            raise UserError(
                f"action reaches {np.abs(actions).max():g}; fastr's actions lie in [-1, 1], "
                "whatever the environment's bounds."
            )
        encoded = _encoded(self.feature_map, _flat(states), _flat(actions))
        return _reshaped(encoded, states.shape[:-1])

    @property
    def has_factors(self) -> bool:
        """Whether each coordinate of a feature is a product of a state's and an action's factor."""
        return self._maps is not None and getattr(self._maps.network, "product_features", False)

    @property
    def leaves(self) -> list[np.ndarray]:
        """The arrays of this seed's policy, as `fastr.training.evaluate.compiled` takes them."""
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.policy)]

    @property
    def mean(self) -> Float[np.ndarray, " state"]:
        """Of every entry of the observations during training."""
        return np.asarray(self._chosen(self._moments).mean)

    @property
    def std(self) -> Float[np.ndarray, " state"]:
        """Standard deviation of the same."""
        return np.asarray(self._chosen(self._moments).std)

    @cached_property
    def policy(self) -> AbstractPolicy:
        """The greedy policy as a JAX function of one raw state."""
        return self._chosen(self._policies)

    @cached_property
    def feature_map(self) -> RawFeatures:
        """The features as a JAX function of one raw state and one action."""
        if self._maps is None:
            raise UserError(f"{self.config.method} learns no representation: it has no features.")
        return self._chosen(self._maps)

    def _chosen(self, stacked: Tree) -> Tree:
        place = self.config.seeds.index(self.seed)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf[place]), stacked)


def load(run: str | Path, *, seed: int | None = None) -> Trained:
    """One seed of a run, or its first, at its newest sound checkpoint.

    Files are checked and nothing in them is executed; whatever is
    wrong with them is a `fastr.core.UserError`. A damaged checkpoint is passed over for the one
    before, with a warning.
    """
    directory = RunDirectory.open(run)
    config = from_json(directory.config["train"])
    checkpoint = directory.latest()
    for message in checkpoint.skipped:
        warnings.warn(message, stacklevel=2)
    trained = Trained.of(directory.path, config, checkpoint)
    return trained if seed is None else trained.with_seed(seed)


@jax.jit
def _actions(policy: AbstractPolicy, states: Float[Array, "batch state"]) -> Array:
    with jax.default_matmul_precision("float32"):
        return jax.vmap(policy)(states)


@jax.jit
def _encoded(
    encode: RawFeatures, states: Float[Array, "batch state"], actions: Float[Array, "batch action"]
) -> Array:
    with jax.default_matmul_precision("float32"):
        return jax.vmap(encode)(states, actions)


def _rows(name: str, values: object, size: int) -> Float32[np.ndarray, "..."]:
    """Values as float32 whose last axis has this size; UserError if they cannot be."""
    try:
        with np.errstate(over="ignore"):
            array = np.asarray(values).astype(np.float32, casting="same_kind")
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{name} is not an array of real numbers.") from error
    if array.ndim == 0 or array.shape[-1] != size:
        raise UserError(
            f"{name} has shape {array.shape}; it must be ({size},), or (..., {size}) for several."
        )
    if not np.all(np.isfinite(array)):
        raise UserError(f"{name} holds numbers that are not finite in float32.")
    return array


def _flat(rows: np.ndarray) -> Array:
    return jnp.asarray(rows.reshape(-1, rows.shape[-1]))


def _reshaped(result: Array, leading: tuple[int, ...]) -> np.ndarray:
    return np.asarray(result).reshape(*leading, result.shape[-1])
