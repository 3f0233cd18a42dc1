"""The demonstration behind `make demo`: train, draw the curve, film the gait, say where it is."""

import subprocess
import sys
from datetime import datetime
from pathlib import Path

from fastr.cli import run

TASK = "walker-walk"


def main() -> int:
    """Train FaStR on walker-walk with the quick preset, then film the learned gait."""
    out = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    print(f"Training FaStR on {TASK} (preset quick); this takes a few minutes.", file=sys.stderr)
    if code := run(["train", TASK, "--preset", "quick", "--out", str(out)]):
        return code
    video = out / "gait.mp4"
    print("Filming the learned gait ...", file=sys.stderr)
    # A process of its own: this one has loaded the simulator without a renderer.
    play = [sys.executable, "-m", "fastr.cli", "play", str(out), "--video", str(video)]
    if subprocess.run(play, check=False).returncode == 0:
        print(f"video           {video}")
    else:
        print("Everything else is in place; only the video is missing.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
