"""The studies at small sizes, and `fastr theory` from the command line to its page."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fastr.cli import run
from fastr.studies.theory import (
    certificates,
    exploration,
    linearity,
    log_interval,
    separation,
)
from fastr.studies.theory.certificates import Problem
from fastr.studies.theory.exploration import Explore
from fastr.studies.theory.fits import KINDS, Descent
from fastr.studies.theory.mdp import cosines, waves
from fastr.studies.theory.separation import Sieve


def checked(section):
    """The section, if its curves are of finite numbers and its rows fit their columns."""
    for figure in section.figures:
        assert np.isfinite([cell for _, *row in figure.numbers.rows for cell in row if cell]).all()
    for table in section.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    return section


def test_linearity_holds_throughout():
    section = checked(linearity.Study((0, 1), policies=10).run())
    assert all(verdict.holds for verdict in section.verdicts)


def test_density_and_log_ratio_differ():
    descent = Descent(steps=300, starts=4)
    study = linearity.RatioStudy((0, 1), states=12, actions=10, counts=(8, 80), descent=descent)
    section = checked(study.run())
    rows = {row[:2]: float(row[-1].split()[0]) for row in section.tables[0].rows}
    spectral, ranked, fourier = (linearity.LABELS[n] for n in ("l2", "ranking", "ranking fourier"))
    assert rows[linearity.CP, spectral] < 0.01 < rows[linearity.CP, ranked]
    assert rows[linearity.ENERGY, ranked] > 0.3
    assert rows[linearity.ENERGY, fourier] < 0.3 * rows[linearity.ENERGY, ranked]


def test_no_feature_beats_the_best_of_its_size():
    generator = np.random.default_rng(0)
    kernel = generator.dirichlet(np.ones(6), size=(8, 5))
    centred = (kernel - kernel.mean((0, 1))).reshape(40, 6)
    best = linearity.best_residual(kernel, 2)
    for _ in range(200):
        basis = np.linalg.qr(centred @ generator.normal(size=(6, 2)))[0]
        left = centred - basis @ (basis.T @ centred)
        assert np.linalg.norm(left) / np.linalg.norm(centred) >= best
    assert linearity.best_residual(kernel, 5) < 1e-12


def test_certificates_are_ordered_with_norms_of_one_and_vacuous():
    section = checked(certificates.Study((0,), classes=3).run())
    assert [verdict.holds for verdict in section.verdicts] == [True, True, True, False]
    _, _, ordered, vacuous = section.verdicts
    assert ordered.measured.startswith("for 10 of 10 tasks")
    assert ordered.measured.endswith("with B_phi = 3 for 0")
    assert "known without data" in vacuous.claim
    assert len(section.tables[0].rows) == 10


SMALL = separation.Study(
    (0, 1, 2, 3), dims=(2, 2), powers=(3.0, 4.0, 5.0, 6.0, 7.0), dials=(0.5,), shown=0.5
)


def test_the_factored_class_is_ahead_on_cp_and_overtaken_off_it():
    on, off = (SMALL.spectral_errors(dial) for dial in (0.0, 0.5))
    of_factored, of_joint = (log_interval(on[kind]) for kind in KINDS)
    assert np.all(of_factored.below(of_joint))
    of_factored, of_joint = (log_interval(off[kind]) for kind in KINDS)
    assert np.asarray(of_factored.below(of_joint))[0]
    assert np.asarray(of_joint.below(of_factored))[-1]
    assert of_factored.mean[-1] == pytest.approx(SMALL.truth(0.5).cp_error, rel=0.05)
    measured = float(log_interval(SMALL.crossings(off)).mean)
    assert abs(math.log(measured / SMALL.predicted_crossing(0.5))) < math.log(1.5)
    assert SMALL.freedom == {"factored": 3 * 25, "joint": 3 * (81 + 9 - 3)}
    for kind, count in SMALL.freedom.items():
        assert (on[kind] * SMALL.n)[:, 2:].mean() == pytest.approx(count, rel=0.15)


def test_ranking_fits_of_a_seed_depend_on_that_seed_alone():
    small = replace(SMALL, powers=(3.0, 4.0), descent=Descent(steps=8, starts=2))
    density = small.truth(0.0).density(3)
    there, back = (replace(small, seeds=s).ranking_errors(density, 3) for s in ((3, 5), (5, 3)))
    for kind in KINDS:
        np.testing.assert_allclose(there[kind], back[kind][::-1], rtol=1e-5)


@pytest.mark.parametrize("dims", [(3, 3), (2, 1)])
def test_norms_that_hold_the_kernel_hold_its_factors(dims):
    """Norms and slopes of (1, c cos, ...) on a fine grid; their product is the kernel's CP part."""
    truth, unit = waves(*dims, dial=0.3), Problem(*dims, feature_dim=4)
    found, kept = separation.holding(truth, unit), slice(truth.cp_terms)
    factors, ends = [], []
    for numbers, bound in zip(
        truth.numbers, (found.factor_norm, found.factor_norm, found.next_norm), strict=True
    ):
        places = np.random.default_rng(0).uniform(size=(200, numbers.shape[1]))
        reach = np.cbrt(0.7 / 3) / np.sqrt(2.0) ** np.count_nonzero(numbers[kept], axis=1)
        factor = np.insert(cosines(numbers[kept], places) * reach, 0, 1.0, axis=1)
        assert np.linalg.norm(factor, axis=1).max() <= bound
        gaps = np.linalg.norm(places[:, None] - places[None], axis=-1) + np.eye(200)
        steps = np.linalg.norm(factor[:, None] - factor[None], axis=-1)
        assert (steps / gaps).max() <= found.lipschitz
        factors.append(factor)
        ends.append(places)
    product = np.einsum("sk,ak,xk->sax", *factors)
    cp = replace(truth, amplitudes=np.where(np.arange(6) < 3, truth.amplitudes, 0.0))
    np.testing.assert_allclose(product, cp.tensor(*map(cosines, truth.numbers, ends)), atol=1e-12)
    assert product.max() > unit.score_bound


