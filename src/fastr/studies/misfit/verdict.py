"""Intervals of the misfits, and what they mean for the choice of a method.

The paper's two conditions (App. Empirical CP Misfit Diagnostic, "Two-condition pattern"): a gain
needs a small misfit and many action dimensions. The paper saw no measurable gain with 6 or fewer,
gains with 12 or more where the misfit was low, and has no task in between. It gives no number for
"low": the bounds here are ours (docs/misfit.md).
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from fastr.core import counted

LEVEL = 0.95
"""Of every interval."""
FEW_ACTIONS, MANY_ACTIONS = 6, 12
"""Largest and smallest action dimension of the paper's low- and high-dimensional tasks."""
SMALL, LARGE = 0.05, 0.15
"""Bounds of the misfit as a share of what the joint predictor knows (ours)."""
LEARNED = 0.05
"""Share of ln(batch), or of the variance, below which the joint predictor knows too little."""

Size = Literal["none", "small", "moderate", "large", "undecided", "unknown"]
Actions = Literal["few", "between", "many"]
Gain = Literal["likely", "unlikely", "no difference expected", "open"]


def estimate(
    differences: Float[np.ndarray, "seed rows"],
    episodes: Int[np.ndarray, " rows"],
    resamples: int,
    generator: np.random.Generator,
) -> dict[str, Any]:
    """The mean over rows and seeds, with bootstrap intervals, by name.

    Resamples whole episodes, because the rows of one are not independent (`episodes_low` and
    `episodes_high`), and then seeds (`low`, `high`), whose deviations are widened by `spread`.
    `seeds_std` has ddof 1; None for a single seed.
    """
    sums, counts = by_episode(differences, episodes)
    seeds = len(differences)
    over_episodes = np.empty(resamples)
    over_both = np.empty(resamples)
    for i in range(resamples):
        chosen = generator.integers(len(counts), size=len(counts))
        means = sums[:, chosen].sum(axis=1) / counts[chosen].sum()
        over_episodes[i] = over_both[i] = means.mean()
        if seeds > 1:
            again = means[generator.integers(seeds, size=seeds)].mean()
            over_both[i] += spread(seeds) * (again - means.mean())
    per_seed = sums.sum(axis=1) / counts.sum()
    ends = [50 * (1 - LEVEL), 50 * (1 + LEVEL)]
    found: dict[str, Any] = {"value": float(per_seed.mean())}
    found["low"], found["high"] = np.percentile(over_both, ends).tolist()
    found["episodes_low"], found["episodes_high"] = np.percentile(over_episodes, ends).tolist()
    return found | {"seeds_std": float(per_seed.std(ddof=1)) if seeds > 1 else None}


def spread(seeds: int) -> float:
    """sqrt(n / (n - 1)) t_{n-1} / z: makes a bootstrap over n seeds as wide as Student's interval.

    The root restores the variance that a bootstrap of n values leaves out.
    """
    probability = (1 + LEVEL) / 2
    quantile = stats.t.ppf(probability, seeds - 1) / stats.norm.ppf(probability)
    return float(np.sqrt(seeds / (seeds - 1)) * quantile)


def by_episode(
    values: Float[np.ndarray, "*lead rows"], episodes: Int[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "*lead episode"], Int[np.ndarray, " episode"]]:
    """Sums of the values of each episode, and its number of rows."""
    _, places, counts = np.unique(episodes, return_inverse=True, return_counts=True)
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    sums = np.stack([np.bincount(places, weights=row, minlength=len(counts)) for row in flat])
    return sums.reshape(*values.shape[:-1], len(counts)), counts


Conclusion = tuple[Gain, str, str]
"""Gain, sentence, and next step, where TASK stands for the dataset's task."""
FASTR = "train with the factorization: `fastr train TASK --method fastr`."
JOINT = "train with the joint representation: `fastr train TASK --method ctrl-sr`."
BOTH = (
    "train with both `fastr train TASK --method fastr` and `--method ctrl-sr`, then compare the "
    "runs with `fastr report`."
)
BY_SIZE: dict[Size, Conclusion] = {
    "unknown": (
        "open",
        "The joint predictor learned too little to compare with: either the data does not show "
        "the effect of the actions, or the training was too short.",
        "run `fastr misfit` with more --epochs, or collect data with more varied actions.",
    ),
    "undecided": (
        "open",
        "The interval is too wide to tell a small misfit from a large one.",
        "run `fastr misfit` with more episodes and more --seeds.",
    ),
    "large": ("unlikely", "The misfit is large: expect no gain over the joint one.", JOINT),
}
"""By the ranking loss's misfit alone, because training minimises it."""
FITS: dict[Actions, Conclusion] = {
    "few": (
        "no difference expected",
        "The factorization fits, but with few action dimensions it saves little.",
        "train with either `fastr train TASK --method fastr` or `--method ctrl-sr`.",
    ),
    "between": ("open", "The factorization fits; the paper has no task of this size.", BOTH),
    "many": ("likely", "The factorization fits and there are many action dimensions.", FASTR),
}
"""Where both misfits are none or small."""
MAY_NOT_FIT: dict[Actions, Conclusion] = {
    "few": ("open", "The misfit may matter, and few action dimensions gain little.", JOINT),
    "between": ("open", "The misfit may matter; the paper has no task of this size.", BOTH),
    "many": ("open", "The misfit may matter, but many action dimensions can gain much.", BOTH),
}
ACTIONS: dict[Actions, str] = {
    "few": f"the paper saw no measurable gain on tasks with {FEW_ACTIONS} or fewer",
    "between": f"the paper's tasks have at most {FEW_ACTIONS} or at least {MANY_ACTIONS}",
    "many": f"the paper's gains are on tasks with {MANY_ACTIONS} or more",
}


