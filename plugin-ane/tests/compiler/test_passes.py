"""The passes: results stay, bit for bit where they say so; the fixed point is one."""

from __future__ import annotations

from collections import Counter

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from random_graphs import Sample, samples
from umbel.errors import DeviceError
from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import OPS, Graph, Weight
from umbel_ane.compiler.passes import ROUNDS, run, signature
from umbel_ane.compiler.passes.casts import casts
from umbel_ane.compiler.passes.constraints import broken, constraints
from umbel_ane.compiler.passes.dead import dead
from umbel_ane.compiler.passes.identities import identities
from umbel_ane.compiler.passes.sram import over
from umbel_ane.compiler.reference import evaluate
from umbel_ane.profile import load

STRICT = load("orion-m4-macos15")


def ops(graph: Graph) -> Counter[str]:
    return Counter(n.op for n in graph.nodes() if n.op not in ("input", "const"))


def same_bits(graph: Graph, other: Graph, values: dict[str, np.ndarray]) -> None:
    for mode in ("fp32", "fp16"):
        before, after = (evaluate(g, values, mode) for g in (graph, other))
        assert before.keys() == after.keys()
        for name, wanted in before.items():
            assert wanted.shape == after[name].shape
            np.testing.assert_array_equal(after[name].view(np.int32), wanted.view(np.int32))


@pytest.mark.parametrize("step", [dead, identities, casts], ids=lambda f: f.__name__)
@settings(deadline=None, max_examples=150)
@given(sample=samples())
def test_a_pass_keeps_every_bit(step, sample: Sample) -> None:
    same_bits(sample.graph, step(sample.graph), sample.values)


@pytest.mark.parametrize("name", ["orion-m4-macos15", "m1"])
@settings(deadline=None, max_examples=80)
@given(sample=samples())
def test_the_fixed_point_is_one(name: str, sample: Sample) -> None:
    passed = run(sample.graph, load(name))
    again = run(passed.graph, load(name))
    assert passed.rounds < ROUNDS
    assert (again.rounds, signature(again.graph)) == (1, signature(passed.graph))


@settings(deadline=None, max_examples=100)
@given(sample=samples())
def test_repairs_keep_results_to_rounding(sample: Sample) -> None:
    """With limits so low that every repair happens: sums have another order, no more."""
    low = attrs.evolve(STRICT, max_channels=16, inner_multiple=8, fp32_io=False)
    repaired = constraints(sample.graph, low)
    before, after = (evaluate(g, sample.values) for g in (sample.graph, repaired))
    for name, wanted in before.items():
        scale = max(1.0, float(np.abs(wanted).max(initial=0)))
        if not np.isfinite(wanted).all():
            continue
        np.testing.assert_allclose(after[name] / scale, wanted / scale, rtol=0, atol=3e-5)
    for node in repaired.nodes():
        assert broken(node, attrs.evolve(low, max_dim=512)) is None


def test_all_operations_occur_in_random_graphs() -> None:
    """Else the properties above would say less than they seem to."""
    seen: set[str] = set()

    @settings(deadline=None, max_examples=300, database=None, derandomize=True)
    @given(sample=samples())
    def collect(sample: Sample) -> None:
        seen.update(n.op for n in sample.graph.nodes())

    collect()
    assert seen == OPS


def test_what_the_passes_remove() -> None:
    b = IRBuilder()
    x = b.input("x", (1, 4, 1, 16))
    y = b.transpose(b.transpose(x, (0, 3, 2, 1)), (0, 3, 2, 1))
    y = b.unary("identity", b.mul(b.sub(y, 0.0), 1.0))
    y = b.unary("neg", b.unary("neg", b.reshape(b.reshape(y, (1, 2, 2, 16)), (1, 4, 1, 16))))
    y = b.cast(b.reshape(b.cast(y, "fp32"), (1, 1, 4, 16)), "fp16")
    y = b.slice(b.pad(y, (0, 0, 1, 0), (0, 0, 1, 0)), (0, 0, 1, 0), (1, 1, 2, 16))
    assert ops(run(Graph({"y": y}), STRICT).graph) == {"slice": 1, "reshape": 1}


def test_a_slice_that_reads_padding_too_keeps_it() -> None:
    b = IRBuilder()
    padded = b.pad(b.input("x", (1, 4, 1, 16)), (0, 2, 0, 0), (0, 2, 0, 0))
    graph = Graph({f"y{n}": b.slice(padded, (0, n, 0, 0), (1, 4, 1, 16)) for n in (1, 2, 3)})
    made = dead(graph)
    same_bits(graph, made, {"x": np.ones((1, 4, 1, 16), np.float16)})
    assert ops(made) == {"pad": 1, "slice": 2}  # y2 is x


