"""Bounds on configuration values, with the sentence a user gets who oversteps them."""

from typing import Any

from fastr.errors import UserError

LARGEST = 2**31 - 1
DEEPEST = 100
"""Layers or blocks of a network, which are built one by one."""
MOST_LEVELS = 10_000
"""Noise levels."""


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
