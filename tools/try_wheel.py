"""Tries the built package: all files are in it, and it trains in an empty environment.

python tools/try_wheel.py dist 3.11 3.12 3.13

For each version of Python that can be found here: a new environment, the wheel and its dependencies
and nothing else, then `fastr --help`, a tiny training and an evaluation outside the checkout.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "fastr"
TINY = shlex.split(
    "train gym:Pendulum-v1 --preset laptop --frames 400 --random-frames 200 --eval-frames 400 "
    "--eval-episodes 1 --batch-size 8 --hidden-dim 8 --blocks 0 --out run"
)


def missing_files(dist: Path) -> list[str]:
    """What lies in src/fastr and not in the wheel, or not in the source distribution."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    paths = [p for p in SOURCE.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    wanted = {str(path.relative_to(SOURCE.parent)) for path in paths}
    inside = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/src/")[2] for name in archive.getnames()}
    return [f"{wheel.name}: {name}" for name in sorted(wanted - inside)] + [
        f"{sdist.name}: {name}" for name in sorted(wanted - packed)
    ]


def interpreter(version: str) -> str | None:
    """A Python of this version, on the path or among pyenv's, that really starts."""
    named = shutil.which(f"python{version}")
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in [named, *map(str, kept)]:
        if candidate is None:
            continue
        if not subprocess.run([candidate, "-V"], check=False, capture_output=True).returncode:
            return candidate
    return None


def attempt(python: str, wheel: Path, folder: Path) -> str:
    """Install and use the wheel; what went wrong, if anything did."""
    try:
        use(python, wheel, folder)
    except subprocess.CalledProcessError as error:
        return "\n".join([str(error), *error.stderr.splitlines()[-10:]])
    return ""


def use(python: str, wheel: Path, folder: Path) -> None:
    """Install the wheel into a new environment, then train and evaluate."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean |= {"MUJOCO_GL": "disable"}

    def call(*arguments: str) -> str:
        return subprocess.run(
            arguments, cwd=folder, env=clean, check=True, capture_output=True, text=True
        ).stdout

    call(python, "-m", "venv", "env")
    binaries = folder / "env" / "bin"
    call(str(binaries / "pip"), "install", "--quiet", str(wheel))
    place = call(str(binaries / "python"), "-c", "import fastr; print(fastr.__file__)").strip()
    if not Path(place).is_relative_to(folder):
        raise RuntimeError(f"fastr was imported from {place}, not from the new environment")
    call(str(binaries / "fastr"), "--help")
    call(str(binaries / "fastr"), *TINY)
    call(str(binaries / "fastr"), "eval", "run", "--episodes", "1", "--json")
    found = json.loads((folder / "run" / "config.json").read_text())["provenance"]["commit"]
    if found is None:
        raise RuntimeError("the run does not know the commit that the wheel was built from")


def main() -> None:
    """Check the files, then try every version; exit code 1 if anything failed or none was found."""
    dist, versions = Path(sys.argv[1]).resolve(), sys.argv[2:]
    if missing := missing_files(dist):
        sys.exit("\n".join(["Not in the package:", *missing]))
    (wheel,) = dist.glob("*.whl")
    outcomes = []
    for version in versions:
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not found here, not tried", flush=True)
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fastr-wheel-") as folder:
            fault = attempt(python, wheel, Path(folder).resolve())
        outcome = f"failed: {fault}" if fault else "installed, trained, evaluated"
        print(f"Python {version}: {outcome}, {time.monotonic() - begun:.0f} s", flush=True)
        outcomes.append(fault)
    sys.exit(0 if outcomes and not any(outcomes) else 1)


if __name__ == "__main__":
    main()
