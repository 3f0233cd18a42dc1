"""The studies at small sizes, and `fastr theory` from the command line to its page."""

import csv
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from fastr.cli import run
from fastr.cli.theory import NAMES
from fastr.studies.theory.catalogue import STUDIES, WEIGHTS
from fastr.studies.theory.certificates import Problem
from fastr.studies.theory.families import lock
from fastr.studies.theory.intervals import log_interval
from fastr.studies.theory.lsvi import Explore, explore
from fastr.studies.theory.page import page_text
from fastr.studies.theory.ranking_fit import Descent, RankingFits
from fastr.studies.theory.report import Section, Verdict
from fastr.studies.theory.studies.certificates import CertificateStudy, covering_ratios, limit_slope
from fastr.studies.theory.studies.exploration import ExplorationStudy, Regret
from fastr.studies.theory.studies.linearity import LinearityStudy
from fastr.studies.theory.studies.ratio import CP, ENERGY, RatioStudy, best_residual
from fastr.studies.theory.studies.separation import SeparationStudy, certified_crossing, holding
from fastr.studies.theory.studies.sieves import Sieve
from fastr.studies.theory.waves import cosines, waves


def quiet(_):
    """Progress that nobody watches."""


def checked(section):
    """The section, once its curves are drawable and its rows fit their columns."""
    for plot in section.plots:
        for curve in plot.curves:
            assert len(curve.x) == len(curve.y)
            assert len(curve.low) == len(curve.high) in (0, len(curve.x))
            assert np.isfinite([*curve.x, *curve.y, *curve.low, *curve.high]).all()
    for grid in section.grids:
        assert all(len(row) == len(grid.columns) for row in grid.rows)
    return section


def test_every_name_is_a_study():
    assert tuple(STUDIES) == NAMES == tuple(WEIGHTS)


def test_linearity_holds_throughout():
    shares = []
    section = checked(LinearityStudy((0, 1), policies=10).run(shares.append))
    assert all(verdict.holds for verdict in section.verdicts)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_density_and_log_ratio_differ():
    study = RatioStudy(
        (0, 1), states=12, actions=10, counts=(8, 80), descent=Descent(steps=300, starts=4)
    )
    section = checked(study.run(quiet))
    rows = {row[:2]: [float(cell.split()[0]) for cell in row[2:]] for row in section.grids[0].rows}
    spectral, ranked = "psi of the L2 objective", "psi of the ranking loss"
    fourier = "Fourier features of the ranking psi"
    assert rows[CP, spectral][-1] < 0.01 < rows[CP, ranked][-1]
    assert rows[ENERGY, ranked][-1] > 0.3
    assert rows[ENERGY, fourier][-1] < 0.3 * rows[ENERGY, ranked][-1]


def test_no_feature_beats_the_best_of_its_size():
    generator = np.random.default_rng(0)
    kernel = generator.dirichlet(np.ones(6), size=(8, 5))
    centred = (kernel - kernel.mean((0, 1))).reshape(40, 6)
    best = best_residual(kernel, 2)
    for _ in range(200):
        basis = np.linalg.qr(centred @ generator.normal(size=(6, 2)))[0]
        left = centred - basis @ (basis.T @ centred)
        assert np.linalg.norm(left) / np.linalg.norm(centred) >= best
    assert best_residual(kernel, 5) < 1e-12


def test_certificates_say_that_they_are_vacuous():
    section = checked(CertificateStudy((0,), classes=3).run(quiet))
    vacuous = next(v for v in section.verdicts if "known without data" in v.claim)
    assert not vacuous.holds
    assert [v.holds for v in section.verdicts].count(False) == 1
    assert len(section.grids[0].rows) == 10


def test_certificates_say_whose_order_it_is():
    section = CertificateStudy((0,), classes=1).run(quiet)
    ordered = next(v for v in section.verdicts if "the smaller one" in v.claim)
    assert "all norms at 1" in ordered.claim
    assert ordered.measured.startswith("for 10 of 10 tasks")
    assert ordered.measured.endswith("with B_phi = 3 for 0")


def test_covering_ratios_reach_but_do_not_pass_one():
    ratios = covering_ratios(10, np.random.default_rng(0))
    assert 0.0 < min(ratios) <= max(ratios) <= 1.0


def test_limit_slope_is_of_the_smaller_dimension():
    assert limit_slope(Problem(4, 9), 0.05) == pytest.approx(-8.0, abs=1e-3)


