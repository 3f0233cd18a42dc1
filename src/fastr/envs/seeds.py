"""The seed of every episode, so that training and evaluation never play the same one."""

from typing import Literal

import numpy as np

_STREAMS = ("train", "evaluate")


def episode_seed(seed: int, episode: int, stream: Literal["train", "evaluate"]) -> int:
    """32-bit seed of one episode: even in training, odd in evaluation, so the two never meet."""
    number = _STREAMS.index(stream)
    drawn = np.random.SeedSequence([seed, episode, number]).generate_state(1, np.uint32)
    return int(drawn[0]) // 2 * 2 + number
