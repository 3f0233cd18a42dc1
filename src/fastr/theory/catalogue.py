"""Every study by name, in the order of the paper's claims."""

from typing import Protocol

from fastr.theory.report import Progress, Section
from fastr.theory.studies.certificates import CertificateStudy
from fastr.theory.studies.exploration import ExplorationStudy
from fastr.theory.studies.linearity import LinearityStudy
from fastr.theory.studies.ratio import RatioStudy
from fastr.theory.studies.separation import SeparationStudy


class Study(Protocol):
    """A study with its sizes."""

    def run(self, progress: Progress) -> Section:
        """Measure and report."""
        ...


def study(name: str, seeds: tuple[int, ...]) -> Study:
    """The study of this name at its full size."""
    return STUDIES[name](seeds)


STUDIES = {
    "linearity": LinearityStudy,
    "ratio": RatioStudy,
    "certificates": CertificateStudy,
    "separation": SeparationStudy,
    "exploration": ExplorationStudy,
}
# Shares of the time that all of them take together, for the display.
WEIGHTS = {"linearity": 1, "ratio": 20, "certificates": 2, "separation": 70, "exploration": 30}
