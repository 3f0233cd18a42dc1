"""Run every fuzzing program for a while, one at a time, and say what came of it.

Corpora grow in build/fuzz/corpus and are used again; inputs that break something are kept in
build/fuzz/broken. The table is written to build/fuzz/campaign.json and printed.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "fuzz"
LAST = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)")


def targets() -> list[str]:
    """All programs, by name."""
    return sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))


def campaign(target: str, seconds: float, runs: int) -> dict[str, object]:
    """One program for so long, or for so many inputs."""
    corpus, broken = BUILD / "corpus" / target, BUILD / "broken" / target
    for folder in (corpus, broken):
        folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(HERE / f"fuzz_{target}.py"), str(corpus)]
    command += [
        str(BUILD / "seeds" / target),
        f"-artifact_prefix={broken}/",
        "-print_final_stats=1",
    ]
    command += [f"-max_total_time={int(seconds)}", f"-runs={runs}"]
    start = time.monotonic()
    log = BUILD / f"{target}.log"
    with log.open("wb") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
    found = LAST.findall(log.read_text(errors="replace")) or [("0", "0", "0", "0")]
    executions, coverage, features, inputs = map(int, found[-1])
    return {
        "executions": executions,
        "seconds": round(time.monotonic() - start, 1),
        "coverage": coverage,
        "features": features,
        "inputs": inputs,
        "exit_code": done.returncode,
        "broken": sorted(path.name for path in broken.iterdir()),
    }


def main() -> None:
    """All programs, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=targets(), help="default: all of them")
    parser.add_argument("--minutes", type=float, default=5.0, help="for each program")
    parser.add_argument("--runs", type=int, default=-1, help="inputs for each; -1: no limit")
    options = parser.parse_args()
    subprocess.run([sys.executable, str(HERE / "seeds.py")], check=True)
    table, broken = BUILD / "campaign.json", []
    for target in options.targets:
        result = campaign(target, 60 * options.minutes, options.runs)
        print(json.dumps({"target": target} | result), flush=True)
        known = json.loads(table.read_text()) if table.exists() else {}
        table.write_text(json.dumps(known | {target: result}, indent=1))
        broken += [target] if result["exit_code"] else []
    sys.exit(f"broken: {', '.join(broken)}" if broken else 0)


if __name__ == "__main__":
    main()
