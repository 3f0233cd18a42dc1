"""Imports point down, and what must stay light does not load JAX."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fastr

SOURCE = Path(fastr.__file__).parent

# From the bottom up: a module may import those of earlier rows, and none of its own.
LAYERS = [
    {"cgroups", "plurals"},
    {
        "commits",
        "cores",
        "errors",
        "names",
        "precision",
        "spec",
        "streams",
        "summary",
        "runtime",
        "processes",
        "pulses",
        "patience",
        "flat",
        "inplace",
        "interrupts",
        "letters",
        "pages.__init__",
        "pages.rendering",
    },
    {
        "activations",
        "checks",
        "folders",
        "groups",
        "locks",
        "provenance",
        "shifts",
        "untrusted",
        "checkpoints.files",
    },
    {"datasets.__init__", "datasets.columns", "misfit.__init__", "misfit.splits", "units"},
    {"envs.base", "envs.names", "envs.seeds", "checkpoints.array_files"},
    {"envs.rendering", "envs.shifted", "checkpoints.segments"},
    {"envs.simulator", "checkpoints.checkpoint"},
    {"envs.gym", "envs.suite", "checkpoints.index"},
    {"envs.loading", "checkpoints.kept"},
    {"checkpoints.saving"},
    {
        "types",
        "envs.__init__",
        "checkpoints.__init__",
        "track",
        "plots",
        "screens",
        "tiles",
        "datasets.base",
        "misfit.intervals",
    },
    {"networks", "optim", "moments", "replay", "ring", "worker", "runs", "anatomy"},
    {"datasets.minari", "datasets.npz", "pool"},
    {
        "datasets.minari_writing",
        "datasets.parquet",
        "datasets.replay",
        "datasets.store",
        "misfit.verdict",
    },
    {"datasets.opening", "misfit.report"},
    {"misfit.drawing", "misfit.page", "misfit.scatter"},
    {"misfit.writing"},
    {"experiments"},
    {"sweep.__init__", "sweep.attempt", "sweep.child", "sweep.state"},
    {"sweep.engine"},
    {"sweep.cluster", "sweep.local", "sweep.schedule"},
    {"sweep.hours", "sweep.view"},
    {
        "representations.__init__",
        "representations.base",
        "representations.schedule",
        "representations.scores",
    },
    {"agents.__init__", "agents.base", "agents.critics"},
    {"agents.deterministic", "representations.ranking"},
    {"representations.diffusion", "representations.factored", "representations.joint"},
    {
        "representations.block",
        "representations.concat",
        "representations.cp",
        "representations.tucker",
    },
    {"representations.low_rank", "representations.tree"},
    {"agents.sac", "agents.spectral", "agents.td3", "agents.td7_networks"},
    {"agents.td7_policies"},
    {"agents.td7"},
    {"methods"},
    {"learner", "config", "misfit.config"},
    {"misfit.predictors"},
    {"arrays", "policies", "count", "host", "progress", "misfit.batches", "misfit.program"},
    {"coverage", "evaluate", "memory", "profile", "roofline", "state", "misfit.fit"},
    {"transfer", "misfit.memory"},
    {"train", "trained", "misfit.diagnose"},
    {"looptime"},
    {"bench"},
    {"export.__init__", "export.numpy_policy", "export.program", "play"},
    {"export.agreement", "export.card", "export.facts", "export.safetensors_file"},
    {"export.onnx_file"},
    {"collect"},
    {
        "theory.__init__",
        "theory.studies.__init__",
        "theory.certificates",
        "theory.covering",
        "theory.intervals",
        "theory.mdp",
        "theory.report",
        "theory.sampling",
        "theory.spectral_fit",
    },
    {
        "theory.families",
        "theory.linearity",
        "theory.lsvi",
        "theory.page",
        "theory.ranking_fit",
        "theory.waves",
    },
    {"theory.fourier", "theory.sieve"},
    {"theory.studies.sieves"},
    {
        "theory.studies.certificates",
        "theory.studies.exploration",
        "theory.studies.linearity",
        "theory.studies.ratio",
        "theory.studies.separation",
    },
    {"theory.catalogue"},
    {"report.__init__", "report.text", "report.colors", "report.published", "report.stats"},
    {"report.series", "report.content"},
    {"report.tables", "report.finals", "report.latex", "report.page", "report.drawing"},
    {"report.sidecar", "report.aggregates"},
    {"report.reading", "report.returns", "report.sections"},
    {"report.gains", "report.readme"},
    {"report.studies"},
    {"report.writing"},
    {
        "commands.__init__",
        "commands.paragraphs",
        "commands.show",
        "commands.wrong_options",
    },
    {"commands.watching"},
    {"commands.looking", "commands.sizing", "commands.theory", "commands.training"},
    {
        "commands.data",
        "commands.export",
        "commands.plan",
        "commands.report",
        "commands.structure",
        "commands.transfer",
    },
    {"commands.sweep"},
    {"cli"},
    {"demo"},
    # The library's front door: it opens the heavy rooms only when asked.
    {"__init__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def modules() -> dict[str, Path]:
    paths = SOURCE.rglob("*.py")
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in paths}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fastr":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fastr."):
            name = node.module.removeprefix("fastr.")
            inner = {f"{name}.{alias.name}" for alias in node.names} & RANK.keys()
            found |= inner or {name}
    return {name if name in RANK else f"{name}.__init__" for name in found}


def test_every_module_has_a_layer():
    assert modules().keys() == RANK.keys()


def test_imports_only_point_down():
    for name, path in modules().items():
        for other in imported(path):
            assert RANK[other] < RANK[name], f"{name} imports {other}"


LIGHT = ["envs", "pool", "runs", "summary", "plots", "evaluate"]
LIGHT += ["datasets.opening", "datasets.store", "misfit.writing", "misfit.scatter"]
LIGHT += [
    "report.gains",
    "report.writing",
    "commands.report",
    "commands.sweep",
    "sweep.cluster",
    "cli",
]


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_do_not_load_jax(module):
    code = f"import fastr.{module}, sys; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
