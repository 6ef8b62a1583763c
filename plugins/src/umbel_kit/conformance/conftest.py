"""The device under test, opened once."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from umbel.graph import Operation
    from umbel.plan import Target

    from umbel_kit.cases import Case


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Nothing is timed unless that was asked for."""
    timing = collection_path.name == "test_perf.py" and not config.option.umbel_perf
    return True if timing else None


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """The device, with the options that were given; whatever keeps it from opening fails."""
    from umbel import plugins

    options = plugins.parse_options(request.config.option.umbel_option)
    found = plugins.get()
    return found.open(found.find(request.config.option.umbel_device), options)


@pytest.fixture(scope="session")
def ops() -> Mapping[str, Operation]:
    """All operations, those of plugins too."""
    return all_operations()


def all_operations() -> Mapping[str, Operation]:
    from umbel import plugins
    from umbel.ops import OPS

    return {**OPS, **{op.name: op for _, brought in plugins.get().ask("ops") for op in brought}}


def all_cases(config: pytest.Config) -> list[Case]:
    """Those of the kit, and of the modules that were named."""
    from umbel_kit.cases import CASES

    modules = map(import_module, config.option.umbel_cases)
    return [*CASES, *(case for module in modules for case in getattr(module, "CASES", ()))]


@pytest.fixture
def refused(request: pytest.FixtureRequest):
    """refused(reason): the third outcome, neither right nor wrong; told at the end."""
    from umbel_kit.pytest_plugin import REFUSED

    def note(reason: str) -> None:
        told = request.config.stash.setdefault(REFUSED, {})
        told.setdefault(reason, []).append(request.node.name)
        pytest.skip(f"not supported: {reason}")

    return note
