"""The diagnostic tells known structures apart, and its report is reproducible."""

import json
import math
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiling import optimised
from fastr.cli import run
from fastr.core import EnvSpec, UserError
from fastr.data import open_source, spool
from fastr.nn.optim import Adam, Trainable
from fastr.studies.misfit import KINDS, MisfitConfig, PredictorConfig, data, preset
from fastr.studies.misfit.data import scales_of
from fastr.studies.misfit.report import diagnose
from fastr.studies.misfit.training import Predictor
from fastr.studies.misfit.verdict import estimate, verdict
from transitions import walk, write_npz

DIMS, EPISODES, STEPS = 2, 50, 100
SIZES = {"feature_dim": 6, "hidden_dim": 32, "blocks": 1, "noise_levels": 4, "fourier_targets": 8}
PREDICTOR = PredictorConfig(**SIZES, learning_rate=3e-3, batch_size=64, epochs=6)
CONFIG = MisfitConfig("paper", PREDICTOR, bootstrap=400)


def product(state, action):
    """Gaussian around s * a: the log transition ratio is exactly a CP score, and of low rank."""
    return state * action


def comparison(state, action):
    """sign(s - a): of no finite rank as a function of s and a."""
    return np.sign(state - action)


def synthetic(law, seed):
    """Independent transitions of a law, in episodes."""
    generator = np.random.default_rng(seed)
    rows = EPISODES * STEPS
    state, action = generator.uniform(-1, 1, size=(2, rows, DIMS))
    return {
        "state": state,
        "action": action,
        "next_state": law(state, action) + 0.1 * generator.normal(size=(rows, DIMS)),
        "episode": np.repeat(np.arange(EPISODES), STEPS),
    }


