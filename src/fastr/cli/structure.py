"""fastr ablation and fastr coverage: what the interaction of the factors is worth."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fastr.agents.base import AgentConfig
from fastr.cli.show import Flag, Maybe, Several, Task, print_json, print_table, write_csv
from fastr.cli.training import rows_of_all
from fastr.core import Preset, UserError, require_seeds, write_errors
from fastr.envs.names import spelled
from fastr.representations.ranking import RankingConfig
from fastr.studies.experiments import CONDITIONS
from fastr.studies.units import slug
from fastr.training.config import METHODS, TrainConfig, grounded, on_this_device, preset

LARGEST_BATCH = 2**14
"""Of a coverage, which scores all pairs of a batch in float64: 2 GiB for each noise level."""


@dataclass(frozen=True)
class Ablation:
    """Train the paper's four interactions under one protocol: joint, concat, Tucker, CP.

    The same command goes on where it was stopped. OUT gets a run directory per method, the table
    (table.csv) and the learning curves (curves.png).
    """

    task: Task
    """DM Control Suite task, Gymnasium environment, or one of your own."""
    methods: tuple[str, ...] = CONDITIONS
    """Methods to compare; any that `fastr train --method` knows."""
    preset: Preset = "paper"
    """Sizes and budget: paper (the paper's) or quick (scaled down, learns in minutes on a CPU)."""
    seeds: Several[int] = ()
    """Seeds of every method (default: the preset's)."""
    frames: Maybe[int] = None
    """Budget of every method in frames, i.e. simulator steps (default: the preset's)."""
    out: Maybe[Path] = None
    """Directory for everything (default: runs/ablation-TASK)."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """One method after the other, then the table."""
        out = self.out or Path("runs") / f"ablation-{slug(spelled(self.task))}"
        configs = {method: self.config(method) for method in dict.fromkeys(self.methods)}
        return self.report(configs, rows_of_all(configs, out), out)

    def config(self, method: str) -> TrainConfig:
        """The run of one method."""
        config = preset(self.task, method, self.preset)
        seeds = self.seeds or config.seeds
        frames = config.frames if self.frames is None else self.frames
        return grounded(on_this_device(replace(config, seeds=seeds, frames=frames)))

    def report(self, configs: dict[str, TrainConfig], rows: dict[str, list], out: Path) -> int:
        """Table and curves of finished runs."""
        from fastr.report.plots import compared_curves
        from fastr.runs.summary import evaluations

        lines = [ablation_line(config, rows[method]) for method, config in configs.items()]
        write_csv(out / "table.csv", lines)
        curves = {
            method: [evaluations(rows[method], seed) for seed in config.seeds]
            for method, config in configs.items()
        }
        compared_curves(curves, f"{self.task}: interaction of the factors", out / "curves.png")
        if self.json:
            return print_json({"task": self.task, "out": str(out), "methods": lines})
        print_table(
            f"{self.task}, preset {self.preset}: return is the mean of the last evaluations, "
            "ten at most",
            ("method", "parameters", "multiply-adds", "NCE dim", "return", "std over seeds"),
            [
                (
                    line["method"],
                    f"{line['parameters']:,}",
                    f"{line['multiply_adds_per_update']:.3g}",
                    line["nce_dimension"] or "",
                    line["return_mean"],
                    line["return_std"] if line["seeds"] > 1 else "one seed",
                )
                for line in lines
            ],
        )
        print(f"table  {out / 'table.csv'}\ncurves {out / 'curves.png'}")
        return 0


def ablation_line(config: TrainConfig, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One method's sizes, work and returns."""
    from fastr.envs import spec
    from fastr.runs.summary import summary
    from fastr.training.count import multiply_adds, network_parameters

    sizes = spec(config.task, config.frame_skip)
    contrastive = ranking(config.agent)
    result = summary(rows, config.seeds)
    return {
        "method": config.method,
        "parameters": sum(network_parameters(config, sizes).values()),
        "multiply_adds_per_update": multiply_adds(config, sizes),
        "nce_dimension": contrastive.candidate_dim if contrastive else None,
        "frames": config.frames,
        "seeds": len(config.seeds),
        "return_mean": result["last_10_evaluations_return_mean"],
        "return_std": result["last_10_evaluations_return_std"],
        "training_seconds": result["seconds"],
    }


@dataclass(frozen=True)
class Coverage:
    """Count the directions of the next-state factor that one batch's gradient reaches.

    Networks are fresh, transitions those of a random policy. The rank is compared with
    min(batch size, dim M), the bound for a trilinear score (App. Ablation).
    """

    task: Task
    """DM Control Suite task, Gymnasium environment, or one of your own."""
    methods: tuple[str, ...] = (*CONDITIONS, "tucker-22", "block", "low-rank")
    """Methods to measure; those with a contrastive score."""
    batch_sizes: tuple[int, ...] = (128, 256, 512)
    """Transitions N in a batch."""
    preset: Preset = "paper"
    """Sizes of the networks: paper, or quick."""
    seed: int = 0
    """Seed of networks, transitions and noise."""
    out: Maybe[Path] = None
    """Directory for coverage.csv and coverage.png (default: neither is written)."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Measure one method after the other."""
        from rich.progress import track

        from fastr.studies.coverage import measure, random_rows, standardised

        require_seeds((self.seed,), "seed")
        configs = {method: self.representation(method) for method in self.methods}
        if min(self.batch_sizes) < 2:
            raise UserError("--batch-sizes must name sizes of at least 2: one has no negatives.")
        if (largest := max(self.batch_sizes)) > LARGEST_BATCH:
            raise UserError(f"--batch-sizes {largest} is too large; at most {LARGEST_BATCH:,}.")
        if self.out:
            # Before the work, not after it.
            with write_errors(self.out):
                self.out.mkdir(parents=True, exist_ok=True)
        frame_skip = preset(self.task, "fastr", self.preset).frame_skip
        count = max(self.batch_sizes)
        rows = standardised(random_rows(self.task, frame_skip, count, self.seed))
        found = []
        for method in track(configs, "measuring", transient=True, disable=self.json):
            found += measure(method, configs[method], rows, self.batch_sizes, self.seed)
        lines = [asdict(entry) for entry in found]
        if self.out:
            from fastr.report.plots import coverage_curves

            write_csv(self.out / "coverage.csv", lines)
            coverage_curves(lines, self.out / "coverage.png")
        if self.json:
            return print_json({"task": self.task, "seed": self.seed, "coverage": lines})
        print_table(
            f"{self.task}: directions of the next-state factor that one batch can move",
            ("method", "batch N", "dim M", "min(N, dim M)", "rank", "for 99 % of the gradient"),
            [tuple(line.values()) for line in lines],
        )
        return 0

    def representation(self, method: str) -> RankingConfig:
        """The representation of one method, if a ranking loss trains it."""
        config = grounded(preset(self.task, method, self.preset))
        if (representation := ranking(config.agent)) is None:
            known = [name for name, agent in METHODS.items() if ranking(agent)]
            raise UserError(
                f"--methods {method} ranks no next states, so it has no core to cover; "
                f"choose among {', '.join(known)}."
            )
        return representation


def ranking(agent: AgentConfig) -> RankingConfig | None:
    """The agent's contrastive representation, if it has one."""
    representation = getattr(agent, "representation", None)
    return representation if isinstance(representation, RankingConfig) else None
