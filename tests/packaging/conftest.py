"""The archives that are looked at: those in the folder UMBEL_DIST, else freshly made ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the scripts beside the tests

import distributions


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every wheel and sdist."""
    made = os.environ.get("UMBEL_DIST")
    if made:
        return Path(made).resolve()
    folder = tmp_path_factory.mktemp("dist")
    distributions.build(folder)
    return folder


@pytest.fixture(scope="session")
def constraints(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For pip: our distributions are those wheels, whatever an index has under their names."""
    file = tmp_path_factory.mktemp("pip") / "constraints.txt"
    wheels = [(d.name, *d.wheels(dist)) for d in distributions.DISTRIBUTIONS]
    file.write_text("".join(f"{name} @ {wheel.as_uri()}\n" for name, wheel in wheels))
    return file
