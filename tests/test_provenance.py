"""A result says where it comes from, also where packages or the processor's name are not known."""

import json
import sys
from pathlib import Path

import numpy as np

from fastr.runs import provenance


def test_provenance_names_what_made_a_run(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fastr", "train"])
    found = provenance.provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["command"] == ["fastr", "train"]
    assert found["packages"]["numpy"] == np.__version__
    assert found["cores"] >= 1
    assert found["cpu"]
    assert found["started"].endswith("+00:00")


def test_provenance_does_without_packages_and_cpuinfo(monkeypatch):
    assert provenance.package_version("no-such-package") is None

    def refuse(*_):
        raise OSError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert provenance.cpu_model() == provenance.platform.processor()
