"""The machine that the tests run in, and the native library."""

import os
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import inside
from machines import MACHINES, Machine


@pytest.fixture(scope="session")
def machine() -> Machine:
    name = os.environ.get("UMBEL_MACHINE")
    if name is None:
        pytest.skip("needs a machine of several nodes: `nox -s numa` boots some")
    return MACHINES[name]


@pytest.fixture(scope="session")
def native(machine: Machine) -> Any:
    """The engine's library."""
    return inside.library(str(files("umbel_numa") / "libumbel_numa.so"))


@pytest.fixture(scope="session")
def counting(machine: Machine) -> Any:
    """The runtime alone, built so that it counts what crosses between nodes."""
    return inside.library(os.environ["UMBEL_COUNTING"], counting=True)


@pytest.fixture
def memory(native: Any, machine: Machine) -> Iterator[Callable[[int], inside.Memory]]:
    """memory(bytes); freed in the end."""
    made: list[inside.Memory] = []

    def allocate(nbytes: int) -> inside.Memory:
        made.append(inside.Memory(native, nbytes, len(machine.nodes)))
        return made[-1]

    yield allocate
    for one in made:
        one.free()
