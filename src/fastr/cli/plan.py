"""fastr sweep --dry-run: every command with its predicted hours, and how sure they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastr.cli.show import print_table
from fastr.core import counted
from fastr.studies.units import Unit
from fastr.sweep import hours, state
from fastr.sweep.hours import Hours, Prediction


@dataclass(frozen=True)
class Plan:
    """What a sweep would do."""

    out: Path
    units: Sequence[Unit]
    hardware: str
    places: int | None
    """Devices that work side by side; None where only a cluster knows."""
    predictions: dict[str, Prediction]
    """By name; finished units have none."""

    @classmethod
    def of(
        cls, out: Path, units: Sequence[Unit], hardware: str | None, places: int | None
    ) -> "Plan":
        """The plan for other hardware, or for this machine with what its runs have shown."""
        here = [] if hardware else hours.measured_here(units)
        hardware = hardware or hours.this_hardware()
        left = [unit for unit in units if not state.finished(out, unit)]
        found = {unit.name: hours.predicted(unit, hardware, here) for unit in left}
        return cls(out, units, hardware, places, found)

    @property
    def left(self) -> list[Unit]:
        """What is not finished."""
        return [unit for unit in self.units if unit.name in self.predictions]

    @property
    def known(self) -> dict[str, Hours]:
        """The hours that can be predicted."""
        return {name: found.hours for name, found in self.predictions.items() if found.hours}

    @property
    def total(self) -> Hours:
        """Of all that can be predicted, one after the other."""
        known = self.known.values()
        return Hours(sum(one.low for one in known), sum(one.high for one in known))

    @property
    def side_by_side(self) -> Hours | None:
        """Until the last one ends, one run at a time on each device."""
        if self.places is None:
            return None
        low = {name: found.low for name, found in self.known.items()}
        high = {name: found.high for name, found in self.known.items()}
        ends = (hours.wall_clock(self.left, each, self.places) for each in (low, high))
        return Hours(*ends)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "out": str(self.out),
            "hardware": self.hardware,
            "hours_low": self.total.low,
            "hours_high": self.total.high,
            "not_predicted": len(self.left) - len(self.known),
            "runs": [self.entry(unit) for unit in self.units],
        }

    def entry(self, unit: Unit) -> dict[str, Any]:
        """One unit, for programs."""
        known = self.known.get(unit.name)
        found = self.predictions.get(unit.name)
        return {
            "name": unit.name,
            "command": list(unit.command),
            "needs": [need.name for need in unit.needs],
            "finished": found is None,
            "hours_low": known.low if known else None,
            "hours_high": known.high if known else None,
            "origin": found.origin if found else None,
        }

    def show(self, title: str) -> None:
        """For people: the commands, a table, the sum, and where the numbers come from."""
        for unit in self.units:
            print(unit.line)
        origins = list(dict.fromkeys(found.origin for found in self.predictions.values()))
        lines = []
        for unit in self.units:
            found = self.predictions.get(unit.name)
            sizes = (unit.seeds or "", f"{unit.frames:,}" if unit.frames else "")
            if found is None:
                lines.append((unit.name, *sizes, "finished", ""))
            else:
                note = f"[{origins.index(found.origin) + 1}]"
                lines.append((unit.name, *sizes, found.hours or "?", note))
        print_table(title, ("run", "seeds", "frames", "predicted", "from"), lines)
        for number, origin in enumerate(origins, 1):
            print(f"[{number}] {origin}")
        self.show_total()

    def show_total(self) -> None:
        """The sum, and what is not in it."""
        said = f"{len(self.left)} of {len(self.units)} to do."
        if self.known:
            said += f" On {self.hardware}, one run after the other: {self.total}"
            if self.places is not None:
                said += f"; on {counted(self.places, 'device')} side by side: {self.side_by_side}"
            said += "."
        print(said)
        if unknown := len(self.left) - len(self.known):
            print(f"{unknown} of them cannot be predicted and are not in the sum.")
