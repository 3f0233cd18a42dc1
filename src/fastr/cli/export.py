"""fastr export: a trained policy as files that run without fastr."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from fastr.cli.looking import MOST_EPISODES, opened
from fastr.cli.show import Flag, Maybe, Run, print_json
from fastr.core import counted, require, write_errors
from fastr.runs import RunDirectory, made, refuse_used
from fastr.training.trained import Trained

CARD = "MODEL_CARD.md"
LOADER = "numpy_policy.py"


@dataclass(frozen=True)
class Export:
    """Write a trained, deterministic policy with its observation statistics and action scaling.

    The files need neither fastr nor JAX: ONNX runs in onnxruntime, safetensors with NumPy alone.
    MODEL_CARD.md beside them says what the policy is, how good, and how to call it.
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
        from fastr.export.agreement import check_agreement, require_onnx, visited_states
        from fastr.export.facts import policy_facts

        require(self, "episodes", low=0, high=MOST_EPISODES)
        if self.format == "onnx":
            require_onnx()
        refuse_used(self.out)
        trained = opened(self.run_directory)
        if self.seed is not None:
            trained = trained.with_seed(self.seed)
        facts = policy_facts(trained, RunDirectory.open(self.run_directory), self.license)
        file = self.out / f"policy.{self.format}"
        content, act = self.built(trained, facts)
        difference = check_agreement(act, trained, visited_states(trained), file)
        # Before episodes are played for something that cannot be written.
        with made(self.out):
            if self.episodes:
                facts["evaluation"] = evaluated(trained, self.episodes)
                content, _ = self.built(trained, facts)
            self.write(file, content, facts)
        return self.report(file, facts, difference)

    def built(self, trained: Trained, facts: dict[str, Any]) -> tuple[bytes, Any]:
        """The file's content, and what it does to observations."""
        from fastr.export.agreement import onnx_actions, safetensors_actions
        from fastr.export.facts import action_bounds
        from fastr.export.program import Program
        from fastr.export.safetensors_file import safetensors_bytes

        program = Program.of(trained.policy, action_bounds(facts))
        if self.format == "safetensors":
            content = safetensors_bytes(program, facts)
            return content, safetensors_actions(content)
        from fastr.export.onnx_file import onnx_bytes

        content = onnx_bytes(program, trained.spec, facts)
        return content, onnx_actions(content)

    def write(self, file: Path, content: bytes, facts: dict[str, Any]) -> None:
        """The policy, what runs it, and the card."""
        from fastr.export.card import model_card

        contents = {file.name: content}
        if self.format == "safetensors":
            contents[LOADER] = (files("fastr.export") / LOADER).read_bytes()
        contents[CARD] = model_card(facts, tuple(contents)).encode()
        with write_errors(self.out):
            try:
                for name, data in contents.items():
                    (self.out / name).write_bytes(data)
            except OSError:
                # All or nothing: the directory must be empty for the next try.
                for name in contents:
                    (self.out / name).unlink(missing_ok=True)
                raise

    def report(self, file: Path, facts: dict[str, Any], difference: float) -> int:
        """Say what was written and how it was checked."""
        if self.json:
            return print_json({"out": str(self.out), "largest_difference": difference, **facts})
        print(f"policy      {file}")
        print(f"model card  {self.out / CARD}")
        print(f"actions equal the policy's in JAX to {difference:.1g} (in [-1, 1])")
        if played := facts.get("evaluation"):
            spread = f"{played['return_mean']:.1f} +- {played['return_std']:.1f}"
            print(
                f"return {spread} over {counted(self.episodes, 'episode')} of seed {facts['seed']}"
            )
        return 0


def evaluated(trained: Trained, count: int) -> dict[str, Any]:
    """Greedy episodes that training has not been evaluated on."""
    from fastr.export.facts import returns_facts
    from fastr.export.play import greedy_returns, unseen_episodes

    episodes = unseen_episodes(trained, count)
    returns = greedy_returns([trained], trained.config.task, episodes)
    return returns_facts(returns[0], trained.seed, episodes)