def verdict(
    entry: Mapping[str, Any],
    *,
    constant_actions: Sequence[int],
    still_falling: Sequence[str],
    laptop: bool,
) -> dict[str, Any]:
    """What a dataset's numbers say about the gain of the factorization, and reasons for doubt.

    `entry` is that of the report. `constant_actions` are the action coordinates that never vary,
    `still_falling` the predictors whose validation loss still fell at the end of training. The
    sentences are on both misfits, the action dimension, and last the conclusion.
    """
    chance, losses, action_dim = entry["chance_nce"], entry["test_losses"], entry["action_dim"]
    # In nats, and as a share of the variance of next-state features.
    known, explained = chance - losses["joint_nce"], 1.0 - losses["joint_moment"]
    nce = size_of(entry["nce_misfit"], known, LEARNED * chance)
    moment = size_of(entry["moment_misfit"], explained, LEARNED)
    few, many = action_dim <= FEW_ACTIONS, action_dim >= MANY_ACTIONS
    actions: Actions = "few" if few else "many" if many else "between"
    by_actions = FITS if {nce, moment} <= {"none", "small"} else MAY_NOT_FIT
    gain, conclusion, next_step = BY_SIZE.get(nce, by_actions[actions])
    sentences = [
        f"NCE misfit {_in_words(entry['nce_misfit'], nce, 'nats')}; the joint predictor knows "
        f"{known:.2f} of {chance:.2f} nats.",
        f"Moment misfit {_in_words(entry['moment_misfit'], moment, 'of the variance')}; the joint "
        f"predictor explains {explained:.1%}.",
        f"{counted(action_dim, 'action dimension')}: {ACTIONS[actions]}.",
        conclusion,
    ]
    seeds, episodes = len(entry["seeds"]), entry["split"]["test"]["episodes"]
    settled = {nce, moment} - {"undecided", "unknown"}
    doubts = {
        f"{counted(len(constant_actions), 'action coordinate')} of {action_dim} never vary "
        f"(counted from 0: {', '.join(map(str, constant_actions))}): the data does not show their "
        "effect.": bool(constant_actions),
        f"Only {counted(seeds, 'training seed')}: the variation of training is hardly known; use "
        "five.": seeds < 3,
        f"Only {counted(episodes, 'test episode')}: the interval is rough.": episodes < 10,
        **{
            f"The {name} predictor was still improving: train with more --epochs.": True
            for name in still_falling
        },
        "Preset laptop: the numbers are not comparable with those of preset paper.": laptop,
        "The two misfits disagree in size.": (
            len(settled) == 2 and ("large" in settled or settled == {"none", "moderate"})
        ),
    }
    task = shlex.quote(entry["task"]) if entry["task"] else "TASK"
    return {
        "nce_size": nce,
        "moment_size": moment,
        "gain": gain,
        "sentences": sentences,
        "doubts": [doubt for doubt, applies in doubts.items() if applies],
        "next_step": next_step.replace("TASK", task),
    }


def size_of(misfit: Mapping[str, Any], known: float, least: float) -> Size:
    """The size of a misfit as a share of what the joint predictor knows."""
    if known < least:
        return "unknown"
    value, low, high = (misfit[end] / known for end in ("value", "low", "high"))
    # An interval from below one bound to above the other contradicts nothing.
    if low < SMALL and high > LARGE:
        return "undecided"
    if low <= 0 and high <= SMALL:
        return "none"
    if value < SMALL:
        return "small"
    return "moderate" if value < LARGE else "large"


def _in_words(misfit: Mapping[str, Any], size: Size, unit: str) -> str:
    better = misfit["high"] < 0 and size != "unknown"
    words = "the factorization predicts better" if better else f"size {size}"
    interval = f"95% interval {misfit['low']:+.4f} to {misfit['high']:+.4f}"
    return f"{misfit['value']:+.4f} {unit} ({interval}): {words}"
