"""The actuators have changed: go on from what was learned before.

python examples/new_actuators.py degradation:3 all             # a weaker motor
python examples/new_actuators.py reverse:0 representation      # a motor wired the other way round

A policy that still half works is a start. One that pushes the wrong way fills the replay with
failures: then take the representation alone, or start anew. docs/transfer.md has all changes.
"""

import sys

import fastr

TASK = "gym:Pendulum-v1"


def main(change="degradation:3", parts="all", frames="8000", tuning_frames="8000"):
    """Train, look at the old policy on the changed robot, fine-tune it there."""
    before = fastr.train(TASK, frames=int(frames), eval_frames=int(frames))
    changed = f"{TASK}@{change}"
    # The same policy on another robot: nothing is trained here.
    unadapted = fastr.load(before.path, env=changed)
    tuned = fastr.train(
        changed,
        init=str(before.path),
        init_parts=parts,
        frames=int(tuning_frames),
        random_frames=500,
        eval_frames=int(tuning_frames),
    )
    runs = {"before": before, "old policy": unadapted, "fine-tuned": tuned}
    for name, run in runs.items():
        # Ten episodes that training was not evaluated on.
        print(f"{name:12}{run.config.task:34}{run.evaluate(10).mean():8.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
