"""What the tests of the examples share: a process that has them, tiny models, one operation.

`umbel_toy` has every awkward trait of a real accelerator; what a clause of the contract between
core and backends promises is proven on it. Operations that watch, wait or fail are kernels that
the tests bring for the toy: `meddle`.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import umbel
from umbel import plugins
from umbel.gguf.types import F32
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Kernel, SplitGraph, hookimpl
from umbel.models import architecture
from umbel.ops import OPS
from umbel.plan import Arenas, Placer, Plan, States, Target, make
from umbel.plugins import Plugins
from umbel_kit.compare import nmse
from umbel_kit.models import write_model

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = {"toy": "toy-accelerator", "relu_sqr": "extra-operation"}
MEMORY = 1 << 24
LIMIT = 3e-4  # NMSE of a row of logits: float16 rounds in every layer


@pytest.fixture(autouse=True, scope="session")
def installed():
    lacking = NAMES.keys() - {entry.name for entry in entry_points(group="umbel")}
    if lacking:
        folders = " ".join(f"./plugins/examples/{NAMES[name]}" for name in sorted(lacking))
        pytest.fail(f"these tests need the examples: pip install {folders}")


@pytest.fixture(scope="session")
def examples() -> Path:
    """The folder of the examples."""
    return EXAMPLES


@pytest.fixture(scope="session")
def memory() -> int:
    """The bytes that the toy has in these tests."""
    return MEMORY


@pytest.fixture(scope="session")
def ids() -> list[int]:
    """Sixty-three tokens."""
    return np.random.default_rng(7).integers(3, 256, 63).tolist()


@pytest.fixture(scope="session")
def toys() -> Callable[[], list[threading.Thread]]:
    """toys(): the threads of the machines that are open."""
    return lambda: [thread for thread in threading.enumerate() if thread.name == "toy"]


@pytest.fixture
def found(
    monkeypatch: pytest.MonkeyPatch, toys: Callable[[], list[threading.Thread]]
) -> Iterator[Plugins]:
    """The examples and the host, as a new process finds them."""
    made = Plugins("toy,relu_sqr")
    monkeypatch.setattr(plugins, "_process", made)
    yield made
    made.close()
    assert not toys()


@pytest.fixture
def toy(found: Plugins) -> Target:
    return found.open(found.find("toy"), {"toy": {"memory": MEMORY}})


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """file(architecture, **settings): a tiny model."""
    folder = tmp_path_factory.mktemp("models")

    def written(arch: str, **settings: Any) -> Path:
        path = folder / f"{arch}-{'-'.join(map(str, settings.values()))}.gguf"
        return path if path.exists() else write_model(path, architecture(arch), OPS, **settings)

    return written


@pytest.fixture
def load(found: Plugins, file: Callable[..., Path]) -> Iterator[Callable[..., umbel.Model]]:
    """load(architecture, device, **settings): a tiny model, closed after the test."""
    with contextlib.ExitStack() as stack:

        def loaded(arch: str, device: str = "toy", **settings: Any) -> umbel.Model:
            given = {"ctx": 128, "parallel": 3, **settings}
            given["options"] = {"toy": {"memory": MEMORY}}
            return stack.enter_context(umbel.load(file(arch), device, **given))

        yield loaded


@pytest.fixture
def meddle(found: Plugins) -> Callable[[str, Callable[[], object]], None]:
    """meddle(operation, first): the toy calls `first` before it computes `operation`."""

    def meddled(operation: str, first: Callable[[], object]) -> None:
        def run(node: Tensor, *arrays: np.ndarray) -> np.ndarray:
            first()
            assert node.op is not None
            return node.op.reference(*arrays, **node.attrs)

        made = ModuleType("umbel_meddler")
        kernel = Kernel(operation, lambda node: None, run)
        vars(made).update(UMBEL_API=1, kernels=hookimpl(lambda device: [kernel]))
        found.add("meddler", made)

    return meddled


@pytest.fixture
def graphs(found: Plugins) -> list[SplitGraph]:
    """The splits that the toy was told to compute."""
    found.load()
    backend, told = found.backends["toy"], []
    compute = backend.graph_compute
    backend.graph_compute = lambda device, graph: (told.append(graph), compute(device, graph))
    return told


@pytest.fixture
def planned(found: Plugins) -> Callable[..., Plan]:
    """planned(targets, op, n): one operation over inputs `x0`, `x1` ... of (2, 5)."""

    def made(targets: list[Target], op: str, n: int = 1) -> Plan:
        build = Builder(OPS | {o.name: o for _, brought in found.ask("ops") for o in brought})
        inputs = [build.leaf(Role.INPUT, f"x{i}", (2, 5), F32) for i in range(n)]
        graph = build.graph([getattr(build, op)(*inputs)])
        weights: Any = None
        return make(graph, Placer(targets, build.ops), weights, States(), Arenas())

    return made


@pytest.fixture
def free(found: Plugins) -> Callable[..., int]:
    """free(): the toy's free memory, now that it has no program."""

    def told(*, collect: bool = True) -> int:
        if collect:
            gc.collect()
        status = found.backends["toy"].status(found.find("toy"))
        assert status["programs"] == 0
        return status["memory_free"]

    return told


@pytest.fixture(scope="session")
def alike() -> Callable[[np.ndarray, np.ndarray], None]:
    """alike(expected, actual): every row within what float16 may do to it."""

    def asserted(expected: np.ndarray, actual: np.ndarray) -> None:
        assert expected.shape == actual.shape
        assert max(map(nmse, expected, actual)) < LIMIT

    return asserted
