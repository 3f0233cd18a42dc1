"""Transitions from elsewhere: Minari, Parquet, NPZ and the replay of a run.

`open_source(name)` opens a dataset (formats.py chooses the reader: formats.py, minari.py, replay.py) and reads its
headers; `spool` checks every number and gives a `Dataset` that is mapped from disk (dataset.py). collect.py writes
datasets, in Minari's format: what `fastr collect` does. It alone loads JAX.
"""

from fastr.data.dataset import About, Chunk, Dataset, Source, require_bounds, spool
from fastr.data.formats import open_source

__all__ = ["About", "Chunk", "Dataset", "Source", "open_source", "require_bounds", "spool"]
