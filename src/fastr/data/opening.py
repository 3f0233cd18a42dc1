"""Which reader a path means."""

from pathlib import Path

from fastr.core import UserError
from fastr.data.base import Source
from fastr.data.minari import Minari, installed, is_minari
from fastr.data.npz import Npz
from fastr.data.parquet import Parquet
from fastr.data.replay import RunReplay
from fastr.runs.directory import CONFIG

FILES = {".npz": Npz, ".parquet": Parquet, ".pq": Parquet}


def open_source(name: str) -> Source:
    """The dataset at this path, or of this name among Minari's; UserError if there is none."""
    path = Path(name)
    if path.is_dir():
        return open_directory(path)
    if path.is_file():
        if path.suffix.lower() not in FILES:
            raise UserError(
                f"{path} ends in {path.suffix or 'nothing'}; a dataset is a .npz or .parquet "
                "file, a Minari directory or a run directory (docs/misfit.md shows how to convert)."
            )
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty: it has no content at all.")
        return FILES[path.suffix.lower()](path)
    # A name, not a path that leads somewhere else.
    if name and not path.is_absolute() and ".." not in path.parts and is_minari(installed(name)):
        return Minari(installed(name))
    raise UserError(
        f"{name} does not exist: give a Minari dataset, a run directory, a .npz or a .parquet file."
    )


def open_directory(path: Path) -> Source:
    """A Minari dataset or a run."""
    if is_minari(path):
        return Minari(path)
    if (path / CONFIG).is_file():
        return RunReplay(path)
    raise UserError(
        f"{path} is neither a Minari dataset (no data/metadata.json) nor a run directory "
        f"(no {CONFIG})."
    )