SMALL = SeparationStudy(
    (0, 1, 2, 3), dims=(2, 2), points=3, powers=(3.0, 4.0, 5.0, 6.0, 7.0), dials=(0.5,), shown=0.5
)


def test_the_factored_class_is_ahead_on_cp_and_overtaken_off_it():
    on, off = (SMALL.spectral_errors(dial) for dial in (0.0, 0.5))
    of_factored, of_joint = (log_interval(on[kind]) for kind in ("factored", "joint"))
    assert np.all(of_factored.below(of_joint))
    of_factored, of_joint = (log_interval(off[kind]) for kind in ("factored", "joint"))
    assert np.asarray(of_factored.below(of_joint))[0]
    assert np.asarray(of_joint.below(of_factored))[-1]
    assert of_factored.mean[-1] == pytest.approx(SMALL.truth(0.5).cp_error, rel=0.05)
    measured = float(log_interval(SMALL.crossings(off)).mean)
    assert abs(math.log(measured / SMALL.predicted_crossing(0.5))) < math.log(1.5)


@pytest.mark.parametrize("dims", [(3, 3), (2, 1)])
def test_norms_that_hold_the_kernel_hold_its_factors(dims):
    """Norms and slopes of (1, c cos, ...) on a fine grid; their product is the kernel's CP part."""
    truth, unit = waves(*dims, dial=0.3), Problem(*dims, feature_dim=4)
    found, kept = holding(truth, unit), slice(truth.cp_terms)
    factors, ends = [], []
    for numbers in truth.numbers:
        places = np.random.default_rng(0).uniform(size=(200, numbers.shape[1]))
        values = cosines(numbers[kept], places)
        reach = np.cbrt(0.7 / 3) / np.sqrt(2.0) ** np.count_nonzero(numbers[kept], axis=1)
        factors.append(np.insert(values * reach, 0, 1.0, axis=1))
        ends.append(places)
    for factor, places, bound in zip(
        factors, ends, (found.factor_norm, found.factor_norm, found.next_norm), strict=True
    ):
        assert np.linalg.norm(factor, axis=1).max() <= bound
        gaps = np.linalg.norm(places[:, None] - places[None], axis=-1) + np.eye(200)
        steps = np.linalg.norm(factor[:, None] - factor[None], axis=-1)
        assert (steps / gaps).max() <= found.lipschitz
    product = np.einsum("sk,ak,xk->sax", *factors)
    cp = replace(truth, amplitudes=np.where(np.arange(6) < 3, truth.amplitudes, 0.0))
    np.testing.assert_allclose(product, cp.tensor(*map(cosines, truth.numbers, ends)), atol=1e-12)
    assert product.max() > unit.score_bound


def test_certificates_cross_later_with_norms_that_hold_the_kernel():
    truth, unit = waves(3, 3, dial=0.3), Problem(3, 3, feature_dim=4)
    crossings = [
        certified_crossing(problem, truth.cp_error) for problem in (unit, holding(truth, unit))
    ]
    assert crossings == pytest.approx([49.3, 61.4])


def test_errors_are_degrees_of_freedom_over_n():
    assert SMALL.freedom == {"factored": 3 * 25, "joint": 3 * (81 + 9 - 3)}
    errors = SMALL.spectral_errors(0.0)
    for kind, count in SMALL.freedom.items():
        assert (errors[kind] * SMALL.n)[:, 2:].mean() == pytest.approx(count, rel=0.15)


def test_separation_with_both_objectives():
    study = SeparationStudy(
        (0, 1),
        dims=(3, 2),
        powers=(3.0, 5.5, 6.5, 8.0),
        dials=(0.5,),
        shown=0.5,
        descent=Descent(steps=100, starts=2),
        sieves=(Sieve(1, 1, finest=8, powers=(3.5, 5.0)),),
    )
    section = checked(study.run(quiet))
    wrong_way = next(v for v in section.verdicts if "certificates' ordering" in v.claim)
    assert not wrong_way.holds
    errors = {row[:3]: [float(cell) for cell in row[3:]] for row in section.grids[0].rows}
    for objective in ("L2", "ranking"):
        factored, joint = (errors["dial 0.5", objective, kind] for kind in ("factored", "joint"))
        assert factored[0] < joint[0]
        assert factored[-1] > joint[-1]


