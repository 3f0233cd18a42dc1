"""state.safetensors and a replay segment; the index is made to agree with whatever they hold."""

import contextlib
from dataclasses import replace

from harness import UserError, atheris, folder, fuzz

with atheris.instrument_imports(include=["fastr"]):
    from fastr.data.formats import RunReplay
    from fastr.runs import STATE, RunDirectory
    from fastr.runs.checkpoints import index_bytes, read_index
    from fastr.runs.files import file_record
    from fastr.training.state import saved_spec
from transitions import walk, write_run

PLACE = folder()
RUN = write_run(PLACE / "run", walk())
SOUND = read_index(RUN, 40)
NAMES = (STATE, SOUND.segments[-1].name)
CONTENTS = [SOUND.location(name).read_bytes() for name in NAMES]


def read(data: bytes) -> None:
    """The arrays, the replay, and the run as a dataset."""
    if not data:
        return
    victim = data[0] % 2
    for i, name in enumerate(NAMES):
        SOUND.location(name).write_bytes(data[1:] if i == victim else CONTENTS[i])
    records = {name: file_record(SOUND.location(name)) for name in NAMES}
    index = replace(SOUND, files=SOUND.files | records)
    (RUN / "checkpoints" / SOUND.name / "index.json").write_bytes(index_bytes(index))
    checkpoint = RunDirectory.open(RUN).latest_complete()
    with contextlib.suppress(UserError):
        saved_spec(checkpoint.arrays())
    for _ in checkpoint.replay_slices(8):
        pass
    for _ in RunReplay(RUN).chunks():
        pass


if __name__ == "__main__":
    fuzz(read, PLACE)
