"""fastr info and fastr bench: the cost of a run."""

from dataclasses import asdict, dataclass

from fastr.cli.show import Flag, mib, print_json, print_table
from fastr.core import counted, require
from fastr.training.config import TrainConfig

MOST_UPDATES, MOST_REPEATS = 1_000_000, 10_000
"""Limits of one measurement."""


@dataclass(frozen=True)
class Info:
    """Dimensions, parameters, multiply-adds and device memory of a run, before it is started."""

    config: TrainConfig
    coverage: Flag = False
    """Also measure how many directions of the next-state factor one batch can train, on transitions
    of a random policy (methods that rank next states)."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Count without allocating."""
        from fastr.envs import spec
        from fastr.training.cost import info

        result = info(self.config, spec(self.config.task, self.config.frame_skip))
        if self.coverage:
            from fastr.studies.coverage import coverage_of

            result["coverage"] = [asdict(entry) for entry in coverage_of(self.config)]
        if self.json:
            return print_json(result)
        title = f"{result['task']}, {result['method']}, preset {result['preset']}"
        rows = [(name.replace("_", " "), f"{n:,}") for name, n in result["parameters"].items()]
        rows.append(("all online networks", f"{result['parameters_total']:,}"))
        if kept := result["parameters_kept"]:
            share = kept / result["parameters_total"]
            rows.append(("of these kept fixed", f"{kept:,} ({share:.0%})"))
        print_table(title, ("network", "parameters"), rows)
        memory = result["device_bytes_per_seed"]
        facts = [
            ("state and action dimensions", f"{result['state_dim']}, {result['action_dim']}"),
            ("agent steps, updates", f"{result['agent_steps']:,}, {result['updates']:,}"),
            ("multiply-adds per update and seed", f"{result['multiply_adds_per_update']:,}"),
            *(
                (f"device memory per seed: {k.replace('_', ' ')}", mib(v))
                for k, v in memory.items()
            ),
            (
                f"device memory, {counted(result['seeds'], 'seed')}",
                mib(result["device_bytes_total"]),
            ),
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
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Compile, warm up, measure."""
        from fastr.envs import ending_spec
        from fastr.training.bench import bench

        require(self, "updates", low=1, high=MOST_UPDATES)
        require(self, "repeats", low=1, high=MOST_REPEATS)
        sizes = ending_spec(self.config.task, self.config.frame_skip)
        result = bench(self.config, sizes, updates=self.updates, repeats=self.repeats)
        if self.json:
            return print_json(result)
        facts = [
            (name.replace("_", " "), f"{value:,.3f}" if isinstance(value, float) else f"{value}")
            for name, value in result.items()
            if not isinstance(value, list | dict)
        ]
        print_table("fastr bench", ("", ""), facts)
        for name, times in result.items():
            if isinstance(times, dict):
                rows = [(part, f"{value:.3f}") for part, value in times.items()]
                print_table(name.replace("_", " "), ("part", "milliseconds"), rows)
        return 0
