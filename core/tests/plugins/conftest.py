"""Small fake plugins, and the plugins of a process that has no others but the host."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from umbel import plugins as module
from umbel.backend import Source
from umbel.hookspecs import Device, DeviceInfo, hookimpl
from umbel.plugins import Plugins


class Memory:
    """A buffer type that nobody allocates from."""

    alignment, max_size = 64, 2**40
    is_host = separate = in_place = False

    def alloc_size(self, tensor):
        return tensor.nbytes

    def readable_by(self, device):
        return False

    def accepts(self, tensor):
        return tensor.dtype

    def allocate(self, nbytes, usage):
        raise MemoryError

    def store(self, tensor, array):
        raise MemoryError


def good_hooks(name: str, priority: int, indexes: tuple[int, ...]) -> dict[str, Callable]:
    return {
        "devices": lambda: [Device(f"{name}:{i}", f"number {i}", priority) for i in indexes],
        "open": lambda device, options, kernels: DeviceInfo(
            details={"options": dict(options), "kernels": list(kernels)}
        ),
        "buffer_type": lambda device: Memory(),
        "op_supported": lambda device, node: None,
        "graph_compute": lambda device, graph: None,
    }


def make_plugin(
    name: str,
    priority: int = 1,
    indexes: tuple[int, ...] = (0,),
    api: Any = 1,
    without: tuple[str, ...] = (),
    **hooks: Callable,
) -> types.ModuleType:
    """A plugin module: a good backend, with some hooks replaced, added or left out."""
    made = types.ModuleType(f"umbel_{name}")
    if api is not None:
        made.UMBEL_API = api
    for hook, function in (good_hooks(name, priority, indexes) | hooks).items():
        if hook not in without:
            setattr(made, hook, hookimpl(function))
    return made


@pytest.fixture
def make() -> Callable[..., types.ModuleType]:
    return make_plugin


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """The built-in host, no entry points, and a short time limit."""
    monkeypatch.setattr(module, "TIME_LIMIT", 0.25)
    return Plugins(only="")


class Row(NamedTuple):
    """What `describe` tells of one plugin."""

    source: Source
    reason: str
    devices: list[str]


@pytest.fixture
def row(plugins: Plugins) -> Callable[[str], Row]:
    """What is told of the plugin of this name."""

    def find(name: str) -> Row:
        rows = [Row(*told) for told in plugins.describe()]
        return next(row for row in rows if row.source.name == name)

    return find
