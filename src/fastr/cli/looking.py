"""fastr eval and fastr play: what a trained policy does."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastr.cli.show import Flag, Maybe, Run, Several, print_json, print_table
from fastr.core import counted, require, require_seeds
from fastr.envs import require_imported
from fastr.runs.directory import RunDirectory
from fastr.training.config import from_json
from fastr.training.trained import Trained

MOST_EPISODES = 100_000
"""Limit of one evaluation and seed."""
SMALLEST, TALLEST, WIDEST = 64, 1_080, 1_920
"""Pixels of one seed's picture."""


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
        rows = [
            (e["seed"], e["return_mean"], e["return_std"] if self.episodes > 1 else "one episode")
            for e in result["seeds"]
        ]
        sizes = f"{counted(frames, 'frame')}, {counted(self.episodes, 'episode')}"
        print_table(
            f"{config.task}, {config.method}, {sizes}",
            ("seed", "mean return", "std over episodes"),
            [*rows, ("all", result["return_mean"], "")],
        )
        return 0


@dataclass(frozen=True)
class Play:
    """Film greedy episodes of all seeds side by side, or watch one seed in MuJoCo's viewer."""

    run_directory: Run
    """The run's directory."""
    video: Maybe[Path] = None
    """File to write, one episode per seed, .mp4 or .gif (default: open the viewer)."""
    seeds: Several[int] = ()
    """Seeds to film (default: all of the run's); the viewer shows the first."""
    overlay: Several[Literal["return", "factors"]] = ()
    """For a film: the return so far; the eight strongest coordinates of phi_s(s) * phi_a(a),
    numbered, in units of the largest recent value (methods with such factors)."""
    height: int = 240
    """Height of each seed's picture in pixels."""
    width: int = 320
    """Width of each seed's picture in pixels."""

    def run(self) -> int:
        """Render in this process."""
        from fastr.export.play import check_film, film, watch

        require(self, "height", low=SMALLEST, high=TALLEST)
        require(self, "width", low=SMALLEST, high=WIDEST)
        if self.video is not None:
            check_film(self.video)
        if self.seeds:
            require_seeds(self.seeds)
        trained = opened(self.run_directory)
        policies = [trained.with_seed(seed) for seed in self.seeds] or trained.every_seed()
        if self.video is None:
            watch(policies[0])
            return 0
        returns = film(self.video, policies, (self.height, self.width), self.overlay)
        print(f"{self.video}: one episode after {counted(trained.frames, 'frame')} of training")
        for one, total in zip(policies, returns, strict=True):
            print(f"  seed {one.seed}: return {total:.1f}")
        return 0


def opened(path: Path) -> Trained:
    """The first seed of a run at its newest sound checkpoint; damaged ones are named on stderr."""
    directory = RunDirectory.open(path)
    config = from_json(directory.config["train"])
    require_imported(config.task, path)
    checkpoint = directory.latest()
    for message in checkpoint.skipped:
        print(f"fastr: {message}", file=sys.stderr)
    return Trained.of(path, config, checkpoint)