def test_every_seed_begins_its_ranking_fits_by_itself(monkeypatch):
    seeds = []

    def unfitted(_, shares, n, features, generators, __):
        seeds.append([generator.bit_generator.seed_seq.entropy for generator in generators])
        zeros = np.zeros((len(n), *shares.shape[1:3], features))
        return RankingFits(
            zeros, zeros[:, :1, 0] + np.zeros((shares.shape[3], 1)), shares.sum((1, 2))
        )

    for study in ("ratio", "separation"):
        monkeypatch.setattr(f"fastr.studies.theory.studies.{study}.ranking_fits", unfitted)
    replace(SMALL, seeds=(3, 5), powers=(3.0, 4.0)).ranking_errors(SMALL.density(0.0), 3)
    RatioStudy((3, 5), states=5, actions=4, counts=(8, 16)).run(quiet)
    assert seeds == [[3, 3, 5, 5]] * 2 + [[3, 5]] * 2


@pytest.mark.slow
def test_the_whole_separation():
    section = checked(SeparationStudy((0, 1)).run(quiet))
    assert len(section.plots) == 4


def small_exploration(*seeds, **sizes):
    fixed = {"samples": (3_000,), "repeats": 2, "powers": (4.0, 6.0), "first": 20}
    return ExplorationStudy(seeds, config=Explore(episodes=80), **fixed | sizes)


def test_exploration_reports_eta_and_regret():
    section = checked(small_exploration(0, 1).run(quiet))
    smaller = next(v for v in section.verdicts if "smaller eta" in v.claim)
    assert "2 sizes" in smaller.measured
    etas = {row[0]: float(row[-1].split()[0]) for row in section.grids[0].rows}
    assert etas["true"] < 1e-6 < etas["factored, n = 3,000"] < etas["joint, n = 3,000"]


def test_the_order_of_the_seeds_does_not_matter_to_exploration():
    sizes = {"repeats": 1, "powers": (3.0,)}
    forward, backward = (small_exploration(*seeds, **sizes) for seeds in ((0, 1), (1, 0)))
    assert forward.run(quiet) == backward.run(quiet)


def test_every_seed_explores_an_mdp_of_its_own(monkeypatch):
    explored = []

    def recorded(mdp, *arguments):
        explored.append(mdp.kernel.tobytes())
        return explore(mdp, *arguments)

    monkeypatch.setattr("fastr.studies.theory.studies.exploration.explore", recorded)
    small_exploration(0, 1, 2, repeats=1, powers=(3.0,)).run(quiet)
    assert len(set(explored)) == 3


def flat_regrets(power, seeds):
    """Regrets of every feature that grow with this power of the episodes, the same for all."""
    curve = np.stack([np.arange(1.0, 81.0) ** power] * seeds)
    groups = ("true", "factored, n = 3,000", "joint, n = 3,000")
    return {group: Regret(curve, np.ones(seeds)) for group in groups}


@pytest.mark.parametrize(("power", "holds"), [(0.1, True), (0.5, True), (0.7, False)])
def test_only_an_exponent_above_the_square_root_contradicts_the_bound(power, holds):
    etas = {kind: np.ones((2, 2)) for kind in ("factored", "joint")}
    verdicts = small_exploration(0, 1).verdicts(etas, flat_regrets(power, 2))
    assert "at most like the square root" in verdicts[0].claim
    assert verdicts[0].holds is holds


def test_one_mdp_above_the_square_root_contradicts_the_bound():
    found = flat_regrets(0.1, 4)
    found["true"].curve[2] = np.arange(1.0, 81.0) ** 0.7
    etas = {kind: np.ones((4, 2)) for kind in ("factored", "joint")}
    assert not small_exploration(0, 1, 2, 3).verdicts(etas, found)[0].holds


def test_one_seed_has_no_verdict_by_intervals():
    section = checked(small_exploration(0).run(quiet))
    undecided = [v.claim for v in section.verdicts if v.holds is None]
    assert len(undecided) == 2
    assert "smaller eta" in undecided[0]
    assert "less regret" in undecided[1]
    assert not any("[" in cell for grid in section.grids for row in grid.rows for cell in row)
    assert not any(curve.low for plot in section.plots for curve in plot.curves)
    sieve = Sieve(1, 1, finest=8, powers=(3.5, 5.0))
    assert sieve.verdict(sieve.errors((0,))).holds is None
    assert sieve.verdict(sieve.errors((0, 1, 2))).holds is not None
    one, several = (
        {"factored": np.ones((seeds, 5)), "joint": np.full((seeds, 5), 2.0)} for seeds in (1, 2)
    )
    assert SMALL.ahead("L2 objective", one).holds is None
    assert SMALL.ahead("L2 objective", several).holds is True


