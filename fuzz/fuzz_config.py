"""config.json of a run directory, up to the configuration that is built from it."""

import json

from harness import atheris, edited, folder, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr.envs import parse
    from fastr.report.reading import run_series
    from fastr.runs.directory import RunDirectory
    from fastr.training.config import from_json, preset, to_json

PLACE = folder()
METHODS = ("fastr", "tree", "block", "diff-sr", "sac", "td7", "td3")
SOUND = [
    {"train": to_json(preset("walker-walk", name, "laptop")), "provenance": {"command": ["fastr"]}}
    for name in METHODS
]
SOUND = json.loads(json.dumps(SOUND))
(PLACE / "rows.jsonl").write_bytes(
    b'{"kind": "evaluation", "seed": 0, "frames": 0, "return": 1.0, "seconds": 1.0}\n'
)


def read(data: bytes) -> None:
    """Open the run as `fastr eval` does, then as `fastr report` does.

    A first byte of less than 7 chooses a sound configuration, which the rest edits.
    """
    if data and data[0] < len(SOUND):
        data = edited(SOUND[data[0]], data[1:])
    (PLACE / "config.json").write_bytes(data)
    run = RunDirectory.open(PLACE)
    try:
        parse(from_json(run.config["train"]).task)
    finally:
        run_series(PLACE)


if __name__ == "__main__":
    fuzz(read, PLACE)
