"""fastr export and collect: policies that run without fastr, transitions as a dataset."""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import tyro

from fastr.cli.looking import opened
from fastr.cli.show import Json, Maybe, Run, Several, print_json
from fastr.core import UserError, counted, require, require_seeds
from fastr.runs import RunDirectory, refuse_used


@dataclass(frozen=True)
class Export:
    """Write a trained, deterministic policy with its observation statistics and action scaling.

    The files need neither fastr nor JAX: ONNX runs in onnxruntime, safetensors with NumPy alone.
    MODEL_CARD.md, in the same directory, says what the policy is, how good, and how to call it.
    """

    run_directory: Run
    out: Path
    """Directory to write: new, or empty."""
    format: Literal["onnx", "safetensors"] = "onnx"
    """onnx (needs fastr-rl[onnx]) or safetensors (with a loader in NumPy)."""
    seed: Maybe[int] = None
    """The seed whose policy is exported (default: the run's first)."""
    episodes: int = 10
    """Greedy episodes to play for the card's return; 0: the one measured in training alone."""
    license: str = "not stated"
    """Terms under which the policy may be passed on, for the card: an SPDX name, say."""
    json: Json = False

    def run(self) -> int:
        """Build, compare with the policy in JAX, play, write."""
        from fastr.export import export

        require(self, "episodes", low=0)
        trained = opened(self.run_directory)
        if self.seed is not None:
            trained = trained.with_seed(self.seed)
        facts, difference = export.write_policy(
            trained,
            RunDirectory.open(self.run_directory),
            self.out,
            self.format,
            licence=self.license,
            episodes=self.episodes if trained.config.task else 0,
        )
        if self.json:
            return print_json({"out": str(self.out), "largest_difference": difference, **facts})
        print(f"policy      {self.out / f'policy.{self.format}'}")
        print(f"model card  {self.out / export.CARD}")
        print(f"actions equal the policy's in JAX to {difference:.1g} (in [-1, 1])")
        if played := facts.get("evaluation"):
            mean, std = played["return_mean"], played["return_std"]
            episodes = counted(self.episodes, "episode")
            print(f"return {mean:.1f} +- {std:.1f} over {episodes} of seed {trained.seed}")
        return 0


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
    json: Json = False

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

        run = Path(self.source)
        if self.frame_skip is not None:
            raise UserError("--frame-skip is for tasks; a run is played with its own.")
        if self.policy not in (None, "replay"):
            return from_run(run, self.policy, self.seeds, self.transitions or 100_000, self.out)
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
        seeds, transitions = self.seeds or (0,), self.transitions or 100_000
        return from_task(self.source, frame_skip, seeds, transitions, self.out)
