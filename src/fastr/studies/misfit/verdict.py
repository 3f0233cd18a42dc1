"""What the numbers mean for somebody who has to decide whether to train with the factorization.

The paper's two conditions (App. Empirical CP Misfit Diagnostic, "Two-condition pattern"): a gain
needs a small misfit and an action dimension that is not small. It saw no measurable gain at 6 or
fewer action dimensions, gains at 12 or more where the misfit was low, and has no task in between.
Where "low" ends is ours: the paper gives no number (docs/misfit.md).
"""

from dataclasses import dataclass
from typing import Literal

from fastr.core import EnvSpec, counted
from fastr.studies.misfit.intervals import Estimate

FEW_ACTIONS, MANY_ACTIONS = 6, 12
"""The paper's low- and high-dimensional tasks."""
SMALL, LARGE = 0.05, 0.15
"""Bounds on the lost share of what the joint predictor knows: ours."""
LEARNED = 0.05
"""Of ln(batch), or of the variance: less than this and the joint predictor knows nothing."""

Size = Literal["none", "small", "moderate", "large", "undecided", "unknown"]
Gain = Literal["likely", "unlikely", "no difference expected", "open"]


@dataclass(frozen=True)
class Evidence:
    """What a verdict is made from."""

    spec: EnvSpec
    still: tuple[int, ...]
    """Action coordinates that never vary."""
    nce: Estimate
    nce_known: float
    """What the joint predictor knows, in nats: ln(batch) less its test loss."""
    chance: float
    """ln(batch), the loss of knowing nothing."""
    moment: Estimate
    moment_known: float
    """The share of the variance of next-state features that the joint predictor explains."""
    seeds: int
    test_episodes: int
    still_falling: tuple[str, ...]
    """Predictors whose validation loss still fell at the end of training."""
    quick: bool


@dataclass(frozen=True)
class Verdict:
    """A judgement, its grounds in sentences, and how far to trust it."""

    nce_size: Size
    moment_size: Size
    gain: Gain
    sentences: tuple[str, ...]
    doubts: tuple[str, ...]


def verdict(evidence: Evidence) -> Verdict:
    """The judgement that the paper's two conditions give."""
    nce_size = size_of(evidence.nce, evidence.nce_known, LEARNED * evidence.chance)
    moment_size = size_of(evidence.moment, evidence.moment_known, LEARNED)
    gain = gain_of(nce_size, moment_size, evidence.spec)
    return Verdict(
        nce_size,
        moment_size,
        gain,
        (
            misfit_sentence(evidence, nce_size),
            moment_sentence(evidence, moment_size),
            dimension_sentence(evidence.spec),
            gain_sentence(gain, nce_size, moment_size, evidence.spec),
        ),
        tuple(doubts(evidence, nce_size, moment_size)),
    )


def size_of(estimate: Estimate, known: float, least: float) -> Size:
    """How large a misfit is, as a share of what the joint predictor knows."""
    if known < least:
        return "unknown"
    value, low, high = (part / known for part in (estimate.value, estimate.low, estimate.high))
    # An interval from below one bound to above the other says nothing either way.
    if low < SMALL and high > LARGE:
        return "undecided"
    if low <= 0 and high <= SMALL:
        return "none"
    if value < SMALL:
        return "small"
    return "moderate" if value < LARGE else "large"


def gain_of(nce_size: Size, moment_size: Size, spec: EnvSpec) -> Gain:
    """Both conditions together; the ranking loss decides, as it is what training minimises."""
    if nce_size in ("unknown", "undecided"):
        return "open"
    if nce_size == "large":
        return "unlikely"
    if not fits(nce_size, moment_size):
        return "open"
    if spec.action_dim <= FEW_ACTIONS:
        return "no difference expected"
    return "likely" if spec.action_dim >= MANY_ACTIONS else "open"


def fits(nce_size: Size, moment_size: Size) -> bool:
    """Whether neither misfit speaks against the factorization."""
    return nce_size in ("none", "small") and moment_size in ("none", "small")


def misfit_sentence(evidence: Evidence, size: Size) -> str:
    """The ranking misfit in words and numbers."""
    nce, known = evidence.nce, evidence.nce_known
    numbers = f"NCE misfit {nce.value:+.4f} nats (95% interval {nce.low:+.4f} to {nce.high:+.4f})"
    if size == "unknown":
        return (
            f"{numbers}, but the joint predictor itself knows only {known:.3f} of "
            f"{evidence.chance:.2f} nats about the next state: this data does not show what the "
            "actions do, or the training was too short."
        )
    share = f"{nce.value / known:+.1%} of the {known:.2f} nats that the joint predictor knows"
    return f"{numbers}: {named(nce, size)}, {share}."


