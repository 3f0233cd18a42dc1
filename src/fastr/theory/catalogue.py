"""Every study by name, in the order of the paper's claims."""

from fastr.theory.studies.certificates import CertificateStudy
from fastr.theory.studies.exploration import ExplorationStudy
from fastr.theory.studies.linearity import LinearityStudy
from fastr.theory.studies.ratio import RatioStudy
from fastr.theory.studies.separation import SeparationStudy

STUDIES = {
    "linearity": LinearityStudy,
    "ratio": RatioStudy,
    "certificates": CertificateStudy,
    "separation": SeparationStudy,
    "exploration": ExplorationStudy,
}
# Shares of the time that all of them take together, for the display.
WEIGHTS = {"linearity": 1, "ratio": 15, "certificates": 2, "separation": 55, "exploration": 27}