@pytest.fixture(scope="module", autouse=True)
def compiled_well():
    """These programs run for seconds."""
    with optimised():
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three datasets of one shape: separable, entangled, and with shuffled next states."""
    folder = tmp_path_factory.mktemp("data")
    shuffled = synthetic(product, 2)
    order = np.random.default_rng(3).permutation(len(shuffled["state"]))
    shuffled["next_state"] = shuffled["next_state"][order]
    columns = {
        "separable": synthetic(product, 0),
        "entangled": synthetic(comparison, 1),
        "shuffled": shuffled,
    }
    return [str(write_npz(folder / f"{name}.npz", each)) for name, each in columns.items()]


@pytest.fixture(scope="module")
def report(files, tmp_path_factory):
    """The three datasets side by side, as {name: entry}, and the directory."""
    out = tmp_path_factory.mktemp("report") / "out"
    found = diagnose(files, CONFIG, out)
    return {entry["name"]: entry for entry in found["datasets"]}, out


def test_an_exact_cp_score_has_no_misfit(report):
    entry = report[0]["separable"]
    assert entry["nce_misfit"]["low"] <= 0.0
    assert entry["test_losses"]["joint_nce"] < entry["chance_nce"] - 0.1


def test_an_entangled_law_has_a_clear_misfit(report):
    entry = report[0]["entangled"]
    assert entry["nce_misfit"]["low"] > 0.01
    assert entry["moment_misfit"]["low"] > 0.05
    assert entry["nce_misfit"]["value"] > report[0]["separable"]["nce_misfit"]["value"] + 0.03


def test_shuffled_next_states_give_the_loss_of_knowing_nothing(report):
    entry = report[0]["shuffled"]
    for kind in KINDS:
        assert entry["test_losses"][f"{kind}_nce"] == pytest.approx(math.log(64), abs=0.01)
        assert entry["test_losses"][f"{kind}_moment"] == pytest.approx(1.0, abs=0.05)
    assert entry["verdict"]["nce_size"] == entry["verdict"]["moment_size"] == "unknown"
    assert entry["verdict"]["gain"] == "open"


def test_the_files_of_a_report(report):
    entries, out = report
    files = {"report.json", "report.html", "curves.csv", "episodes.csv", "figures", "tables"}
    assert {path.name for path in out.iterdir()} == files
    assert json.loads((out / "report.json").read_text())["datasets"] == list(entries.values())
    curves = (out / "curves.csv").read_text().splitlines()
    assert len(curves) == 1 + 3 * len(KINDS) * 3 * (PREDICTOR.epochs + 1)
    rows = np.genfromtxt(out / "episodes.csv", delimiter=",", names=True, dtype=None)
    own = rows[rows["dataset"] == "entangled"]
    misfit = np.average(own["cp_nce"] - own["joint_nce"], weights=own["transitions"])
    assert misfit == pytest.approx(entries["entangled"]["nce_misfit"]["value"], abs=1e-6)
    assert entries["separable"]["split"]["test"] == {"transitions": 800, "episodes": 8}


def test_the_same_seed_gives_the_same_report(report, files, tmp_path):
    again = diagnose(files, CONFIG, tmp_path / "again")
    assert again["datasets"] == list(report[0].values())
    for name in ("episodes.csv", "figures/misfit-nce.svg"):
        assert (tmp_path / "again" / name).read_bytes() == (report[1] / name).read_bytes()


NO_CHANGE = {
    "constant": ("action", lambda c: np.full_like(c["action"], 0.25), "of the actions varies"),
    "stamped": ("episode", lambda c: np.arange(len(c["state"])), "has its own episode number"),
    "unmoved": ("next_state", lambda c: c["state"], "the next state equals the state"),
    "still": ("next_state", lambda c: np.ones_like(c["state"]), "of the next states varies"),
}


def store_of(columns, path):
    write_npz(path.with_suffix(".npz"), columns)
    source = open_source(str(path.with_suffix(".npz")))
    return spool(source, path, observed_bounds=False, advance=lambda _: None)


@pytest.mark.parametrize("name", NO_CHANGE)
def test_data_that_cannot_answer_is_refused(name, tmp_path):
    columns = synthetic(product, 0)
    column, change, problem = NO_CHANGE[name]
    columns[column] = change(columns)
    with pytest.raises(UserError, match=f"{name}: .*{problem}"):
        data.prepare(store_of(columns, tmp_path / name), CONFIG)


@given(rows=st.integers(64, 700), budget=st.integers(1, 6), seeds=st.integers(1, 3))
def test_every_transition_is_in_one_batch_of_an_epoch(rows, budget, seeds):
    """Whatever the size of a piece, and in another order for each seed."""
    packed = np.arange(rows, dtype=np.float32)[:, None]
    order = data.training_order(np.arange(rows), range(seeds), 1)
    seen = [[] for _ in range(seeds)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "CHUNK_BYTES", budget * 64 * 4)
        for piece in data.pieces(packed, order, 64):
            assert piece.first == sum(map(len, seen[:1]))
            for own, content in zip(seen, piece.content, strict=True):
                own += list(content[: piece.batches, :, 0])
    for own, wanted in zip(seen, order, strict=True):
        np.testing.assert_array_equal(np.concatenate(own), wanted[: rows // 64 * 64])


@given(rows=st.integers(130, 300), batch=st.sampled_from([64, 128]))
def test_every_held_out_row_counts_once(rows, batch):
    part = np.sort(np.random.default_rng(rows).permutation(1000)[:rows])
    order = data.held_out_order(part, batch, seed=0)
    assert len(order) % batch == 0
    losses = np.tile(order.astype(np.float32), (1, 2, 1))
    np.testing.assert_array_equal(data.in_order(losses, order, part)[0, 1], part)


@pytest.mark.parametrize("kind", KINDS)
def test_the_moment_head_recovers_a_linear_conditional_mean(kind):
    generator = np.random.default_rng(0)
    spec, rows = EnvSpec(3, 2), 512
    state = generator.normal(size=(rows, 3))
    action = generator.uniform(-1, 1, size=(rows, 2))
    mean = state @ generator.normal(size=(3, 3)) + action @ generator.normal(size=(2, 3))
    packed = np.concatenate([state, action, mean + 0.3 * generator.normal(size=(rows, 3))], axis=1)
    packed = packed.astype(np.float32)
    scales = scales_of(packed, (-np.ones(2), np.ones(2)), spec, 4, generator)
    batch = scales.batch(jnp.asarray(packed), spec)
    config = replace(PREDICTOR, feature_dim=16, blocks=0, fourier_targets=4)
    net = Predictor.init(config, kind, spec, jax.random.key(0))
    loss = lambda net: (jnp.mean(net.moment_losses(net.features(batch), batch)), {})  # noqa: E731
    steps = jax.jit(
        lambda start: jax.lax.fori_loop(0, 300, lambda _, now: now.step(loss)[0], start)
    )
    net = steps(Trainable.of(net, Adam(learning_rate=1e-2))).net
    predicted = np.asarray(jax.vmap(net.moment_head)(net.features(batch) * 4.0))[:, :3]
    # The standardised conditional mean, from the law itself.
    wanted = (mean - packed[:, -3:].mean(axis=0)) / packed[:, -3:].std(axis=0)
    assert np.mean((predicted - wanted) ** 2) < 0.05
    assert np.mean(wanted**2) > 0.8


def test_targets_are_standardised_on_training_rows():
    generator = np.random.default_rng(1)
    packed = generator.normal(size=(2000, 8)).astype(np.float32) * 5 + 3
    packed[:, 1] = packed[:, -2] = 7.0
    spec = EnvSpec(3, 2)
    bounds = (np.array([-20.0, -10.0]), np.array([30.0, 20.0]))
    batch = scales_of(packed, bounds, spec, 16, generator).batch(jnp.asarray(packed), spec)
    targets = np.asarray(batch.targets)
    varying = [i for i in range(19) if i != 1]
    np.testing.assert_allclose(targets.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(targets[:, varying].std(axis=0), 1.0, atol=1e-3)
    np.testing.assert_allclose(np.asarray(batch.state)[:, 1], 0.0, atol=1e-6)
    expected = (packed[:, 3] - 5.0) / 25.0
    np.testing.assert_allclose(np.asarray(batch.action)[:, 0], expected, atol=1e-5)
    # What is constant has no share in the loss.
    np.testing.assert_allclose(batch.weights, [0.25, 0, 0.25, *[0.5 / 16] * 16])


@pytest.mark.parametrize("unit", [1.0, 1e-7])
def test_a_constant_coordinate_is_no_variance_explained(unit):
    """A head that says zero has the variance of what varies as its loss, constants or not."""
    generator = np.random.default_rng(2)
    spec = EnvSpec(4, 1)
    packed = generator.normal(size=(4000, 9)).astype(np.float32)
    packed[:, [2, 3, 7, 8]] = [5.0, 0.0, 5.0, 0.0]
    net = Predictor.init(PREDICTOR, "joint", spec, jax.random.key(0))
    zeros = jax.tree.map(jnp.zeros_like, net.moment_head)
    silent = eqx.tree_at(lambda net: net.moment_head, net, zeros)
    bounds = (-np.ones(1) * unit, np.ones(1) * unit)
    scales = scales_of(packed * unit, bounds, spec, 8, generator)
    batch = scales.batch(jnp.asarray(packed * unit), spec)
    losses = silent.moment_losses(silent.features(batch), batch)
    assert np.mean(losses) == pytest.approx(1.0, abs=1e-3)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    by=st.sampled_from(["episode", "transition"]),
    seed=st.integers(0, 9),
    limit=st.none() | st.integers(1, 200),
)
def test_splits_never_leak(sizes, by, seed, limit):
    episodes = np.repeat(np.arange(len(sizes)), sizes)
    episodes = np.random.default_rng(seed).permutation(episodes)
    draw = lambda: data.split(episodes, by, np.random.default_rng(seed), limit)  # noqa: E731
    try:
        parts = draw()
    except UserError as error:
        assert "three" in str(error)  # noqa: PT017
        return
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    assert all(len(part) for part in parts)
    if limit is None:
        assert len(rows) == len(episodes)
    else:
        assert len(rows) <= max(limit, *sizes)
    if by == "episode":
        for i, j in ((0, 1), (0, 2), (1, 2)):
            assert not set(episodes[parts[i]]) & set(episodes[parts[j]])
    for again, part in zip(draw(), parts, strict=True):
        np.testing.assert_array_equal(again, part)


def test_shares_are_70_15_15():
    episodes = np.repeat(np.arange(100), 3)
    for by in ("episode", "transition"):
        parts = data.split(episodes, by, np.random.default_rng(0))
        assert [len(part) for part in parts] == [210, 45, 45]


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    generator = np.random.default_rng(0)
    episodes, covered, trials = np.repeat(np.arange(25), 8), 0, 100
    for _ in range(trials):
        by_seed, by_episode = generator.normal(size=(4, 1)), generator.normal(size=25)
        noise = generator.normal(size=(4, 200))
        found = estimate(
            0.5 + by_seed + by_episode[episodes][None] + noise, episodes, 100, generator
        )
        covered += found["low"] <= 0.5 <= found["high"]
    assert covered / trials >= 0.9


def evidence(action_dim, low, high, *, known=2.0, moment=0.0):
    """A dataset's entry, the NCE misfit's interval as shares of what the joint predictor knows."""
    chance = math.log(512)
    return {
        "task": None,
        "action_dim": action_dim,
        "chance_nce": chance,
        "test_losses": {"joint_nce": chance - known, "joint_moment": 0.2},
        "nce_misfit": {"value": (low + high) / 2 * known, "low": low * known, "high": high * known},
        "moment_misfit": {"value": moment, "low": moment - 0.01, "high": moment + 0.01},
        "seeds": [0, 1, 2],
        "split": {"test": {"episodes": 50}},
    }


@pytest.mark.parametrize(
    ("given", "size", "gain"),
    [
        (evidence(21, -0.01, 0.01), "none", "likely"),
        (evidence(21, -0.09, -0.05), "none", "likely"),
        (evidence(38, 0.01, 0.03), "small", "likely"),
        (evidence(6, 0.01, 0.03), "small", "no difference expected"),
        (evidence(6, 0.2, 0.3), "large", "unlikely"),
        (evidence(21, 0.2, 0.3), "large", "unlikely"),
        (evidence(21, 0.06, 0.1), "moderate", "open"),
        (evidence(9, 0.01, 0.03), "small", "open"),
        (evidence(21, -0.1, 0.4), "undecided", "open"),
        (evidence(21, 0.0, 0.0, known=0.01), "unknown", "open"),
        (evidence(21, -0.01, 0.01, moment=0.3), "none", "open"),
    ],
)
def test_verdicts_follow_the_papers_two_conditions(given, size, gain):
    found = verdict(given, constant_actions=(), still_falling=(), laptop=False)
    assert (found["nce_size"], found["gain"]) == (size, gain)
    assert not found["doubts"] or "disagree" in found["doubts"][0]


def test_presets_are_the_papers():
    paper = preset("paper").predictor
    assert (paper.feature_dim, paper.hidden_dim, paper.blocks) == (512, 512, 2)
    assert (paper.learning_rate, paper.batch_size, paper.epochs) == (1e-4, 512, 50)
    assert (paper.noise_levels, paper.moment_weight) == (25, 0.1)
    assert preset("paper").split == "episode"


BAD = {
    "no dataset": ([], "DATASET"),
    "one episode": (["one.npz"], "at least three episodes, and the number here is 1: give"),
    "too small": (["small.npz"], "--batch-size"),
    "twice": (["small.npz", "./small.npz"], "twice"),
    "many resamples": (["small.npz", "--bootstrap", "2000000000"], "from 100 to 1000000"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD.values(), ids=BAD.keys())
def test_bad_input_ends_before_training(arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fastr.studies.misfit.report.fit", lambda *_: pytest.fail("it trained"))
    write_npz(Path("small.npz"), walk())
    write_npz(Path("one.npz"), walk(episodes=1, steps=2000))
    assert run(["misfit", *arguments, "--out", "out"]) == 2
    [sentence] = [x for x in capsys.readouterr().err.splitlines() if x.startswith("fastr: ")]
    assert named in sentence
    assert not Path("out").exists()