def moment_sentence(evidence: Evidence, size: Size) -> str:
    """The moment misfit in words and numbers."""
    moment, known = evidence.moment, evidence.moment_known
    numbers = (
        f"Moment misfit {moment.value:+.4f} of the variance "
        f"(95% interval {moment.low:+.4f} to {moment.high:+.4f})"
    )
    if size == "unknown":
        return f"{numbers}, where the joint predictor explains {known:.1%}: too little to judge."
    return f"{numbers}: {named(moment, size)}, where the joint predictor explains {known:.1%}."


SIZED: dict[Size, str] = {
    "moderate": "a moderate",
    "large": "a large",
    "undecided": "an uncertain",
    "unknown": "an unknown",
}
"""What speaks against the factorization, before the name of the misfit."""
SIZES: dict[Size, str] = {
    "none": "no misfit to be seen",
    "small": "a small misfit",
    "moderate": "a moderate misfit",
    "large": "a large misfit",
    "undecided": "too uncertain to call small or large",
}


def named(estimate: Estimate, size: Size) -> str:
    """The size in words."""
    return "the factorization predicts better" if estimate.high < 0 else SIZES[size]


def dimension_sentence(spec: EnvSpec) -> str:
    """The second condition."""
    actions, smaller = spec.action_dim, min(spec.action_dim, spec.state_dim)
    theory = f"{counted(actions, 'action dimension')} (min(d_s, d_a) = {smaller})"
    if actions <= FEW_ACTIONS:
        return f"{theory}: the paper saw no measurable gain on tasks with {FEW_ACTIONS} or fewer."
    if actions >= MANY_ACTIONS:
        return f"{theory}: the paper's gains are on tasks with {MANY_ACTIONS} or more."
    return (
        f"{theory}: between the paper's tasks, which have at most {FEW_ACTIONS} or at least "
        f"{MANY_ACTIONS}."
    )


CONCLUSIONS: dict[Gain, str] = {
    "likely": "Both of the paper's conditions hold: a gain from the factorization is likely.",
    "unlikely": "The misfit is large: the bias of the factorization is likely to outweigh what it "
    "saves, so expect no gain over the joint representation.",
    "no difference expected": "The factorization fits, but with so few action dimensions it saves "
    "little: expect returns like those of the joint representation.",
}


def gain_sentence(gain: Gain, nce_size: Size, moment_size: Size, spec: EnvSpec) -> str:
    """The conclusion."""
    if gain != "open":
        return CONCLUSIONS[gain]
    if nce_size in ("unknown", "undecided"):
        return "The misfit is not known well enough to say whether a gain is likely."
    if fits(nce_size, moment_size):
        return "A gain is possible; the paper has no task with as many action dimensions."
    return doubtful_sentence(nce_size, moment_size, spec)


def doubtful_sentence(nce_size: Size, moment_size: Size, spec: EnvSpec) -> str:
    """The conclusion where one of the misfits speaks against the factorization."""
    odd = "moment misfit" if nce_size in ("none", "small") else "misfit"
    size = SIZED[moment_size if odd == "moment misfit" else nce_size]
    if spec.action_dim <= FEW_ACTIONS:
        return (
            f"Neither condition is clear of doubt: {size} {odd}, and few action dimensions to "
            "save on; a gain would be a surprise, a loss is possible."
        )
    if spec.action_dim < MANY_ACTIONS:
        return f"The action dimension is between the paper's tasks, and {size} {odd} is no help."
    return f"The action dimension is in favour, {size} {odd} is not: a gain is possible."


def doubts(evidence: Evidence, nce_size: Size, moment_size: Size) -> list[str]:
    """Reasons to trust the verdict less."""
    found = []
    if evidence.still:
        found.append(
            f"Of {evidence.spec.action_dim} action coordinates "
            f"{counted(len(evidence.still), 'never varies', 'never vary')} "
            f"(number {', '.join(map(str, evidence.still))}, from 0): what they do is not in this "
            "data."
        )
    if evidence.seeds < 3:
        found.append(
            f"Only {counted(evidence.seeds, 'training seed')}: how much training itself varies is "
            "hardly known; five are better."
        )
    if evidence.test_episodes < 10:
        few = counted(evidence.test_episodes, "test episode")
        found.append(f"Only {few}: the interval over episodes is rough.")
    for name in evidence.still_falling:
        found.append(f"The {name} predictor was still improving in the last epoch: train longer.")
    if evidence.quick:
        found.append(
            "Preset quick: smaller networks and fewer noise levels than the paper's, so that the "
            "numbers are not comparable with those of preset paper."
        )
    settled = {nce_size, moment_size} - {"undecided", "unknown"}
    if len(settled) == 2 and ("large" in settled or settled == {"none", "moderate"}):
        found.append("The two misfits disagree in size.")
    return found
