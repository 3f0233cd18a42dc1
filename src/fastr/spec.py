"""What an agent may know of its environment."""

from dataclasses import dataclass

from fastr.plurals import counted


@dataclass(frozen=True)
class EnvSpec:
    """Sizes of one environment's state and action vectors; actions lie in [-1, 1]."""

    state_dim: int
    action_dim: int

    @property
    def in_words(self) -> str:
        """The sizes, for a sentence."""
        entries = counted(self.state_dim, "observation entry", "observation entries")
        return f"{entries} and {counted(self.action_dim, 'actuator')}"

    @property
    def packed_dim(self) -> int:
        """Numbers in one packed transition without reward: state, action, next state."""
        return 2 * self.state_dim + self.action_dim

    @property
    def row_dim(self) -> int:
        """Numbers in one packed transition: state, action, next state, reward, continues."""
        return self.packed_dim + 2
