"""What pyproject.toml cannot say: a built package records the commit that it was built from."""

import json
import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PROVENANCE = runpy.run_path(str(Path(__file__).parent / "src" / "fastr" / "runs" / "provenance.py"))
# Asked before anything is built: a source distribution is put together inside the checkout.
COMMIT = PROVENANCE["commit"]()


def record_commit(package: Path) -> None:
    """Write the commit into a copy of the package, if it is known here."""
    if COMMIT is not None:
        (package / "runs" / PROVENANCE["RECORD"].name).write_text(json.dumps(COMMIT))


class RecordingBuild(build_py):
    """For wheels; an editable installation is the checkout, which can be asked itself."""

    def run(self) -> None:
        """Copy the package, then record."""
        super().run()
        if not self.editable_mode:
            record_commit(Path(self.build_lib) / "fastr")


class RecordingSdist(sdist):
    """For source distributions: wheels built from one have no checkout to ask."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, then record."""
        super().make_release_tree(base_dir, files)
        record_commit(Path(base_dir) / "src" / "fastr")


setup(cmdclass={"build_py": RecordingBuild, "sdist": RecordingSdist})
