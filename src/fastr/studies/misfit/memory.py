"""Whether a diagnosis fits into memory, said before anything is read or trained."""

from functools import lru_cache

import jax
import jax.numpy as jnp

from fastr.core import EnvSpec, UserError, counted
from fastr.data import About
from fastr.studies.misfit.config import KINDS, Kind, MisfitConfig, PredictorConfig
from fastr.studies.misfit.predictors import SAMPLE_ROWS, Scales
from fastr.studies.misfit.program import Program
from fastr.training.count import parameters, peak_bytes, program_bytes
from fastr.training.memory import MEBIBYTE, available_on_host, free_bytes


def check_fits(config: MisfitConfig, spec: EnvSpec, datasets: int = 1) -> None:
    """Raise UserError if the predictors of so many datasets are too many for what is free."""
    free, cells = free_bytes(), datasets * len(config.seeds)
    needed = cells * cell_bytes(config, spec) + program_bytes()
    if free is None or needed <= free:
        return
    fewer = "one dataset at a time, " if datasets > 1 else ""
    raise UserError(
        f"{counted(datasets, 'dataset')} with {counted(len(config.seeds), 'seed')} would take "
        f"about {needed // MEBIBYTE:,} MiB of memory, and {free // MEBIBYTE:,} MiB are free: "
        f"use {fewer}fewer --seeds or --noise-levels, a smaller --batch-size or network."
    )


def check_statistics(config: MisfitConfig, about: About) -> None:
    """Raise UserError if the host cannot hold a dataset's targets while it takes their moments."""
    free = available_on_host()
    targets = about.spec.state_dim + config.predictor.fourier_targets
    # Three arrays of them at a time, and the projections.
    rows = 3 * min(about.rows, SAMPLE_ROWS, config.limit or SAMPLE_ROWS) + about.spec.state_dim
    needed = 8 * rows * targets
    if free is not None and needed > free:
        raise UserError(
            f"{about.name}: {targets:,} targets need about {needed // MEBIBYTE:,} MiB of memory, "
            f"and {free // MEBIBYTE:,} MiB are free: use fewer --fourier-targets."
        )


@lru_cache
def cell_bytes(config: MisfitConfig, spec: EnvSpec) -> int:
    """Device memory of one seed on one dataset: both predictors, one of them in an update."""
    found = [predictor_bytes(config, kind, spec) for kind in KINDS]
    return sum(state for state, _ in found) + max(working for _, working in found)


def predictor_bytes(config: MisfitConfig, kind: Kind, spec: EnvSpec) -> tuple[int, int]:
    """What one predictor keeps, with its best parameters; and the most that an update works on."""
    program = Program(config, kind, spec)
    single = jax.eval_shape(program.fresh, clock := jax.ShapeDtypeStruct((), jnp.int32))
    kept = 4 * (parameters(single) + parameters(single.parameters))
    batch = (config.predictor.batch_size, spec.packed_dim)
    rows, scales = jax.ShapeDtypeStruct(batch, jnp.float32), shapes_of(config.predictor, spec)
    update = jax.make_jaxpr(program.update)(single, scales, rows, clock, clock)
    return kept, peak_bytes(update.jaxpr)


def shapes_of(config: PredictorConfig, spec: EnvSpec) -> Scales:
    """The scales of one dataset, as shapes."""
    packed = spec.packed_dim
    fourier, targets = config.fourier_targets, spec.state_dim + config.fourier_targets
    sizes = [(packed,), (packed,), (spec.state_dim, fourier), (fourier,), *[(targets,)] * 3]
    return jax.eval_shape(lambda: Scales(*(jnp.zeros(size) for size in sizes)))
