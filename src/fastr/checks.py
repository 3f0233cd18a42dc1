"""Bounds on configuration values, with the sentence a user gets who oversteps them."""

from collections.abc import Sequence
from typing import Any

from fastr.errors import UserError

LARGEST = 2**31 - 1
DEEPEST = 100
"""Layers or blocks of a network, which are built one by one."""
MOST_LEVELS = 10_000
"""Noise levels."""
LARGEST_BATCH = 100_000
"""Transitions per update: times MOST_LEVELS it is still a number that the device can count to."""
MOST_SEEDS = 1_000
"""Most commands have a simulator for each, in a process of its own."""


def option(name: str) -> str:
    """A field's name as the command line spells it."""
    return f"--{name.replace('_', '-')}"


def require(config: Any, *names: str, low: int | float, high: int | float | None = None) -> None:
    """Raise UserError unless each of these fields lies between the bounds.

    Without an upper one, a whole number must still be one that the device can count to.
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
    """Raise UserError unless these are one or more different seeds that every generator takes."""
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
