"""What a scheduler asks of the place where commands run."""

import abc

from fastr.sweep.attempt import Attempt


class AbstractJob(abc.ABC):
    """An attempt that was handed over."""

    @abc.abstractmethod
    def running(self) -> bool:
        """Whether its process has begun; before that it waits for a place."""

    @abc.abstractmethod
    def exit_code(self) -> int | None:
        """How it ended, None as long as it has not; nothing of it is left then."""

    @abc.abstractmethod
    def problem(self) -> str:
        """What happened to it from outside, in words; empty if nothing did."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ask it to save and end."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End it at once."""


class AbstractEngine(abc.ABC):
    """Where commands run."""

    @abc.abstractmethod
    def has_room(self) -> bool:
        """Whether another attempt can be handed over now."""

    @abc.abstractmethod
    def start(self, attempt: Attempt) -> AbstractJob:
        """Hand over an attempt."""

    @abc.abstractmethod
    def places(self) -> str:
        """Where and how many at a time, in words."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give everything back; all jobs have ended."""
