"""Bounds on configuration values, with the sentence a user gets who oversteps them."""

from typing import Any

from fastr.errors import UserError


def option(name: str) -> str:
    """A field's name as the command line spells it."""
    return f"--{name.replace('_', '-')}"


def require(config: Any, *names: str, low: int, high: int | None = None) -> None:
    """Raise UserError unless each of these fields lies between the bounds."""
    for name in names:
        value = getattr(config, name)
        if not (low <= value and (high is None or value <= high)):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise UserError(f"{option(name)} is {value}; it must be {bounds}.")
