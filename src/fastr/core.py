"""Shared by all rooms: errors, sizes of an environment, names of methods, bounds of settings."""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np


class UserError(Exception):
    """Bad input: the command line prints this one sentence and exits with code 2."""

    code = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest up to three known names that are close to this one; empty if none is."""
    spelled = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), list(spelled), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(spelled[one] for one in close)}?" if close else ""


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn a failure of the file system into a UserError that names what could not be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}).") from error


class RunError(RuntimeError):
    """A run that cannot continue: the command line prints this sentence and exits with code 1."""

    code = 1


class StoppedError(Exception):
    """Work that was stopped by a signal and saved: one sentence, and the exit code."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def counted(count: int, one: str, many: str = "") -> str:
    """A count with its noun: 1 seed, 2 seeds; 1 entry, 2 entries."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def slug(name: str) -> str:
    """A task or a shift as one part of a path."""
    return re.sub(r"[^A-Za-z0-9@+=._-]", "-", name).lstrip(".") or "-"


# Measured on two CPU cores with jaxlib 0.10.2: Eigen's products are up to 1.5 times as fast as
# YNNPACK's at these sizes, and a small update 1.3 times. Other releases may not know the flag, and
# XLA ends the process over a flag it does not know.
EIGEN = "--xla_cpu_experimental_ynn_fusion_type="


def configure_jax() -> None:
    """Set what JAX reads when it is imported: memory as needed, a cache, the faster products."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "fastr" / "jax"))
    flags = os.environ.get("XLA_FLAGS", "")
    if version("jaxlib").startswith("0.10.") and "ynn_fusion" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {EIGEN}".strip()


@dataclass(frozen=True)
class EnvSpec:
    """Sizes of one environment's state and action vectors; actions lie in [-1, 1]."""

    state_dim: int
    action_dim: int

    @property
    def in_words(self) -> str:
        """The sizes, for a sentence."""
        entries = counted(self.state_dim, "observation entry", "observation entries")
        return f"{entries} and {counted(self.action_dim, 'actuator')}"

    @property
    def packed_dim(self) -> int:
        """Numbers in one packed transition without reward: state, action, next state."""
        return 2 * self.state_dim + self.action_dim

    @property
    def row_dim(self) -> int:
        """Numbers in one packed transition: state, action, next state, reward, continues."""
        return self.packed_dim + 2

    @property
    def row(self) -> dict[str, slice | int]:
        """Where each part of a transition lies in its packed row."""
        action, next_state = self.state_dim, self.state_dim + self.action_dim
        return {
            "state": slice(0, action),
            "action": slice(action, next_state),
            "next_state": slice(next_state, self.packed_dim),
            "reward": self.packed_dim,
            "continues": self.packed_dim + 1,
        }

    def pack(self, **parts: np.ndarray) -> np.ndarray:
        """Packed rows of transitions; every part has the same leading axes."""
        rows = np.empty((*parts["reward"].shape, self.row_dim), np.float32)
        for name, place in self.row.items():
            rows[..., place] = parts[name]
        return rows

    @classmethod
    def of_row(cls, row_dim: int, state_dim: int) -> "EnvSpec":
        """The sizes of an environment, from those of its packed rows and its states."""
        return cls(state_dim, row_dim - 2 * state_dim - 2)


Method = Literal[
    "fastr",
    "ctrl-sr",
    "diff-sr",
    "sac",
    "sac-2layer",
    "td7",
    "td3",
    "concat",
    "tucker",
    "tucker-22",
    "block",
    "low-rank",
    "tree",
    "ctrl-sr-matched",
    "tucker-matched",
]
Preset = Literal["paper", "laptop"]


LARGEST = 2**31 - 1
DEEPEST = 100
"""Layers or blocks of a network."""
MOST_LEVELS = 10_000
"""Noise levels."""
LARGEST_BATCH = 100_000
"""Transitions per update; times MOST_LEVELS it still fits into an int32."""
MOST_SEEDS = 1_000
"""Each has its own simulator process."""
PATIENCE_SECONDS = 120.0
"""Longest time that one agent step may take before the simulator counts as stuck."""


def option(name: str) -> str:
    """The command-line option of a field."""
    return f"--{name.replace('_', '-')}"


def require(config: Any, *names: str, low: int | float, high: int | float | None = None) -> None:
    """Raise UserError unless each of these fields lies between the bounds.

    Without an upper bound, a whole number must still fit into an int32.
    """
    for name in names:
        value = getattr(config, name)
        if isinstance(value, int) and high is None and value > LARGEST:
            raise UserError(f"{option(name)} is too large; it must be at most {LARGEST}.")
        if not (low <= value and (high is None or value <= high)):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise UserError(f"{option(name)} is {value}; it must be {bounds}.")


def require_even(config: Any, name: str) -> None:
    """Raise UserError unless this field is an even number of at least 2."""
    require(config, name, low=2)
    if getattr(config, name) % 2:
        raise UserError(f"{option(name)} is {getattr(config, name)}; it must be even.")


def require_seeds(seeds: Sequence[int], name: str = "seeds") -> None:
    """Raise UserError unless these are one or more different seeds in the range of an int32."""
    if not seeds:
        raise UserError(f"{option(name)} is empty; give at least one seed.")
    if len(seeds) > MOST_SEEDS:
        raise UserError(f"{option(name)} names {len(seeds):,}; it takes at most {MOST_SEEDS:,}.")
    seen: set[int] = set()
    for seed in seeds:
        if not 0 <= seed <= LARGEST:
            raise UserError(f"{option(name)} {seed}: a seed must be from 0 to {LARGEST}.")
        if seed in seen:
            raise UserError(f"{option(name)} names {seed} twice; each seed must be given once.")
        seen.add(seed)
