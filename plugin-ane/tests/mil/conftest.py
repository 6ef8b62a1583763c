"""Programs as text; helpers of these tests stand beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def newer() -> str:
    """program(1.3), with comments and both ways to write a float."""
    return (DATA / "newer.mil").read_text("utf-8")


@pytest.fixture(scope="session")
def older() -> str:
    """program(1.0), with flexible shapes and a minus that is no hyphen."""
    return (DATA / "older.mil").read_text("utf-8")
