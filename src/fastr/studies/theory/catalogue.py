"""Every study by name, in the order of the paper's claims."""

from fastr.studies.theory.studies.certificates import CertificateStudy
from fastr.studies.theory.studies.exploration import ExplorationStudy
from fastr.studies.theory.studies.linearity import LinearityStudy
from fastr.studies.theory.studies.ratio import RatioStudy
from fastr.studies.theory.studies.separation import SeparationStudy

STUDIES = {
    "linearity": LinearityStudy,
    "ratio": RatioStudy,
    "certificates": CertificateStudy,
    "separation": SeparationStudy,
    "exploration": ExplorationStudy,
}
# Shares of the time that all of them take together, for the display.
WEIGHTS = {"linearity": 1, "ratio": 15, "certificates": 2, "separation": 55, "exploration": 27}
