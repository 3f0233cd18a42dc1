"""fastr export: a trained policy as files that run without fastr."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastr.cli.looking import MOST_EPISODES, opened
from fastr.cli.show import Flag, Maybe, Run, print_json
from fastr.core import counted, require
from fastr.runs import RunDirectory, made, refuse_used


@dataclass(frozen=True)
class Export:
    """Write a trained, deterministic policy with its observation statistics and action scaling.

    The files need neither fastr nor JAX: ONNX runs in onnxruntime, safetensors with NumPy alone.
    MODEL_CARD.md, in the same directory, says what the policy is, how good, and how to call it.
    """

    run_directory: Run
    """The run's directory."""
    out: Path
    """Directory to write: new, or empty."""
    format: Literal["onnx", "safetensors"] = "onnx"
    """onnx (needs fastr[onnx]) or safetensors (with a loader in NumPy)."""
    seed: Maybe[int] = None
    """The seed whose policy is exported (default: the run's first)."""
    episodes: int = 10
    """Greedy episodes to play for the card's return; 0: the one measured in training alone."""
    license: str = "not stated"
    """Terms under which the policy may be passed on, for the card: an SPDX name, say."""
    json: Flag = False
    """Print one JSON object on stdout and nothing else there."""

    def run(self) -> int:
        """Build, compare with the policy in JAX, play, write."""
        from fastr.export import export, play

        require(self, "episodes", low=0, high=MOST_EPISODES)
        if self.format == "onnx":
            export.require_onnx()
        refuse_used(self.out)
        trained = opened(self.run_directory)
        if self.seed is not None:
            trained = trained.with_seed(self.seed)
        facts = export.policy_facts(trained, RunDirectory.open(self.run_directory), self.license)
        content, act = export.built(trained, facts, self.format)
        name = f"policy.{self.format}"
        states = export.visited_states(trained)
        difference = export.check_agreement(act, trained, states, name)
        # Made before episodes are played for a policy that could then not be written.
        with made(self.out):
            if self.episodes:
                episodes = play.unseen_episodes(trained, self.episodes)
                returns = play.greedy_returns([trained], trained.config.task, episodes)
                facts["evaluation"] = export.returns_facts(returns[0], trained.seed, episodes)
                content, _ = export.built(trained, facts, self.format)
            export.write(self.out, self.format, content, facts)
        if self.json:
            return print_json({"out": str(self.out), "largest_difference": difference, **facts})
        print(f"policy      {self.out / name}")
        print(f"model card  {self.out / export.CARD}")
        print(f"actions equal the policy's in JAX to {difference:.1g} (in [-1, 1])")
        if played := facts.get("evaluation"):
            spread = f"{played['return_mean']:.1f} +- {played['return_std']:.1f}"
            print(
                f"return {spread} over {counted(self.episodes, 'episode')} of seed {facts['seed']}"
            )
        return 0
