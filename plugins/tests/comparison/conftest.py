"""`umbel compare` in a process that has a device which is wrong on purpose."""

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from umbel import host, plugins
from umbel.cli import main
from umbel.hookspecs import Device, hookimpl
from umbel.models import architecture
from umbel.ops import OPS
from umbel_kit import comparison
from umbel_kit.models import write_model

KIT = Path(__file__).parents[2]


class Odd:
    """The host's hooks under another name; `spoil(node, slots)` follows every node."""

    UMBEL_API = 1

    def __init__(self):
        self.spoil = lambda node, slots: None
        self.refused = {}
        self.cancelled = threading.Event()

    @hookimpl
    def devices(self):
        text = "wrong on purpose"
        return [Device(f"odd:{i}", text, priority=-1, reads_host=True) for i in range(2)]

    @hookimpl
    def open(self, device, options, kernels):
        return host.open(device, options, kernels)

    @hookimpl
    def buffer_type(self, device):
        return host.buffer_type(device)

    @hookimpl
    def op_supported(self, device, node):
        return self.refused.get(node.op.name)

    @hookimpl
    def graph_compute(self, device, graph):
        host.graph_compute(device, graph)
        for node in graph.nodes:
            self.spoil(node, graph.slots)

    @hookimpl
    def forget(self, device, uid):
        host.forget(device, uid)

    @hookimpl
    def cancel(self, device):
        self.cancelled.set()


def _values(t, slots):
    slot = slots[t.storage]
    return slot.buffer.map("rw")[slot.offset :][: t.storage.nbytes].view(np.float32)


@pytest.fixture(scope="session")
def values():
    """values(tensor, slots): its float32 values, to be spoilt."""
    return _values


@pytest.fixture(scope="session")
def wrong():
    """wrong(op, factor, layer): what makes one operation wrong, and nothing else."""

    def made(op, factor=1.01, layer=""):
        def spoil(node, slots):
            if node.op.name == op and layer in node.name:
                _values(node, slots)[:] *= factor

        return spoil

    return made


@pytest.fixture
def odd():
    return Odd()


@pytest.fixture
def found(monkeypatch, odd):
    """The plugins of a process that has this command, the wrong device and the toy."""
    monkeypatch.syspath_prepend(KIT / "examples/toy-accelerator/src")
    import umbel_toy

    made = plugins.Plugins(only="")
    made.load()
    for name, plugin in (("compare", comparison), ("odd", odd), ("toy", umbel_toy)):
        made.add(name, plugin)
    monkeypatch.setattr(plugins, "_process", made)
    yield made
    made.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """model(arch, dtype): the path of a tiny one."""
    folder = tmp_path_factory.mktemp("compare")

    def written(arch="llama", dtype="f32"):
        path = folder / f"{arch}-{dtype}.gguf"
        return (
            path if path.exists() else write_model(path, architecture(arch), OPS, dtype=dtype)
        )

    return written


@pytest.fixture
def umbel(found, capsys):
    """umbel(*words): exit code, stdout and stderr of `umbel compare`."""

    def run(*words):
        code = main(["compare", *map(str, words)])
        said = capsys.readouterr()
        return SimpleNamespace(code=code, out=said.out, err=said.err)

    return run
