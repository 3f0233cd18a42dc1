"""fastr collect: write a dataset of transitions."""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import tyro

from fastr.cli.show import Flag, Maybe, Several, print_json
from fastr.core import UserError, counted, require, require_seeds
from fastr.runs import refuse_used

TRANSITIONS = 100_000
"""Default number of transitions to play."""


@dataclass(frozen=True)
class Collect:
    """Write a dataset of transitions in Minari's format, with its provenance."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """A run directory, or a task."""
    out: Path
    """The dataset's directory."""
    policy: Maybe[Literal["replay", "greedy", "exploring", "random"]] = None
    """Source of the transitions: the run's replay (default for a run), its greedy or exploring
    policy at the newest checkpoint, or uniformly random actions (default for a task)."""
    transitions: Maybe[int] = None
    """Transitions to play, over all seeds together (default 100000); a replay is written whole."""
    seeds: Several[int] = ()
    """Seeds to play with, one simulator each (default: the run's, or 0 for a task)."""
    frame_skip: Maybe[int] = None
    """Frames each action is held for on a task (default 2); a run has its own."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Play or copy, and print the size of the dataset."""
        if self.transitions is not None:
            require(self, "transitions", low=1)
        if self.seeds:
            require_seeds(self.seeds)
        refuse_used(self.out)
        # The name of a task has a slash only after a colon: gym:Adroit/Door-v1.
        is_path = "/" in self.source.partition(":")[0] or Path(self.source).exists()
        result = self.from_run() if is_path else self.from_task()
        if self.json:
            return print_json(result)
        print(
            f"{result['dataset']}: {counted(result['transitions'], 'transition')} in "
            f"{counted(result['episodes'], 'episode')}; next, "
            f"`fastr misfit {quote(result['dataset'])}`"
        )
        return 0

    def from_run(self) -> dict[str, Any]:
        """Copy the replay of a run, or play its policies."""
        from fastr.data.collect import from_replay, from_run

        run, transitions = Path(self.source), self.transitions or TRANSITIONS
        if self.frame_skip is not None:
            raise UserError("--frame-skip is for tasks; a run is played with its own.")
        if self.policy not in (None, "replay"):
            return from_run(run, self.policy, self.seeds, transitions, self.out)
        if self.transitions is not None or self.seeds:
            raise UserError(
                "A replay is written whole: leave out --transitions and --seeds, or limit the "
                "diagnosis with `fastr misfit --limit`."
            )
        return from_replay(run, self.out)

    def from_task(self) -> dict[str, Any]:
        """Play a task with random actions."""
        from fastr.data.collect import from_task
        from fastr.envs import spec

        if self.policy not in (None, "random"):
            raise UserError(
                f"--policy {self.policy} needs a run directory, and {self.source} is none."
            )
        frame_skip = 2 if self.frame_skip is None else self.frame_skip
        # A wrong task is refused before any process starts.
        spec(self.source, frame_skip)
        transitions = self.transitions or TRANSITIONS
        return from_task(self.source, frame_skip, self.seeds or (0,), transitions, self.out)
