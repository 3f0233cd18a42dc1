"""A stand-in for `fastr train` and `fastr resume` that starts at once: it writes a real run
directory with real checkpoints, and learns nothing. The name of the task says what goes wrong:

good            nothing
slow            nothing, at 50 ms a row
deaf            as slow, and SIGTERM does not end it
crash=FRAMES    killed at each of these frames (joined by +), once each
fail            exit code 1 at the start
refuse          exit code 2 and one sentence
make            no run: writes the file --out
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from fastr.runs.checkpoints import Snapshot
from fastr.runs.directory import RunWriter

STEP_FRAMES, SAVE_FRAMES = 20, 100


def value(arguments, option):
    return arguments[arguments.index(option) + 1]


def opened(arguments):
    if arguments[0] == "resume":
        return RunWriter.resume(arguments[1])
    train = {"task": arguments[1], "frames": int(value(arguments, "--frames"))}
    record = {"train": train, "provenance": {"command": sys.argv}}
    return RunWriter.create(value(arguments, "--out"), record), None


def train(arguments):
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    writer, checkpoint = opened(arguments)
    with writer:
        task, budget = writer.config["train"]["task"], writer.config["train"]["frames"]
        frames = saved = checkpoint.frames if checkpoint else 0
        while frames < budget and (not stopped or "deaf" in task):
            time.sleep(0.05 if "slow" in task or "deaf" in task else 0)
            frames += STEP_FRAMES
            row = {"kind": "evaluation", "seed": 0, "frames": frames, "agent_steps": frames // 2}
            writer.append(row | {"seconds": frames / 1000, "return": float(frames)})
            if frames % SAVE_FRAMES == 0:
                save(writer, frames, saved)
                saved = frames
                mark = writer.path.with_name(f"{writer.path.name}-crashed-{frames}")
                if str(frames) in task.removeprefix("crash=").split("+") and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
        if frames > saved:
            save(writer, frames, saved)
    if frames < budget:
        sys.exit(128 + signal.SIGTERM)


def save(writer, frames, saved):
    rows = np.full((frames - saved, 1, 3), frames, np.float32)
    arrays = {"frames": np.array([frames])}
    writer.begin_save(Snapshot(frames, arrays, {}, rows, saved, 10**6), keep=2)
    writer.finish_save()


def main(arguments):
    if arguments[0] == "make":
        Path(value(arguments, "--out")).write_text("whole")
    elif arguments[1] == "fail":
        print("first line\nthe reason for it", file=sys.stderr)
        sys.exit(1)
    elif arguments[1] == "refuse":
        print("fastr: that cannot be.", file=sys.stderr)
        sys.exit(2)
    else:
        train(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
