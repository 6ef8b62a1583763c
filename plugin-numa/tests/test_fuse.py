"""Fused steps give the bits of single ones, whatever shares its memory with what."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from umbel.gguf.types import BY_NAME, F32, I32, quantise
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.ops import OPS
from umbel.state import Sequence
from umbel_numa import compile as compiling
from umbel_numa.engine import Engine
from umbel_numa.fuse import Fuser, Linear, Turned
from umbel_numa.memory import NativeMemory

WIDTH = 64
TYPES = ("q8_0", "q4_0", "f16")
_uids = itertools.count(1 << 52)


class Single:
    """Fuses nothing."""

    def __init__(self, nodes: list[Tensor], *_: object) -> None:
        self.nodes = nodes

    def items(self) -> Iterator[Tensor]:
        return iter(self.nodes)


class Counting(Fuser):
    """Counts what it fuses."""

    fused = 0

    def items(self) -> Iterator[Tensor | Linear | Turned]:
        for item in super().items():
            Counting.fused += isinstance(item, Linear)
            yield item


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(3)
    yield engine
    engine.close()


class Program:
    """Nodes that read an input and each other, with weights."""

    def __init__(self, rng: np.random.Generator, rows: int) -> None:
        self.rng, self.build, self.values = rng, Builder(OPS), dict[Tensor, np.ndarray]()
        self.x = self.build.leaf(Role.INPUT, "x", (rows, WIDTH), F32)
        self.nodes: list[Tensor] = []

    def weight(self, shape: tuple[int, ...], dtype: str = "f32") -> Tensor:
        values = self.rng.standard_normal(shape, np.float32) / 8
        t = self.build.leaf(Role.WEIGHT, f"w{len(self.values)}", shape, BY_NAME[dtype])
        self.values[t] = values if dtype == "f32" else quantise(values, t.dtype)
        return t

    def add(self, name: str, *inputs: Tensor, **how: object) -> Tensor:
        self.nodes.append(self.build.apply(OPS[name], *inputs, **how))
        return self.nodes[-1]

    def product(self, x: Tensor, dtype: str) -> Tensor:
        return self.add("mul_mat", self.weight((WIDTH, WIDTH), dtype), x)

    def norm(self, x: Tensor) -> Tensor:
        return self.add("rms_norm", x, self.weight((WIDTH,)), eps=1e-5)

    def run(
        self, engine: Engine, x: np.ndarray, places: Mapping[Tensor, int], outputs: list[Tensor]
    ) -> list[np.ndarray]:
        """With each node at a place of its own or of several, in one piece of memory."""
        memory, size = NativeMemory(engine), self.x.nbytes
        room = memory.allocate(size * (1 + max(places.values())), "compute")
        slots = {t: Slot(memory.store(t, array)) for t, array in self.values.items()}
        slots |= {t: Slot(room, place * size) for t, place in places.items()}
        room.write(places[self.x] * size, x)
        leaves = (*self.values, self.x)
        graph = SplitGraph(next(_uids), tuple(self.nodes), leaves, tuple(outputs), slots)
        engine.compute(graph)
        engine.forget(graph.uid)
        return [room.read(places[t] * size, size).view(np.int32) for t in outputs]


def drawn(rng: np.random.Generator, rows: int) -> Program:
    """As models are made, of the pieces in any order: norms, products of one or several of the
    same x, sums, gated units."""
    made = Program(rng, rows)
    alive = [made.x]
    for _ in range(6):
        x = alive[rng.integers(len(alive))]
        if rng.random() < 0.6:
            x = made.norm(x)
        dtype = TYPES[rng.integers(len(TYPES))]
        outs = []
        for _ in range(rng.integers(1, 5)):
            out = made.product(x, dtype)
            kind = rng.random()
            if kind < 0.3:
                out = made.add("add", out, made.weight((WIDTH,)))
            elif kind < 0.6:
                other = alive[rng.integers(len(alive))]
                out = made.add("add", *((out, other) if kind < 0.45 else (other, out)))
            outs.append(out)
        if len(outs) > 1 and rng.random() < 0.6:
            outs.append(made.add("swiglu", *outs[:2]))
        alive = [*alive[-2:], *outs]
    made.norm(alive[-1])
    return made


def shared_places(made: Program, rng: np.random.Generator, outputs: list[Tensor]) -> dict:
    """Every node at a place that nobody needs any more, of those the first or a new one."""
    last = {made.x: 0} | {n: i for i, n in enumerate(made.nodes)}
    last |= {t: i for i, n in enumerate(made.nodes) for t in n.inputs}
    last |= dict.fromkeys(outputs, len(made.nodes))
    places, taken = {made.x: 0}, {0: made.x}
    for i, node in enumerate(made.nodes):
        assert node.op is not None
        ends = i + node.op.in_place  # those may write where they read
        free = [p for p, t in taken.items() if last[t] < ends]
        place = free[rng.integers(len(free))] if free and rng.random() < 0.9 else len(taken)
        places[node], taken[place] = place, node
    return places


@pytest.mark.parametrize("rows", [1, 5])
def test_shared_memory(engine, monkeypatch, rows) -> None:
    """Programs whose values take each other's places, fused, and apart one by one."""
    monkeypatch.setattr(compiling, "Fuser", Counting)
    monkeypatch.setattr(Counting, "fused", 0)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        made = drawn(rng, rows)
        outputs = [made.nodes[-1], made.nodes[rng.integers(len(made.nodes))]]
        x = rng.standard_normal((rows, WIDTH), np.float32)
        apart = {t: i for i, t in enumerate([made.x, *made.nodes])}
        with monkeypatch.context() as patch:
            patch.setattr(compiling, "Fuser", Single)
            expected = made.run(engine, x, apart, outputs)
        for places in (apart, *(shared_places(made, rng, outputs) for _ in range(3))):
            for got, wanted in zip(made.run(engine, x, places, outputs), expected, strict=True):
                np.testing.assert_array_equal(got, wanted, f"seed {seed}")
    assert Counting.fused > 1500