@pytest.mark.parametrize("kept", ["add", "fp32"])
def test_what_would_change_a_bit_stays(kept: str) -> None:
    b = IRBuilder()
    x = b.input("x", (1, 4, 1, 16), "fp32" if kept == "fp32" else "fp16")
    y = b.cast(b.cast(x, "fp16"), "fp32") if kept == "fp32" else b.add(x, 0.0)
    before = Graph({"y": y})
    assert ops(run(before, STRICT).graph) == ops(before)


def conv(channels: int, outputs: int):
    b = IRBuilder()
    x = b.input("x", (1, channels, 1, 16))
    w = np.random.default_rng(0).standard_normal((outputs, channels, 1, 1)).astype(np.float16)
    return b, x, b.conv1x1(x, b.weight(Weight("w", lambda: w), w.shape))


def test_a_wide_convolution_is_cut_and_joined() -> None:
    """Constraint 16, in and out."""
    _, _, y = conv(96, 160)
    narrow = attrs.evolve(STRICT, max_channels=64)
    made = run(Graph({"y": y}), narrow).graph
    assert ops(made)["conv1x1"] == 6  # 3 pieces of output channels, 2 of input
    assert all(max(n.inputs[1].shape) <= 64 for n in made.nodes() if n.op == "conv1x1")
    x = np.random.default_rng(1).standard_normal((1, 96, 1, 16)).astype(np.float16)
    before, after = (evaluate(g, {"x": x})["y"] for g in (Graph({"y": y}), made))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-4)


def test_parts_of_a_result_that_no_value_can_be() -> None:
    """50257 logits exceed an axis; pieces of them are computed each by itself."""
    b, _, y = conv(32, 400)
    narrow = attrs.evolve(STRICT, max_channels=64, max_dim=150)
    parts = b.split(y, 1, [150, 150, 100])
    graph = Graph({f"y{i}": p for i, p in enumerate(parts)})
    made = run(graph, narrow).graph
    assert max(max(n.shape) for n in made.nodes() if n.op != "const") <= 150
    x = {"x": np.random.default_rng(1).standard_normal((1, 32, 1, 16)).astype(np.float16)}
    before, after = evaluate(graph, x), evaluate(made, x)
    for name, wanted in before.items():
        np.testing.assert_allclose(after[name], wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"refused": frozenset({"tanh"})}, "tanh is refused"), ({"max_dim": 100}, "an axis of")],
)
def test_what_cannot_be_repaired_is_named(change: dict[str, object], said: str) -> None:
    b, _, y = conv(96, 160)
    b.name = "blk.3.ffn"
    graph = Graph({"y": b.unary("tanh", y)})
    with pytest.raises(DeviceError, match=said) as caught:
        run(graph, attrs.evolve(STRICT, **change))
    if "refused" in change:
        assert "blk.3.ffn" in str(caught.value)
        assert STRICT.name in str(caught.value)


def scores(layers: int = 1, heads: int = 12, tokens: int = 256) -> Graph:
    """Attention whose scores are what is large."""
    b = IRBuilder()
    x, mask = b.input("x", (1, heads, tokens, 16)), b.input("mask", (1, 1, tokens, tokens))
    for i in range(layers):
        b.name = f"blk.{i}.attention"
        k, v = (b.input(f"{n}{i}", (1, heads, tokens, 16)) for n in "kv")
        s = b.add(b.mul(b.matmul(x, k, transpose_y=True), 0.25), mask)
        x = b.matmul(b.softmax(s), v)
    return Graph({"y": x})


def small_sram(nbytes: int):
    return attrs.evolve(STRICT, costs=attrs.evolve(STRICT.costs, sram_bytes=nbytes))


@pytest.mark.parametrize(
    ("layers", "nbytes", "pieces"), [(1, 2 << 20, 2), (3, 2 << 20, 2), (2, 11 << 17, 4)]
)
def test_what_exceeds_the_on_chip_memory_is_cut_in_pieces(
    layers: int, nbytes: int, pieces: int
) -> None:
    """No more of them than it takes."""
    graph = scores(layers)
    assert len(over(graph, nbytes)) >= 3 * layers  # scaled, masked, softmax
    made = run(graph, small_sram(nbytes))
    assert over(made.graph, nbytes) == []
    assert made.warnings == ()
    assert ops(made.graph)["softmax"] == pieces * layers
    rng = np.random.default_rng(0)
    values = {n.name: rng.standard_normal(n.shape).astype(np.float16) for n in graph.inputs()}
    before, after = evaluate(graph, values)["y"], evaluate(made.graph, values)["y"]
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5)


def test_inputs_that_wait_in_their_surfaces_do_not_count() -> None:
    """A cache of many layers is no reason to cut any of them."""
    assert ops(run(scores(20), small_sram(5 << 20)).graph) == ops(scores(20))


def test_what_stays_too_large_is_said_with_its_place() -> None:
    passed = run(scores(), small_sram(1 << 18))
    assert len(passed.warnings) == 1
    assert "blk.0.attention" in passed.warnings[0]
    assert run(scores(), STRICT).warnings == ()
