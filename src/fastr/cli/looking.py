"""fastr eval, play, info and bench: what a trained policy does, and what a run costs."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fastr.cli.show import Flag, Json, Maybe, Run, Several, print_json, print_table
from fastr.core import UserError, counted, require, require_seeds
from fastr.envs import require_imported
from fastr.runs.directory import RunDirectory
from fastr.training.config import TrainConfig, from_json
from fastr.training.progress import duration, say
from fastr.training.trained import Trained


@dataclass(frozen=True)
class Eval:
    """Play greedy episodes with every seed's policy at the newest checkpoint."""

    run_directory: Run
    episodes: int = 10
    """Episodes per seed."""
    json: Json = False

    def run(self) -> int:
        """Play the episodes in worker processes."""
        from fastr.export.play import greedy_returns, unseen_episodes

        require(self, "episodes", low=1)
        trained = opened(self.run_directory)
        config, episodes = trained.config, unseen_episodes(trained, self.episodes)
        returns = greedy_returns(trained.every_seed(), config.task, episodes)
        result = {
            "run": str(self.run_directory),
            "task": config.task,
            "method": config.method,
            "frames": trained.frames,
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
        sizes = f"{counted(trained.frames, 'frame')}, {counted(self.episodes, 'episode')}"
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
        from fastr.export.play import film, watch

        require(self, "height", low=64, high=1_080)
        require(self, "width", low=64, high=1_920)
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


@dataclass(frozen=True)
class Info:
    """Dimensions, parameters, multiply-adds and device memory of a run, before it is started."""

    config: TrainConfig
    coverage: Flag = False
    """Also measure how many directions of the next-state factor one batch can train, on transitions
    of a random policy (methods that rank next states)."""
    json: Json = False

    def run(self) -> int:
        """Count without allocating."""
        from fastr.envs import spec
        from fastr.training.cost import info

        result = info(self.config, spec(self.config.task, self.config.frame_skip))
        if self.coverage:
            from fastr.studies.probes import coverage_of

            result["coverage"] = [asdict(entry) for entry in coverage_of(self.config)]
        if self.json:
            return print_json(result)
        title = f"{result['task']}, {result['method']}, preset {result['preset']}"
        rows = [(words(name), f"{n:,}") for name, n in result["parameters"].items()]
        rows.append(("all online networks", f"{result['parameters_total']:,}"))
        if kept := result["parameters_kept"]:
            share = kept / result["parameters_total"]
            rows.append(("of these kept fixed", f"{kept:,} ({share:.0%})"))
        print_table(title, ("network", "parameters"), rows)
        memory = {
            f"device memory per seed: {words(part)}": size
            for part, size in result["device_bytes_per_seed"].items()
        }
        seeds = counted(result["seeds"], "seed")
        memory[f"device memory, {seeds}"] = result["device_bytes_total"]
        facts = [
            ("state and action dimensions", f"{result['state_dim']}, {result['action_dim']}"),
            ("agent steps, updates", f"{result['agent_steps']:,}, {result['updates']:,}"),
            ("transitions per update and seed", f"{result['batch_size']:,}"),
            ("multiply-adds per update and seed", f"{result['multiply_adds_per_update']:,}"),
            *((name, f"{size / 2**20:,.0f} MiB") for name, size in memory.items()),
        ]
        print_table("", ("", ""), facts)
        if self.coverage:
            print_table(
                "directions of the next-state factor that one batch can train",
                ("batch N", "dim M", "min(N, dim M)", "rank", "for 99 % of the gradient"),
                [tuple(entry.values())[1:] for entry in result["coverage"]],
            )
        return 0


@dataclass(frozen=True)
class Bench:
    """Time the joint update of all seeds and the training loop, against this machine's best."""

    config: TrainConfig
    updates: int = 20
    """Updates per repeat."""
    repeats: int = 5
    """Repeats; the median is reported."""
    json: Json = False

    def run(self) -> int:
        """Compile, warm up, measure."""
        from fastr.envs import ending_spec
        from fastr.training.bench import bench

        require(self, "updates", "repeats", low=1)
        sizes = ending_spec(self.config.task, self.config.frame_skip)
        result = bench(self.config, sizes, updates=self.updates, repeats=self.repeats)
        if self.json:
            return print_json(result)
        facts = [
            (words(name), f"{value:,.3f}" if isinstance(value, float) else f"{value}")
            for name, value in result.items()
            if not isinstance(value, list | dict)
        ]
        print_table("fastr bench", ("", ""), facts)
        for name, times in result.items():
            if isinstance(times, dict):
                rows = [(part, f"{value:.3f}") for part, value in times.items()]
                print_table(words(name), ("part", "milliseconds"), rows)
        return 0


def words(name: str) -> str:
    """A name in a result, for people."""
    return name.replace("_", " ")


def opened(path: Path) -> Trained:
    """The first seed of a run at its newest sound checkpoint; damaged ones are named on stderr."""
    directory = RunDirectory.open(path)
    config = from_json(directory.config["train"])
    require_imported(config.task, path)
    checkpoint = directory.latest()
    for message in checkpoint.skipped:
        print(f"fastr: {message}", file=sys.stderr)
    return Trained.of(path, config, checkpoint)


@dataclass(frozen=True)
class Race:
    """Train fastr and other packages in turns, one core each; compare returns at equal times.

    Other packages need `pip install 'fastr-rl[race]'`.
    """

    tasks: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TASKS")]
    """Tasks of the DM Control Suite."""
    against: Several[str] = ("sbx-crossq", "sbx-sac", "sb3-sac", "td3")
    """Others than fastr: sbx-crossq, sbx-sac, sbx-td3, sb3-sac, sb3-td3, or methods of fastr."""
    seeds: Several[int] = (0, 1, 2, 3, 4)
    """Seeds of every program on every task."""
    marks: Several[int] = (60, 120, 300, 600)
    """Processor seconds at which returns are compared; the last one ends a training."""
    out: Path = Path("race")
    """Directory for laps.csv, standings and figures; the same command goes on where it ended."""
    json: Json = False

    def run(self) -> int:
        """Race, then write the standings."""
        from fastr.studies.race import entered, race, require_installed, write_results

        require_seeds(self.seeds)
        if not self.tasks or min(self.marks) < 1:
            raise UserError("fastr bench race needs tasks, and --marks of at least one second.")
        programs = tuple(dict.fromkeys(("fastr", *self.against)))
        for program in programs:
            require_installed(program)
        trainings = len(entered(self.tasks, programs, self.seeds))
        seconds = float(trainings * max(self.marks))
        say(f"{trainings} trainings, {duration(seconds)} of processor time without evaluations")
        laps = race(self.tasks, programs, self.seeds, self.marks, self.out, say)
        table = write_results(laps, self.marks, self.out)
        if self.json:
            return print_json({"marks": self.marks, "laps": [lap._asdict() for lap in laps]})
        rows = [tuple(one.text for one in row) for row in table.cells]
        print_table(table.title, tuple(table.columns), rows)
        print(f"results in {self.out}")
        return 0