def kinds(engine: Engine, made: Program, places: Mapping[Tensor, int]) -> list[str]:
    """What a program is made of."""
    found = []
    form = lambda w: 1 if w in made.values else None  # noqa: E731
    place = lambda t: (places.get(t.storage, 1000 + id(t)), places.get(t.storage, 0) + 1)  # noqa: E731
    for item in Fuser(made.nodes, {made.nodes[-1]}, form, place).items():
        if isinstance(item, Linear):
            adds = sum(p.add is not None for p in item.products)
            found.append(f"{'norm ' * bool(item.norm)}{len(item.products)}+{adds}")
            found[-1] += " unit" * bool(item.glu)
        elif isinstance(item, Turned):
            found.append("turned")
        else:
            assert item.op is not None
            found.append(item.op.name)
    return found


def test_what_is_fused(engine) -> None:
    """Queries, keys and values; a projection and the sum with the residual; gate and up."""
    made = Program(np.random.default_rng(0), 1)
    x = made.norm(made.x)
    q, k, v = (made.product(x, "q8_0") for _ in range(3))
    y = made.add("mul", made.add("mul", q, k), v)
    x = made.add("add", made.product(y, "q8_0"), made.x)
    h = made.norm(x)
    unit = made.add("swiglu", made.product(h, "q8_0"), made.product(h, "q8_0"))
    made.add("add", x, made.product(unit, "q8_0"))
    apart = {t: i for i, t in enumerate([made.x, *made.nodes])}
    assert kinds(engine, made, apart) == [
        "norm 3+0",
        "mul",
        "mul",
        "1+1",
        "norm 2+0 unit",
        "1+1",
    ]
    apart[k] = apart[q]  # one writes where the other does
    assert kinds(engine, made, apart)[:3] == ["rms_norm", "1+0", "2+0"]


@pytest.mark.parametrize(
    ("also", "found"),
    [
        ("", ["turned"]),
        ("another", ["rope", "kv_attention"]),
        ("values", ["rope", "kv_attention"]),
    ],
)
def test_turned_keys(engine, also, found) -> None:
    """A rope goes where keys are stored, unless somebody else reads what it gives."""
    made = Program(np.random.default_rng(0), 1)
    build, leaf = made.build, made.build.leaf
    heads = build.reshape(made.x, shape=(1, 2, 32))
    positions = leaf(Role.INPUT, "positions", (1,), I32)
    q, k = (made.add("rope", heads, positions, mode=m, n_dims=32) for m in ("norm", "neox"))
    v = k if also == "values" else heads
    q, k, v = (build.reshape(t, shape=(1, 1, 2, 32)) for t in (q, k, v))
    caches = (leaf(Role.STATE, name, (4, WIDTH), F32) for name in "kv")
    table = leaf(Role.INPUT, "table", (1, 4), I32)
    mask = leaf(Role.INPUT, "mask", (1, 1, 1, 4), F32)
    out = made.add("kv_attention", q, k, v, *caches, positions, table, mask, scale=1.0)
    made.add("add", out, build.reshape(k if also == "another" else heads, shape=(1, WIDTH)))
    assert kinds(engine, made, {}) == ["rope", *found, "add"]


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "phi3", "gemma3", "granite", "qwen3moe", "llama-e256-Q4_K"]
)
def test_models(load, monkeypatch, name) -> None:
    """Whole models without any fused step."""
    fused = load(name)
    ids = np.random.default_rng(1).integers(3, 60, 12).tolist()
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "Fuser", Single)
        single = load(name)
        rows = [r.forward(Sequence(), ids, every=True) for r in (single, fused)]
        again = [r.forward(Sequence(), ids[:1]) for r in (single, fused)]
    np.testing.assert_array_equal(rows[0].view(np.int32), rows[1].view(np.int32))
    np.testing.assert_array_equal(again[0].view(np.int32), again[1].view(np.int32))