def test_repeats_of_a_seed_have_data_of_their_own(monkeypatch):
    drawn = []
    study = ExplorationStudy((0, 1), config=Explore(episodes=4), samples=(500,), repeats=2)
    learned = ExplorationStudy.learned

    def recorded(self, model, n, generator):
        drawn.append(learned(self, model, n, generator)["joint"])
        return {"factored": drawn[-1], "joint": drawn[-1]}

    monkeypatch.setattr(ExplorationStudy, "learned", recorded)
    for seed in study.seeds:
        study.regrets(lock(np.random.default_rng(0)), np.random.default_rng(seed))
    assert len({feature.tobytes() for feature in drawn}) == 4


def test_theory_writes_one_page_with_its_numbers(tmp_path, capsys):
    out = tmp_path / "pages" / "theory"
    arguments = ["theory", "certificates", "linearity", "--seeds", "0", "1", "--out", str(out)]
    assert run([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert [section["name"] for section in report["sections"]] == ["linearity", "certificates"]
    assert "linearity" in said.err
    page = (out / "index.html").read_text()
    assert report["page"] == str(out / "index.html")
    for section in report["sections"]:
        for verdict in section["verdicts"]:
            assert verdict["holds"] or "does not hold" in page
        for plot in section["plots"]:
            rows = list(csv.reader((out / f"{plot['name']}.csv").open()))
            assert len(rows) == 1 + sum(len(curve["x"]) for curve in plot["curves"])
            assert f"{plot['name']}.csv" in page
    assert all(source.startswith("data:") for source in re.findall(r'src="([^"]*)"', page))
    assert json.loads((out / "theory.json").read_text()) == report


def test_theory_prints_each_claim(tmp_path, capsys):
    assert run(["theory", "linearity", "--seeds", "3", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "holds" in said
    assert "index.html" in said


def test_theory_does_not_write_into_a_file(tmp_path, refused):
    file = tmp_path / "taken"
    file.write_text("mine")
    refused(["theory", "linearity", "--out", str(file / "below")], "taken is a file")
    assert file.read_text() == "mine"


def test_theory_does_not_write_among_other_files(tmp_path, refused):
    page = tmp_path / "index.html"
    page.write_text("mine")
    refused(["theory", "linearity", "--out", str(tmp_path)], "not empty", "theory.json")
    assert [*tmp_path.iterdir()] == [page]
    assert page.read_text() == "mine"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("other", [["linearity", "certificates"], ["certificates"], []])
def test_theory_keeps_the_results_of_other_parts(tmp_path, refused, other):
    assert run(["theory", "linearity", "--seeds", "3", "--out", str(tmp_path)]) == 0
    before = content(tmp_path)
    made = "made by `fastr theory linearity --seeds 3`"
    refused(["theory", *other, "--seeds", "3", "--out", str(tmp_path)], made, "another --out")
    assert content(tmp_path) == before


def test_theory_keeps_the_results_of_other_seeds(tmp_path, refused):
    assert run(["theory", "linearity", "--seeds", "3", "--out", str(tmp_path)]) == 0
    before = content(tmp_path)
    refused(["theory", "linearity", "--seeds", "4", "--out", str(tmp_path)], "--seeds 3`")
    assert content(tmp_path) == before


def test_theory_runs_the_same_command_again(tmp_path):
    arguments = ["theory", "linearity", "--seeds", "3", "--out", str(tmp_path)]
    assert run(arguments) == 0
    before = content(tmp_path)
    (tmp_path / "linearity.csv").unlink()
    assert run(arguments) == 0
    assert (tmp_path / "linearity.csv").read_bytes() == before["linearity.csv"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '"theory"'])
def test_theory_does_not_overwrite_a_file_of_its_name(tmp_path, refused, text):
    file = tmp_path / "theory.json"
    file.write_text(text)
    refused(["theory", "linearity", "--out", str(tmp_path)], "not a result of fastr theory")
    assert content(tmp_path) == {"theory.json": text.encode()}


def test_theory_says_before_the_work_that_it_cannot_write(refused):
    refused(["theory", "--out", "/proc/theory"], "/proc/theory cannot be written")


def test_the_page_marks_what_does_not_hold_and_escapes_text():
    verdicts = (
        Verdict("L <= 1 & more", "3 < 4", holds=True),
        Verdict("b", "c", holds=False),
        Verdict("d", "e", holds=None),
    )
    page = page_text([Section("x", "T", ("a < b",), verdicts)], "fastr theory x")
    assert "L &lt;= 1 &amp; more" in page
    assert page.count("does not hold</td>") == 1
    assert page.count(">holds</td>") == 1
    assert page.count(">no verdict</td>") == 1
