"""The aarch64 machine in the folder UMBEL_ARM, which `machine.py` made."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the scripts beside the tests


@pytest.fixture(scope="session")
def folder() -> Path:
    return Path(os.environ["UMBEL_ARM"]).resolve()


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results on the processor that runs the tests."""
    import results

    path = tmp_path_factory.mktemp("results") / "here.npz"
    results.write(path)
    return path
