"""Runs graphs on the host backend, through its hooks alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from umbel import gguf, host
from umbel.gguf.types import BY_NAME, quantise
from umbel.graph import Builder, Graph, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.ops import OPS
from umbel_kit.reference import evaluate

ORACLES = Path(__file__).parents[1] / "data" / "oracles"
# what can be written here, and what the oracle files hold besides
WRITTEN = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
FOUND = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_uids = itertools.count(10**9)


class Run:
    """Graphs of one builder on the open host."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.build = Builder(OPS)
        self.rng = rng
        self.feeds: dict[Tensor, np.ndarray] = {}

    def open(self, **options: object) -> Any:
        return host.open(host.DEVICE, options, [])

    def leaf(self, role: Role, array: np.ndarray, dtype: str = "") -> Tensor:
        """A leaf that holds this array (float32 values, or integers)."""
        kind = BY_NAME[dtype or {"f": "f32", "i": "i32"}[array.dtype.kind]]
        t = self.build.leaf(role, f"t{next(_uids)}", array.shape, kind)
        self.feeds[t] = array if array.dtype.kind == "i" else quantise(array, kind)
        return t

    def weight(self, name: str, rows: int, *lead: int) -> Tensor:
        """A weight of that type, 256 values wide; those that nobody can write are found."""
        if name not in FOUND:
            return self.leaf(Role.WEIGHT, self.normal(*lead, rows, 256), name)
        with gguf.open(ORACLES / f"llama-e256-{name}.gguf") as file:
            fits = (t for t in file.tensors.values() if t.dtype.name == name.lower())
            info = next(t for t in fits if t.shape[-1] == 256)
            raw = file.array(info.name)
        need = int(np.prod([*lead, rows]))
        raw = np.concatenate([raw] * (1 + need // len(raw)))[:need]
        t = self.build.leaf(Role.WEIGHT, name, (*lead, rows, 256), info.dtype)
        self.feeds[t] = raw.reshape(*lead, rows, -1)
        return t

    def input(self, *shape: int) -> Tensor:
        return self.leaf(Role.INPUT, self.normal(*shape))

    def ids(self, *values: Any) -> Tensor:
        return self.leaf(Role.INPUT, np.array(values, np.int32))

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def graph(self, *outputs: Tensor) -> SplitGraph:
        graph: Graph = self.build.graph(outputs)
        kind, slots = host.buffer_type(host.DEVICE), {}
        for t in dict.fromkeys(t.storage for n in graph.nodes for t in (*n.inputs, n)):
            if t.role in (Role.WEIGHT, Role.CONST):
                slots[t] = Slot(kind.store(t, self.feeds.get(t, t.data)))
            else:
                buffer = kind.allocate(t.nbytes, "compute")
                buffer.write(0, self.feeds.get(t, np.full(t.nbytes, 0xFF, np.uint8)))
                slots[t] = Slot(buffer)
        nodes = tuple(n for n in graph.nodes if not n.op.view)
        return SplitGraph(next(_uids), nodes, (), outputs, slots)

    def compute(self, *outputs: Tensor) -> list[np.ndarray]:
        """The outputs and then the states, as they are stored, after two runs of one step."""
        graph = self.graph(*outputs)
        for _ in range(2):
            host.graph_compute(host.DEVICE, graph)
        states = [t for t in self.feeds if t.role is Role.STATE]
        wanted = [*(t.storage for t in outputs if t.base is None), *states]
        arrays = []
        for t in wanted:
            raw = graph.slots[t].buffer.read(0, t.nbytes)
            shape = (*t.shape[:-1], t.dtype.row_bytes(t.shape[-1]))
            typed = raw.view(t.dtype.numpy) if t.dtype.numpy else raw
            arrays.append(typed.reshape(t.shape if t.dtype.numpy else shape))
        return arrays

    def expected(self, *outputs: Tensor) -> list[np.ndarray]:
        """The same by the references."""
        feeds = {t: a.copy() for t, a in self.feeds.items()}
        graph = self.build.graph(outputs)
        values = evaluate(graph, feeds)
        kept = [v for t, v in zip(outputs, values, strict=True) if t.base is None]
        return [*kept, *(a for t, a in feeds.items() if t.role is Role.STATE)]


@pytest.fixture
def run() -> Iterator[Run]:
    """The open host and a builder for it."""
    made = Run(np.random.default_rng(11))
    made.open()
    yield made
    host.close(host.DEVICE)
    host.set_threads(0)


@pytest.fixture
def kit() -> SimpleNamespace:
    return SimpleNamespace(oracles=ORACLES)


@pytest.fixture
def close_to() -> Callable[[Any, Any], None]:
    """Equal but for the order of sums."""

    def check(expected: list[np.ndarray], actual: list[np.ndarray]) -> None:
        assert len(expected) == len(actual)
        for a, b in zip(expected, actual, strict=True):
            assert a.shape == b.shape
            assert np.isfinite(b).all()
            scale = max(np.abs(a).max(initial=0), 1e-3)
            assert np.abs(a - b).max(initial=0) <= 4e-6 * scale

    return check


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", WRITTEN + FOUND)
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("mode", ["once", "blocks"])
