"""Statistics over runs and tasks: by hand, against SciPy, and the same for the same seed."""

import math

import numpy as np
import pytest
import scipy.stats

from fastr.report.series import Origin, Series, finals, horizons
from fastr.report.stats import (
    LARGEST_RETURN,
    comparable,
    improvements,
    interval,
    iqm,
    middles,
    probability_of_improvement,
)

# Runs x tasks, as in rliable's tests, which give 1.5, 2 and 1/3 for these.
X = np.array([[1.0, 2.0], [2.0, 2.0], [1.0, 1.0], [2.0, 1.0]])
Y = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])


def tasks(matrix):
    return [np.ascontiguousarray(column) for column in matrix.T]


def stacked(matrix):
    return [column[None] for column in tasks(matrix)]


def series(task, method, values, frames=(0, 10, 20)):
    """One curve per seed; values[seed][evaluation]."""
    curves = {
        str(i): tuple(zip(frames, map(float, own), strict=True)) for i, own in enumerate(values)
    }
    return Series(task, method, curves, (Origin("here"),))


def numbers(*found):
    return finals(found)[0]


def test_rliables_numbers():
    assert iqm(stacked(X)) == pytest.approx(1.5)
    assert iqm(stacked(Y)) == pytest.approx(2.0)
    assert probability_of_improvement(stacked(X), stacked(Y)) == pytest.approx(1 / 3)


def test_improvement_is_the_mann_whitney_statistic_over_all_pairs():
    generator = np.random.default_rng(3)
    x, y = generator.integers(0, 5, size=(2, 7)).astype(float)
    u = scipy.stats.mannwhitneyu(x, y).statistic
    assert probability_of_improvement([x[None]], [y[None]]) == pytest.approx(u / 49)


def test_the_interval_is_that_of_every_resample_by_hand():
    """Two runs of one task, 0 and 1: the mean is 0, 0.5 or 1 with weights 1/4, 1/2, 1/4."""
    found = interval(iqm, [[np.array([0.0, 1.0])]], np.random.default_rng(0))
    assert found == (0.5, 0.0, 1.0)
    assert interval(iqm, [[np.array([3.0])]], np.random.default_rng(0)) == (3.0, None, None)


def test_methods_are_compared_where_all_of_them_were():
    """The third method ends at frame 10, so all three count up to there."""
    found = numbers(
        series("walker-walk", "fastr", [[0, 100, 900], [0, 200, 900]]),
        series("walker-walk", "ctrl-sr", [[0, 300, 0], [0, 400, 0]]),
        series("walker-walk", "td3", [[0, 50], [0, 60]], frames=(0, 10)),
    )
    assert horizons(found) == {"walker-walk": 10}
    ((fastr, ctrl, td3),) = middles(found, 0)
    means = np.array([[50, 100], [150, 200], [25, 30]]).mean(axis=1) / LARGEST_RETURN
    assert [m.score.value for m in (fastr, ctrl, td3)] == pytest.approx(means)
    # Two that reached frame 20 are compared there.
    first, second = improvements(found, 0)
    assert (first.first, first.second, first.probability.value) == ("FaStR", "CTRL-SR", 1.0)
    assert (second.first, second.second, second.probability.value) == ("FaStR", "TD3", 1.0)


def test_interquartile_means_share_their_tasks():
    """One method lacks a task: all are compared without it, the others with it as well."""
    one = [[0, 0, 100]] * 2
    found, _ = comparable(
        numbers(
            series("walker-walk", "fastr", one),
            series("dog-run", "fastr", one),
            series("walker-walk", "td3", one),
            series("dog-run", "td3", one),
            series("dog-run", "sac", one),
            series("gym:Pendulum-v1", "sac", one),
            series("dog-run@latency=2", "sac", one),
        )
    )
    panels = {panel[0].tasks: [middle.label for middle in panel] for panel in middles(found, 0)}
    assert panels == {
        ("dog-run", "walker-walk"): ["FaStR", "TD3"],
        ("dog-run",): ["FaStR", "SAC (3-layer)", "TD3"],
    }


@pytest.mark.parametrize(
    ("task", "counts"),
    [
        ("humanoid_CMU-run", True),
        ("gym:Pendulum-v1", False),
        ("dog-run@latency=2", False),
        ("lqr-lqr_2_1", False),
    ],
)
def test_only_returns_between_0_and_1000_are_averaged_over_tasks(task, counts):
    kept, left_out = comparable(numbers(series(task, "fastr", [[0, 0, 100]])))
    assert [final.task for final in kept] == ([task] if counts else [])
    assert left_out == []


def test_runs_too_short_or_too_late_to_compare_are_left_out():
    found = numbers(
        series("walker-walk", "td7", [[0]], frames=(0,)),
        series("walker-walk", "fastr", [[0, 1, 2]] * 2, frames=(0, 10, 20)),
        series("walker-walk", "td3", [[0, 1, 1]] * 2, frames=(0, 10, 20)),
        series("walker-walk", "sac", [[3]] * 2, frames=(30,)),
    )
    kept, left_out = comparable(found)
    assert {final.label for final in left_out} == {"SAC (3-layer)", "TD7"}
    (panel,) = middles(kept, 0)
    assert all(math.isfinite(number) for middle in panel for number in middle.score)
    assert [(one.first, one.second) for one in improvements(kept, 0)] == [("FaStR", "TD3")]


def test_scores_are_means_of_the_last_ten_with_population_deviation():
    frames = tuple(range(12))
    rising, flat = [float(i) for i in range(12)], [4.0] * 12
    (final,) = numbers(series("walker-walk", "fastr", [rising, flat], frames))
    assert final.scores().tolist() == [np.mean(rising[2:]), 4.0]
    assert final.mean == pytest.approx((6.5 + 4.0) / 2)
    assert final.std == pytest.approx(math.sqrt(((6.5 - 5.25) ** 2 + (4 - 5.25) ** 2) / 2))
    assert final.notes == ()
