"""fastr eval and fastr play: what a trained policy does."""

import itertools
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastr.cli.show import Flag, Maybe, Run, Several, print_json, print_table
from fastr.core import RunError, UserError, counted, require, require_seeds
from fastr.envs import require_imported
from fastr.runs.directory import RunDirectory
from fastr.training.config import from_json
from fastr.training.trained import Trained

MOST_EPISODES = 100_000
"""Of one evaluation and seed."""


@dataclass(frozen=True)
class Eval:
    """Play greedy episodes with every seed's policy at the newest checkpoint."""

    run_directory: Run
    """The run's directory."""
    episodes: int = 10
    """Episodes per seed."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Play the episodes in worker processes."""
        from fastr.export.play import greedy_returns, unseen_episodes

        require(self, "episodes", low=1, high=MOST_EPISODES)
        trained = opened(self.run_directory)
        config, frames = trained.config, trained.frames
        episodes = unseen_episodes(trained, self.episodes)
        returns = greedy_returns(trained.every_seed(), config.task, episodes)
        result = {
            "run": str(self.run_directory),
            "task": config.task,
            "method": config.method,
            "frames": frames,
            "episodes": self.episodes,
            "seeds": [
                {
                    "seed": seed,
                    "return_mean": float(row.mean()),
                    "return_std": float(row.std()),
                    "returns": row.tolist(),
                }
                for seed, row in zip(config.seeds, returns, strict=True)
            ],
            "return_mean": float(returns.mean()),
        }
        if self.json:
            return print_json(result)
        columns = ("seed", "mean return", "std over episodes")
        rows = [
            (e["seed"], e["return_mean"], e["return_std"] if self.episodes > 1 else "one episode")
            for e in result["seeds"]
        ]
        sizes = f"{counted(frames, 'frame')}, {counted(self.episodes, 'episode')}"
        print_table(
            f"{config.task}, {config.method}, {sizes}",
            columns,
            [*rows, ("all", result["return_mean"], "")],
        )
        return 0


@dataclass(frozen=True)
class Play:
    """Show greedy episodes of trained policies, one tile per seed: as a film or in a window."""

    run_directory: Run
    """The run's directory."""
    video: Maybe[Path] = None
    """File to write, one episode per seed; its ending chooses the format: .mp4 or .gif."""
    window: Flag = False
    """Show it in a window, episode after episode, until that is closed (or Esc or q is typed)."""
    seeds: Several[int] = ()
    """Seeds whose policies are shown side by side (default: all of the run's)."""
    overlay: Several[Literal["return", "factors"]] = ()
    """What to draw over each tile: the return so far; the eight strongest coordinates of
    phi_s(s) * phi_a(a), numbered, in units of the largest of late (methods with such factors)."""
    height: int = 240
    """Height of each seed's picture in pixels."""
    width: int = 320
    """Width of each seed's picture in pixels."""

    def run(self) -> int:
        """Render in this process."""
        from fastr.export.screens import check_film

        if (self.video is None) != self.window:
            raise UserError("fastr play needs either --video FILE (.mp4 or .gif) or --window.")
        if self.video is not None:
            check_film(self.video)
        policies = self.policies(opened(self.run_directory))
        return self.film(self.video, policies) if self.video else self.show(policies)

    def policies(self, trained: Trained) -> list[Trained]:
        """The policies to show, if they can be."""
        from fastr.export.play import check_overlay, check_picture

        if self.seeds:
            require_seeds(self.seeds)
        chosen = [trained.with_seed(seed) for seed in self.seeds]
        policies = chosen or trained.every_seed()
        check_picture(len(policies), (self.height, self.width), self.overlay)
        check_overlay(trained, self.overlay)
        return policies

    def film(self, path: Path, policies: list[Trained]) -> int:
        """Write one episode of every policy."""
        from fastr.export.play import Performance
        from fastr.export.screens import Film
        from fastr.training.progress import stage

        returns = None
        with (
            closing(Performance(policies, (self.height, self.width), self.overlay)) as performance,
            stage("filming", performance.most_pictures(), "pictures") as advance,
            Film(path, advance) as film,
            suppress(KeyboardInterrupt),
        ):
            returns = performance.play(film, 0)
        if returns is None:
            raise RunError(f"stopped; {path} holds what was filmed so far.")
        print(f"{path}: one episode after {counted(policies[0].frames, 'frame')} of training")
        for one, total in zip(policies, returns, strict=True):
            print(f"  seed {one.seed}: return {total:.1f}")
        return 0

    def show(self, policies: list[Trained]) -> int:
        """Play on until the window is closed."""
        from fastr.export.play import Performance
        from fastr.export.screens import Window

        with (
            Window(f"fastr: {self.run_directory}") as window,
            closing(Performance(policies, (self.height, self.width), self.overlay)) as performance,
            suppress(KeyboardInterrupt),
        ):
            numbers = itertools.count()
            while performance.play(window, next(numbers)) is not None:
                pass
        return 0


def opened(path: Path) -> Trained:
    """The first seed of a run at its newest sound checkpoint; passed-over ones are named."""
    directory = RunDirectory.open(path)
    config = from_json(directory.config["train"])
    require_imported(config.task, path)
    checkpoint = directory.latest()
    for message in checkpoint.skipped:
        print(f"fastr: {message}", file=sys.stderr)
    return Trained.of(path, config, checkpoint)
