"""What a scheduler asks of the place where commands run."""

from typing import Protocol

from fastr.sweep.attempt import Attempt


class Job(Protocol):
    """An attempt that was handed over."""

    def running(self) -> bool:
        """Whether its process has begun; before that it waits for a place."""
        ...

    def exit_code(self) -> int | None:
        """How it ended, None as long as it has not; nothing of it is left then."""
        ...

    def problem(self) -> str:
        """What happened to it from outside, in words; empty if nothing did."""
        ...

    def stop(self) -> None:
        """Ask it to save and end."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class Engine(Protocol):
    """Where commands run."""

    def has_room(self) -> bool:
        """Whether another attempt can be handed over now."""
        ...

    def start(self, attempt: Attempt) -> Job:
        """Hand over an attempt."""
        ...

    def places(self) -> str:
        """Where and how many at a time, in words."""
        ...

    def close(self) -> None:
        """Give everything back; all jobs have ended."""
        ...
