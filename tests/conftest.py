"""What all tests share: JAX on the CPU, quick compilation, and tiny networks with plain weights.

Compilation dominates the suite, so whatever is compiled is compiled once per session, and weights
come from NumPy instead of from a compiled initialisation.
"""

import os
import sys
import tempfile
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

# In the environment, so that the processes a test starts compile the same programs in the same way:
# bit for bit is only promised between equal programs. And before anything of fastr is imported:
# where its types are checked, that imports JAX, which reads these once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if os.environ["JAX_PLATFORMS"] == "cpu":
    # Programs that run for milliseconds do not repay seconds of optimisation.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# A program that several tests run is compiled once, whichever of pytest's workers they are in: they
# inherit the place from the process that starts them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="fastr-compiled-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"

from fastr.core import configure_jax

# What every command sets: the first one that a test runs in this process would otherwise change the
# environment half-way.
configure_jax()
if os.environ["JAX_PLATFORMS"] == "cpu":
    # The older emitters, and one piece of code per program: a third of the time to compile an
    # update, none more to run it. XLA ends the process over a flag it does not know.
    flags = os.environ.get("XLA_FLAGS", "")
    if version("jaxlib").startswith("0.10.") and "fusion_emitters" not in flags:
        quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        os.environ["XLA_FLAGS"] = f"{flags} {quick}".strip()

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings

import fastr.training.loop
from checkpointing import pristine as pristine
from checkpointing import run as run
from fastr.agents.spectral import Spectral, SpectralConfig, Target
from fastr.core import EnvSpec
from fastr.nn.optim import Adam, Layout, Trainable
from fastr.representations.interactions import CPConfig
from fastr.representations.joint import JointConfig
from fastr.training.config import METHODS
from fastr.transition import Transition

# How long an example takes is the machine's affair.
settings.register_profile("fastr", deadline=None)
settings.load_profile("fastr")

# A shape that broadcasts by accident is an error: a (batch,) against a (2, batch), say.
jax.config.update("jax_numpy_rank_promotion", "raise")

LONGEST = (
    *("test_train", "test_probes", "test_spectral", "test_transfer", "test_representations"),
    *("test_keep", "test_structure", "test_interactions", "test_misfit", "test_sweep"),
    *("test_theory_studies", "test_cli", "test_docs", "test_export", "test_report"),
)


def pytest_collection_modifyitems(items):
    """Files that take long come first, so that no worker is alone with one in the end."""
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


SIZES = {"feature_dim": 12, "hidden_dim": 10, "noise_levels": 3, "fourier_dim": 16, "head_dim": 9}


def weights_like(shapes, seed):
    """Arrays for a tree of shapes: none of them zero, one or symmetric, so that each one counts."""
    generator = np.random.default_rng(seed)

    def leaf(path, shape):
        name = jax.tree_util.keystr(path)
        values = generator.normal(size=shape.shape)
        if not name.endswith("weight"):
            values *= 0.3
        elif "norm" in name:
            values = 1.0 + 0.2 * values
        else:
            values *= shape.shape[-2] ** -0.5
        # Not jnp.asarray, which compiles a program for every shape.
        return jax.device_put(np.asarray(values, np.float32))

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def batch_of(spec, size, seed):
    """Transitions of standard normal states, bounded actions, and one terminal row."""
    generator = np.random.default_rng(seed)
    continues = np.ones(size)
    continues[0] = 0.0
    return Transition(
        *(
            jax.device_put(np.asarray(array, np.float32))
            for array in (
                generator.normal(size=(size, spec.state_dim)),
                generator.uniform(-1, 1, size=(size, spec.action_dim)),
                generator.normal(size=(size, spec.state_dim)),
                generator.normal(size=size),
                continues,
            )
        )
    )


def spectral_of(config, spec, seed):
    """An agent with NumPy weights whose targets are other networks than its online ones."""
    shapes = jax.eval_shape(lambda key: config.init(spec, key), jax.random.key(0))
    templates = [
        jax.tree.unflatten(
            part.layout.structure,
            [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in part.layout.shapes],
        )
        for part in (shapes.representation, shapes.critics, shapes.actor)
    ]
    rates = (
        config.representation_learning_rate,
        config.critic_learning_rate,
        config.actor_learning_rate,
    )
    networks = [weights_like(template, seed + i) for i, template in enumerate(templates)]
    copied = (templates[0].readable(), *templates[1:])
    others = [weights_like(template, seed + 10 + i) for i, template in enumerate(copied)]
    return assembled(config, rates, networks, others)


@partial(jax.jit, static_argnums=(0, 1))
def assembled(config, rates, networks, others):
    """An agent of these networks and targets, packed in one program instead of a hundred."""
    parts = [Trainable.of(net, Adam(rate)) for net, rate in zip(networks, rates, strict=True)]
    targets = [Layout.of(other).pack(other) for other in others]
    return replace(Spectral.of(config, *parts), target=Target(*targets))


@pytest.fixture(scope="session", autouse=True)
def kept_engines():
    """Equal trainings of one process share their compiled programs: tracing them costs seconds.

    Engines hold programs and no state of a run; what a new process makes of a run is for the tests
    that start one. Whoever patches what is traced must not train through `fastr.training.loop`.
    """
    with pytest.MonkeyPatch.context() as patch:
        create = fastr.training.loop.Engine
        kept = cache(create)

        def engine(*sizes, log=None, **more):
            return kept(*sizes, **more) if log is None else create(*sizes, log=log, **more)

        patch.setattr(fastr.training.loop, "Engine", engine)
        yield


@pytest.fixture(scope="session")
def flat():
    """A function that lays all leaves of a tree end to end, in float64."""
    return lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(
        np.float64
    )


@pytest.fixture(scope="session")
def spec():
    """Sizes of an environment, all different."""
    return EnvSpec(state_dim=3, action_dim=2)


@pytest.fixture(scope="session")
def cp_config():
    """FaStR's representation, tiny."""
    return CPConfig(**SIZES)


@pytest.fixture(scope="session")
def joint_config():
    """CTRL-SR's representation, tiny."""
    return JointConfig(**SIZES)


@pytest.fixture(scope="session")
def agent_config(cp_config):
    """FaStR, tiny, and without residual blocks: half the compilation."""
    return SpectralConfig(
        representation=replace(cp_config, blocks=0), batch_size=8, actor_dim=7, target_rate=0.1
    )


@pytest.fixture(scope="session")
def loss_gradient():
    """The gradient of a representation's whole loss by its parameters."""
    return jax.jit(jax.grad(lambda net, batch, key: net.loss(batch, key)[0]))


@pytest.fixture(scope="session")
def make_weights():
    """See `weights_like`."""
    return weights_like


@pytest.fixture(scope="session")
def make_batch():
    """See `batch_of`."""
    return batch_of


@pytest.fixture(scope="session")
def make_agent():
    """See `spectral_of`."""
    return spectral_of


@pytest.fixture
def refused(capsys):
    """A function that runs a command line: it must end with one sentence that has these words."""
    # Not at the top: it sets XLA's flags, also for tests that want none.
    from fastr.cli import run

    def check(arguments, *words, code=2):
        capsys.readouterr()
        assert run(arguments) == code
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("fastr: ")
        assert said.err.count("\n") == 1
        for word in words:
            assert word in said.err

    return check


@pytest.fixture
def with_examples(monkeypatch):
    """The examples can be imported; what they register is forgotten afterwards."""
    folder = Path(__file__).parent.parent / "examples"
    monkeypatch.syspath_prepend(str(folder))
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)
