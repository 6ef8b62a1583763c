"""Cutting a graph into programs within a profile's limits, and what is told of them."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from simulated import broken_rules, by_reference, by_simulator, close, compiled
from umbel.errors import DeviceError
from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.cutting import cut
from umbel_ane.compiler.ir import Graph, Node, Weight
from umbel_ane.compiler.passes import run
from umbel_ane.compiler.ports import Between
from umbel_ane.compiler.reference import evaluate
from umbel_ane.profile import Profile, load

STRICT, M1 = load("orion-m4-macos15"), load("m1")
WIDE, DEEP = 64, 256


def layers(count: int, tokens: int = 16) -> Graph:
    """Feed-forward layers with a residual: between two of them one value is live."""
    b = IRBuilder()
    rng = np.random.default_rng(0)

    def weight(name: str, out: int, inner: int) -> Node:
        values = (rng.standard_normal((out, inner, 1, 1)) * 0.5 / inner**0.5).astype(np.float16)
        return b.weight(Weight(name, lambda: values), values.shape)

    x = b.input("x", (1, WIDE, 1, tokens))
    for i in range(count):
        b.name = f"blk.{i}"
        up, gate = (b.conv1x1(x, weight(f"{i}.{n}", DEEP, WIDE)) for n in ("up", "gate"))
        h = b.mul(up, b.mul(gate, b.unary("sigmoid", gate)))
        x = b.add(x, b.conv1x1(h, weight(f"{i}.down", WIDE, DEEP)))
    return Graph({"y": x})


def values(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {n.name: rng.standard_normal(n.shape).astype(np.float16) for n in graph.inputs()}


@pytest.mark.parametrize(
    ("profile", "programs"),
    [
        (STRICT, 1),  # nothing there asks for more
        (attrs.evolve(STRICT, max_weight_bytes=200_000), 4),  # 98 688 bytes a layer
        (attrs.evolve(STRICT, max_program_ops=18), 4),  # 7 operations a layer
        (M1, 2),  # 3 files a layer, at most 16
        (attrs.evolve(M1, max_files=4), 6),
    ],
    ids=["strict", "bytes", "operations", "files", "few-files"],
)
def test_as_few_programs_as_the_limits_allow(profile: Profile, programs: int) -> None:
    graph = layers(8)
    made = compiled(graph, profile)
    assert len(made) == programs
    assert [found for p in made for found in broken_rules(p)] == []
    got = by_simulator(made, values(graph))
    close(got, evaluate(graph, values(graph)), 5e-3)
    close(got, by_reference(made, values(graph)), 2e-3)


@pytest.mark.parametrize("limit", [{"max_weight_bytes": 250_000}, {"max_program_ops": 15}])
def test_cuts_are_where_one_value_is_live(limit: dict[str, int]) -> None:
    """Between layers, though a later place would be within the limits too."""
    for program in compiled(layers(6), attrs.evolve(STRICT, **limit))[:-1]:
        assert [type(p.source) for p in program.outputs] == [Between]
        assert [p.shape for p in program.outputs] == [(1, WIDE, 1, 16)]


def test_what_crosses_has_one_number_at_both_ends() -> None:
    made = compiled(layers(6), attrs.evolve(STRICT, max_program_ops=5))
    written = [p.source for c in made for p in c.outputs if isinstance(p.source, Between)]
    read = [p.source for c in made for p in c.inputs if isinstance(p.source, Between)]
    assert len(written) == len(set(written))
    assert set(read) == set(written)
    earlier: set[object] = set()
    for program in made:
        assert {p.source for p in program.inputs if isinstance(p.source, Between)} <= earlier
        earlier |= {p.source for p in program.outputs}


def test_a_value_that_is_an_output_and_read_later() -> None:
    graph = layers(4)
    inner = next(n for n in graph.nodes() if n.op == "add" and n.name == "blk.1")
    both = Graph({**graph.outputs, "inner": inner})
    made = compiled(both, attrs.evolve(STRICT, max_weight_bytes=200_000))
    assert len(made) == 2
    close(by_simulator(made, values(both)), evaluate(both, values(both)), 5e-3)


def test_surfaces_are_of_one_size_and_large_enough() -> None:
    (small,) = compiled(layers(1), STRICT)
    assert (small.input_bytes, small.output_bytes) == (49152, 49152)
    (large,) = compiled(layers(1, 1024), STRICT)
    assert large.input_bytes == large.output_bytes == 2 * WIDE * 1024


def test_the_last_axis_of_ports_is_padded() -> None:
    """The M1 takes multiples of 16."""
    graph = layers(2, tokens=5)
    made = compiled(graph, attrs.evolve(M1, max_files=3))
    assert {p.shape[3] for c in made for p in (*c.inputs, *c.outputs)} == {16}
    assert [found for p in made for found in broken_rules(p)] == []
    close(by_simulator(made, values(graph)), evaluate(graph, values(graph)), 5e-3)


@pytest.mark.parametrize(
    ("limit", "said"),
    [({"max_weight_bytes": 1000}, "1000"), ({"max_inputs": 1}, "2 inputs, at most 1")],
)
def test_an_operation_that_no_program_holds_is_named(limit: dict[str, int], said: str) -> None:
    graph = layers(1)
    if "max_inputs" in limit:
        b = IRBuilder("blk.0.sum")
        x, y = b.input("x", (1, 4, 1, 16)), b.input("y", (1, 4, 1, 16))
        graph = Graph({"y": b.add(x, y)})
    with pytest.raises(DeviceError, match=said) as caught:
        compiled(graph, attrs.evolve(STRICT, **limit))
    assert "blk.0" in str(caught.value)


def test_values_of_float32_do_not_cross_where_no_surface_takes_them() -> None:
    b = IRBuilder()
    x = b.cast(b.input("x", (1, 64, 1, 16)), "fp32")
    for _ in range(4):
        x = b.mul(b.unary("tanh", x), 1.5)
    graph = Graph({"y": b.unary("relu", b.unary("exp", b.cast(x, "fp16")))})
    made = compiled(graph, attrs.evolve(M1, max_program_ops=10))
    assert len(made) == 2
    assert {p.dtype for c in made for p in (*c.inputs, *c.outputs)} == {"fp16"}
    with pytest.raises(DeviceError, match="no surface takes"):
        compiled(graph, attrs.evolve(M1, max_program_ops=4))


def test_figures_of_a_program() -> None:
    (program,) = compiled(layers(2), STRICT)
    told = program.counts
    assert told.ops == 14
    assert told.operations["conv1x1"] == 6
    assert told.conv_flops == 2 * 2 * 3 * WIDE * DEEP * 16
    assert told.fp16_bytes == 2 * 2 * 3 * WIDE * DEEP
    assert told.weight_bytes == told.fp16_bytes + 6 * 64  # and the metadata of each
    assert told.io_bytes == 2 * 2 * WIDE * 16
    x, h = 2 * WIDE * 16, 2 * DEEP * 16
    assert told.sram_bytes == x + 4 * h  # x, up, gate, its sigmoid, their product
    assert STRICT.costs.dispatch_ms < told.ms < 2 * STRICT.costs.dispatch_ms


def test_estimates_agree_with_the_simulators_clock() -> None:
    from umbel_ane import costs

    (program,) = compiled(layers(3, 256), STRICT)
    clock = costs.estimate(program.emitted.program, STRICT)
    turned = costs.transfer(STRICT.costs, program.counts.io_bytes)
    assert program.counts.ms == pytest.approx(clock.ms + turned, rel=0.02)


def decode(layers: int, width: int, hidden: int, heads: int, cache: int = 1024) -> Graph:
    """The shape of a decode step: attention over a cache that is an input, no weight read."""

    def unread() -> np.ndarray:
        raise AssertionError

    b, head = IRBuilder(), width // heads

    def linear(x: Node, name: str, out: int) -> Node:
        w = b.weight(Weight(f"blk.{i}.{name}", unread), (out, x.shape[1], 1, 1))
        return b.add(b.conv1x1(x, w), b.weight(Weight(f"{i}.{name}.b", unread), (1, out, 1, 1)))

    x, mask = b.input("x", (1, width, 1, 16)), b.input("mask", (1, 1, 16, cache))
    ends = {}
    for i in range(layers):
        b.name = f"blk.{i}"
        q, k, v = (linear(x, n, width) for n in "qkv")
        ends |= {f"k{i}": k, f"v{i}": v}
        keys, values = (b.input(f"{n}{i}", (1, heads, cache, head)) for n in ("keys", "values"))
        rows = b.transpose(b.reshape(q, (1, heads, head, 16)), (0, 1, 3, 2))
        p = b.softmax(b.add(b.matmul(rows, keys, transpose_y=True), mask))
        a = b.reshape(b.transpose(b.matmul(p, values), (0, 1, 3, 2)), (1, width, 1, 16))
        x = b.add(x, linear(a, "o", width))
        h = linear(x, "up", hidden)
        h = b.mul(h, b.unary("sigmoid", h))
        x = b.add(x, linear(h, "down", width))
    return Graph({"y": x, **ends})


GPT2, LLAMA = (12, 768, 3072, 12), (32, 4096, 14336, 32)  # 124M; 8B, but for its gate


@pytest.mark.parametrize(
    ("profile", "shape", "most"),
    [
        (STRICT, GPT2, 1),
        (load("m4-macos27"), GPT2, 1),
        (attrs.evolve(STRICT, max_program_ops=64), GPT2, 5),
        (M1, GPT2, 9),  # 12 weight files a layer, at most 16
        (STRICT, LLAMA, 6),  # 12 GB of weights
    ],
    ids=["gpt2", "gpt2-macos27", "gpt2-64-operations", "gpt2-m1", "llama"],
)
def test_dispatches_of_a_decode_step(
    profile: Profile, shape: tuple[int, int, int, int], most: int
) -> None:
    graph = run(decode(*shape), profile).graph
    assert len(cut(graph, profile)) <= most
