"""How long this process has waited for others, without the time when all of them were paused.

Ctrl-Z pauses a training together with its simulators. Whoever counted that time would take them to
be stuck as soon as they go on.
"""

import time

# Of the patience, what may pass between two looks at the clock; what is longer was a pause.
_SHARE = 0.2
_LOOK_SECONDS = 1.0


class Wait:
    """A wait under way: between two looks at it no more passes than a share of the patience."""

    def __init__(self, patience_seconds: float):
        self.patience_seconds = patience_seconds
        self.look_seconds = min(_LOOK_SECONDS, _SHARE / 2 * patience_seconds)
        """How long to wait for something before the next look."""
        self._longest = _SHARE * patience_seconds
        self._waited, self._looked = 0.0, time.monotonic()

    def seconds(self) -> float:
        """Look: the time waited so far, as far as this process ran."""
        now = time.monotonic()
        self._waited += min(now - self._looked, self._longest)
        self._looked = now
        return self._waited
