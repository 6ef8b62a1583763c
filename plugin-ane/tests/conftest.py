"""What all tests of the plugin share: no simulator and no cache of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from umbel_ane.drivers.simulator import clock

sys.path.insert(0, str(Path(__file__).parent))  # what tests share stands beside them

ORACLES = Path(__file__).parents[2] / "core" / "tests" / "data" / "oracles"


@pytest.fixture(autouse=True)
def nothing_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And a simulated process of its own for each test, which may compile so many."""
    clock.reset()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for name in ("UMBEL_ANE_SIMULATOR", "UMBEL_ANE_FAULT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def oracles() -> Path:
    """The folder of tiny models and what others computed with them."""
    return ORACLES
