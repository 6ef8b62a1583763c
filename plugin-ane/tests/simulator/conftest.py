"""A process as new for each test: its compile counter is one of a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the rig stands beside the tests

from umbel_ane.drivers import simulator


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    simulator.reset()
    yield
    simulator.reset()
