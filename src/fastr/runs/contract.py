"""The contract of a policy: names, order, shapes and ranges of what goes in and comes out.

Every run and every export carries it as contract.json. A robot that feeds the entries in another
order, or in other units, moves wrongly without any error: what calls a policy checks against it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64

from fastr.core import UserError
from fastr.envs.base import Affine, Environment
from fastr.runs.untrusted import json_object, number, whole_numbers

CONTRACT = "contract.json"


@dataclass(frozen=True)
class Observed:
    """Consecutive entries of an observation, by the environment's name for them."""

    name: str
    shape: tuple[int, ...]
    unit: str | None
    """Where the environment's metadata names one, under "units"."""

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Commanded:
    """One entry of an action, and its bounds in the environment's own unit."""

    name: str
    low: float
    high: float
    unit: str | None


@dataclass(frozen=True)
class Contract:
    """What a policy is fed, what it returns, and how often."""

    observation: tuple[Observed, ...]
    action: tuple[Commanded, ...]
    action_shape: tuple[int, ...]
    frame_skip: int
    """Frames that each action is held for."""
    frame_seconds: float | None
    """Length of a frame, where the environment tells."""

    @classmethod
    def of(cls, environment: Environment, frame_skip: int) -> "Contract":
        """The contract of policies for this environment."""
        size, robot, units = environment.spec.action_dim, environment.robot(), environment.units
        names = [f"actuator {i}" for i in range(size)]
        if robot is not None and robot.model.nu == size:
            names = [robot.model.actuator(i).name or names[i] for i in range(size)]
        return cls(
            tuple(Observed(p.name, p.shape, units.get(p.name)) for p in environment.parts),
            tuple(
                Commanded(name, float(low), float(high), units.get("action"))
                for name, low, high in zip(names, *environment.bounds, strict=True)
            ),
            environment.action_shape,
            frame_skip,
            environment.frame_seconds,
        )

    @classmethod
    def read(cls, path: Path) -> "Contract":
        """The contract in this file; UserError if there is none."""
        return cls.from_json(json_object(path), str(path))

    @classmethod
    def from_json(cls, values: Mapping[str, Any], source: str) -> "Contract":
        """The contract that `to_json` wrote; UserError if it is not one."""
        try:
            contract = cls(
                tuple(
                    Observed(str(part["name"]), tuple(part["shape"]), part["unit"])
                    for part in values["observation"]
                ),
                tuple(
                    Commanded(str(e["name"]), e["low"], e["high"], e["unit"])
                    for e in values["action"]
                ),
                tuple(values["action_shape"]),
                values["frame_skip"],
                values["frame_seconds"],
            )
            sound = (
                all(whole_numbers(list(p.shape), len(p.shape)) for p in contract.observation)
                and all(number(e.low) and number(e.high) for e in contract.action)
                and whole_numbers(list(contract.action_shape), len(contract.action_shape))
                and math.prod(contract.action_shape) == len(contract.action)
                and whole_numbers([contract.frame_skip], 1)
            )
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{source} is not a policy's contract.") from None
        if not sound:
            raise UserError(f"{source} is not a policy's contract.")
        return contract

    def to_json(self) -> dict[str, Any]:
        """As plain values, with the place of every part."""
        first, observation = 0, []
        for part in self.observation:
            observation.append(
                {
                    "name": part.name,
                    "first": first,
                    "size": part.size,
                    "shape": list(part.shape),
                    "unit": part.unit,
                }
            )
            first += part.size
        seconds = self.frame_seconds
        return {
            "observation": observation,
            "action": [vars(entry) for entry in self.action],
            "action_shape": list(self.action_shape),
            "frame_skip": self.frame_skip,
            "frame_seconds": seconds,
            "action_seconds": None if seconds is None else seconds * self.frame_skip,
        }

    @property
    def state_dim(self) -> int:
        """Entries of an observation."""
        return sum(part.size for part in self.observation)

    @property
    def bounds(self) -> tuple[Float64[np.ndarray, " action"], Float64[np.ndarray, " action"]]:
        """The lowest and the highest actions."""
        low, high = (np.array([getattr(entry, end) for entry in self.action]) for end in _ENDS)
        return low.astype(np.float64), high.astype(np.float64)

    def commands(
        self, normalized: Float[np.ndarray, "*batch action"]
    ) -> Float32[np.ndarray, "..."]:
        """Actions in [-1, 1] in the environment's own units and shape."""
        scale = self._scale
        commands = np.clip(scale.centre + scale.half * normalized, scale.low, scale.high)
        return commands.astype(np.float32).reshape(*normalized.shape[:-1], *self.action_shape)

    def normalized(self, commands: object) -> Float32[np.ndarray, "*batch action"]:
        """Actions in the environment's own units and shape, in [-1, 1]."""
        values, scale = np.asarray(commands, np.float64), self._scale
        batch = values.shape[: values.ndim - len(self.action_shape)]
        if values.shape != (*batch, *self.action_shape):
            raise UserError(
                f"The action has shape {values.shape}; it must be {self.action_shape}, or (n, ...)."
            )
        flat = values.reshape(*batch, len(self.action))
        return ((flat - scale.centre) / np.where(scale.half, scale.half, 1.0)).astype(np.float32)

    @property
    def _scale(self) -> Affine:
        return Affine(*self.bounds)


_ENDS = ("low", "high")
