"""fastr info and fastr bench: what a run takes."""

from dataclasses import asdict, dataclass

from fastr.cli.show import Flag, mib, print_json, print_table
from fastr.core import counted, require
from fastr.training.config import TrainConfig

MOST_UPDATES, MOST_REPEATS = 1_000_000, 10_000
"""Of one measurement: days of it tell no more than minutes."""


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
    """Time all seeds' update and the loop around it, beside what this machine could do at best."""

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
        stages = result["stage_milliseconds_per_agent_step"]
        print_table(
            "Stages, each by itself; the update overlaps them, the last two run beside it",
            ("stage", "ms per agent step"),
            [(name, f"{value:.3f}") for name, value in stages.items()],
        )
        print_table(
            "The host of the training loop",
            ("part", "ms per agent step"),
            [
                (name, f"{value:.3f}")
                for name, value in result["loop_host_milliseconds_per_agent_step"].items()
            ],
        )
        print(
            f"training loop: {result['loop_milliseconds_per_agent_step']:.2f} ms per agent step, "
            f"{result['loop_share_beside_an_evaluation']:.0%} of them beside an evaluation, "
            f"{result['loop_rate_over_update_rate']:.0%} of the update's own rate"
        )
        arithmetic, memory = (
            result[f"{kind}_floor_milliseconds"] for kind in ("arithmetic", "memory")
        )
        print(
            f"roofline: {result['milliseconds_per_joint_update']:.2f} ms measured, "
            f"{result['measured_over_floor']:.1f} times the higher of {arithmetic:.2f} ms "
            f"(arithmetic) and {memory:.2f} ms (memory) at this machine's measured best"
        )
        return 0
