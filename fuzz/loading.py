"""What `fastr misfit` does with a dataset before it trains: every number is checked and copied."""

from pathlib import Path

from harness import atheris

with atheris.instrument_imports(include=["fastr"]):
    from fastr.data import Source, require_bounds, spool


def spooled(source: Source, path: Path) -> None:
    """The dataset as packed rows, which must be as many as it promised."""
    require_bounds(source)
    store = spool(source, path, observed_bounds=False, advance=lambda _: None)
    if len(store.rows) != source.about.rows:
        raise AssertionError(f"{len(store.rows)} rows of {source.about.rows}")
