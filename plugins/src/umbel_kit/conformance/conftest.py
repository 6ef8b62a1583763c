"""The device under test, opened once."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from umbel.graph import Operation
    from umbel.plan import Placer, Target

    from umbel_kit.cases import Case

FOLDER = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Nothing is timed unless that was asked for."""
    timing = collection_path.name == "test_perf.py" and not config.option.umbel_perf
    return True if timing else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Operations first: a wrong one explains what fails in pieces and models."""
    ours = [i for i, item in enumerate(items) if item.path.parent == FOLDER]
    files = ("test_ops.py", "test_memory.py", "test_composites.py", "test_models.py")
    order = {name: i for i, name in enumerate(files)}
    moved = sorted((items[i] for i in ours), key=lambda item: order.get(item.path.name, 9))
    for i, item in zip(ours, moved, strict=True):
        items[i] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Where a plan would say `--check`, which pytest does not have, another way is told."""
    from umbel.errors import DeviceError

    try:
        yield
    except DeviceError as error:
        if error.do and "--check" in error.do:
            error.do = f"`{compare_command(item.config)}` finds the node"
        raise


def compare_command(config: pytest.Config) -> str:
    """What finds the node that is wrong, in the model that was used last, if any was."""
    from umbel_kit.pytest_plugin import MODEL

    options = [word for text in config.option.umbel_option for word in ("-O", text)]
    model = config.stash.get(MODEL, "MODEL")
    device = config.option.umbel_device
    return shlex.join(["umbel", "compare", model, "--device", device, *options])


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


@pytest.fixture(scope="session")
def host() -> Target:
    from umbel import plugins

    found = plugins.get()
    return found.open(found.find("host"))


@pytest.fixture(scope="session")
def placer(target, host, ops) -> Placer:
    """Knows in which form the device takes what it refuses as it is."""
    from umbel.plan import Placer

    return Placer([target, host], ops)


@pytest.fixture
def refused(request: pytest.FixtureRequest, target, placer):
    """refused(case, reason): the third outcome, neither right nor wrong; told at the end."""
    from umbel_kit.coverage import instead
    from umbel_kit.pytest_plugin import ANSWERS, Answers

    answers = request.config.stash.setdefault(ANSWERS, Answers(target.info.compute_dtype))
    answers.asked += 1

    def note(case: Case, reason: str) -> None:
        form, why = instead(case, target, placer)
        reason = f"{reason}; in pieces: {why}" if why else reason
        told = answers.formed if form else answers.refused
        told.append(f"{form}: {reason}" if form else reason)
        pytest.skip(f"{form or 'not supported'}: {reason}")

    return note


@pytest.fixture
def right():
    """right(fault, what, how): fails by one line, unless there is no fault to tell."""

    def check(fault: str, *what: object) -> None:
        if fault:
            pytest.fail(f"{fault} ({', '.join(map(str, what))})", pytrace=False)

    return check