def test_certificates_cross_later_with_norms_that_hold_the_kernel():
    truth, unit = waves(3, 3, dial=0.3), Problem(3, 3, feature_dim=4)
    crossings = [
        separation.certified_crossing(problem, truth.cp_error)
        for problem in (unit, separation.holding(truth, unit))
    ]
    assert crossings == pytest.approx([49.3, 61.4])


def test_separation_with_both_objectives():
    study = separation.Study(
        (0, 1),
        dims=(3, 2),
        powers=(3.0, 5.5, 6.5, 8.0),
        dials=(0.5,),
        shown=0.5,
        descent=Descent(steps=100, starts=2),
        sieves=(Sieve(1, 1, finest=8, powers=(3.5, 5.0)),),
    )
    section = checked(study.run())
    wrong_way = next(v for v in section.verdicts if "certificates' ordering" in v.claim)
    assert not wrong_way.holds
    errors = {row[:3]: [float(cell) for cell in row[3:]] for row in section.tables[0].rows}
    for objective in ("L2", "ranking"):
        factored, joint = (errors["dial 0.5", objective, kind] for kind in KINDS)
        assert factored[0] < joint[0]
        assert factored[-1] > joint[-1]


def small_exploration(*seeds, **sizes):
    fixed = {"samples": (3_000,), "repeats": 2, "powers": (4.0, 6.0), "first": 20}
    return exploration.Study(seeds, **{"config": Explore(episodes=80), **fixed, **sizes})


def test_exploration_reports_eta_and_regret():
    section = checked(small_exploration(0, 1).run())
    assert "2 sizes" in section.verdicts[1].measured
    etas = {row[0]: float(row[-1].split()[0]) for row in section.tables[0].rows}
    assert etas["true"] < 1e-6 < etas["factored, n = 3,000"] < etas["joint, n = 3,000"]


def test_one_seed_has_no_verdict_by_intervals():
    section = checked(small_exploration(0).run())
    undecided = [v.claim for v in section.verdicts if v.holds is None]
    assert len(undecided) == 2
    assert "smaller eta" in undecided[0]
    assert "less regret" in undecided[1]
    assert not any("[" in cell for table in section.tables for row in table.rows for cell in row)
    assert not any(any(row[3:]) for figure in section.figures for row in figure.numbers.rows)
    sieve = Sieve(1, 1, finest=8, powers=(3.5, 5.0))
    assert sieve.verdict(sieve.errors((0,))).holds is None
    assert sieve.verdict(sieve.errors((0, 1, 2))).holds is not None


def test_theory_writes_one_page_with_its_numbers(tmp_path, capsys):
    out = tmp_path / "pages" / "theory"
    arguments = ["theory", "certificates", "linearity", "--seeds", "0", "1", "--out", str(out)]
    assert run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [section["name"] for section in report["sections"]] == ["linearity", "certificates"]
    assert json.loads((out / "theory.json").read_text()) == report
    page = (out / "index.html").read_text()
    verdicts = [one["holds"] for section in report["sections"] for one in section["verdicts"]]
    assert page.count(">holds<") == verdicts.count(True)
    assert page.count(">does not hold<") == verdicts.count(False) == 1
    for figure in (figure for section in report["sections"] for figure in section["figures"]):
        rows = list(csv.reader((out / "figures" / f"{figure['name']}.csv").open()))[1:]
        assert [[label, float(x), float(y)] for label, x, y, *_ in rows] == [
            row[:3] for row in figure["rows"]
        ]


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_theory_keeps_the_results_of_another_command(tmp_path, capsys, refused):
    arguments = ["theory", "linearity", "--seeds", "3", "--out", str(tmp_path)]
    for _ in range(2):
        assert run(arguments) == 0
        assert "holds" in capsys.readouterr().out
    before = content(tmp_path)
    for other in (["certificates"], [], ["linearity", "--seeds", "4"]):
        refused(["theory", *other, "--out", str(tmp_path)], "has files, and not those of")
    assert content(tmp_path) == before
    (tmp_path / "theory.json").write_text("[]")
    refused(arguments, "choose another --out")
    file = tmp_path / "index.html"
    refused(["theory", "--out", str(file / "below")], "cannot be written")
