"""fastr eval and fastr play: what a trained policy does."""

import sys
from dataclasses import dataclass
from pathlib import Path

from fastr.commands.show import Flag, Run, print_json, print_table
from fastr.config import TrainConfig, from_json
from fastr.errors import UserError


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
        from fastr.evaluate import Evaluator, evaluation_workers

        if self.episodes < 1:
            raise UserError(f"--episodes is {self.episodes}; it must be at least 1.")
        config, frames, policies = trained(self.run_directory)
        workers = evaluation_workers(len(config.seeds), self.episodes)
        with Evaluator(config.task, config.frame_skip, config.agent, workers=workers) as evaluator:
            # Episodes that training has not been evaluated on.
            first = config.evaluations * config.eval_episodes
            episodes = range(first, first + self.episodes)
            returns = evaluator.submit(policies, config.seeds, episodes).returns()
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
        rows = [(e["seed"], e["return_mean"], e["return_std"]) for e in result["seeds"]]
        title = f"{config.task}, {config.method}, {frames:,} frames, {self.episodes} episodes"
        print_table(title, columns, [*rows, ("all", result["return_mean"], "")])
        return 0


@dataclass(frozen=True)
class Play:
    """Film one greedy episode of a trained policy."""

    run_directory: Run
    """The run's directory."""
    video: Path
    """File to write; its ending chooses the format (mp4)."""
    seed: int | None = None
    """The seed whose policy is shown (default: the run's first)."""
    height: int = 240
    """Picture height in pixels."""
    width: int = 320
    """Picture width in pixels."""

    def run(self) -> int:
        """Render in this process."""
        from fastr.play import film

        config, frames, policies = trained(self.run_directory)
        seed = config.seeds[0] if self.seed is None else self.seed
        if seed not in config.seeds:
            raise UserError(f"--seed {seed} is not in this run; it has {list(config.seeds)}.")
        leaves = policies[config.seeds.index(seed)]
        total = film(config, leaves, seed, self.video, (self.height, self.width))
        print(f"{self.video}: seed {seed} after {frames:,} frames, return {total:.1f}")
        return 0


def trained(path: Path) -> tuple[TrainConfig, int, list]:
    """A run's configuration, the frames of its newest checkpoint, and its seeds' policies."""
    from fastr.play import trained_policies
    from fastr.runs import RunDirectory

    directory = RunDirectory.open(path)
    config = from_json(directory.config["train"])
    checkpoint = directory.latest()
    for message in checkpoint.skipped:
        print(f"fastr: {message}", file=sys.stderr)
    return config, checkpoint.frames, trained_policies(config, checkpoint)
