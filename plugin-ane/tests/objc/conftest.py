"""The private API's driver on a fake of the system."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ane_framework import Framework
from umbel_ane.drivers.objc import Private
from umbel_ane.drivers.objc.model import Process
from umbel_ane.drivers.simulator import reset


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program was compiled yet, and this is a Mac."""
    reset()
    monkeypatch.setattr(Process, "compiles", 0)
    monkeypatch.setattr("umbel_ane.drivers.choose.macos", lambda: "15.3")
    monkeypatch.setattr("umbel_ane.drivers.objc.model.RETRY", 0.0)


@pytest.fixture
def framework(tmp_path: Path) -> Framework:
    return Framework(tmp_path / "tmp")


@pytest.fixture
def private(framework: Framework) -> Iterator[Private]:
    """An open driver. In the end nothing may be left: no object, no surface, no folder."""
    driver = Private.open(framework)
    yield driver
    driver.close()
    gc.collect()  # what an error's traceback holds
    assert not framework.objects
    assert not framework.living_surfaces
    assert not framework.pools
    assert not framework.unpooled
    left = [p.name for p in framework.temporary.glob("*") if p.name != "umbel-ane"]
    assert not left
