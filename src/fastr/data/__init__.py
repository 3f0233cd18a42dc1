"""Transitions from files: Minari, LeRobot, Parquet, NPZ and the replay of a run.

`open_source(name)` chooses the reader (formats.py, minari.py, lerobot.py) and checks the headers;
`spool` checks every number and gives a `Dataset`, mapped from disk (dataset.py). collect.py writes
datasets in Minari's format for `fastr collect`, logs.py reads what `fastr train --data` mixes in;
these two load JAX.
"""

from fastr.data.dataset import About, Chunk, Dataset, Source, require_bounds, spool
from fastr.data.formats import open_source

__all__ = ["About", "Chunk", "Dataset", "Source", "open_source", "require_bounds", "spool"]
