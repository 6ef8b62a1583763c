"""Scratch memory: what is reused when, and what lasts."""

from __future__ import annotations

from umbel.gguf.types import F16, F32
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.ops import OPS
from umbel_cann.chips import chip
from umbel_cann.compile import lowered
from umbel_cann.lowering import Lowering
from umbel_cann.ops.fusion import Reads
from umbel_cann.program import Call
from umbel_cann.scratch import Scratch


def test_places() -> None:
    """Of one node below, of several above; the smallest block that nobody reads any more."""
    scratch = Scratch(1 << 20, above=4096)
    assert [scratch.for_node(100) for _ in range(2)] == [1 << 20, (1 << 20) + 192]
    scratch.begin()
    assert scratch.for_node(10) == 1 << 20
    assert scratch.peak == 384
    above = (1 << 20) + 4096
    assert scratch.for_all(64) == above
    large = scratch.between(1000, 0, 2)
    small = scratch.between(100, 1, 1)
    assert (large, small) == (above + 128, above + 128 + 1088)
    assert scratch.between(100, 1, 9) not in (large, small)  # both are read until then
    assert scratch.between(100, 2, 3) == small
    assert scratch.between(100, 3, 5) == large  # the small one is still read
    assert scratch.lasting == 128 + 1088 + 192 + 192


class Place:
    """A buffer of which only the address matters."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


def layers(count: int) -> SplitGraph:
    """Residual layers, laid out over what is dead as a plan does it."""
    b = Builder(OPS)
    x = Tensor((8, 64), F32, Role.INPUT, "x")
    places, weights, nodes = {x: 0}, [], []
    for i in range(count):
        gamma = Tensor((64,), F32, Role.WEIGHT, f"g{i}")
        w = Tensor((64, 64), F16, Role.WEIGHT, f"w{i}")
        y = b.rms_norm(x, gamma, eps=1e-5)
        z = b.mul_mat(w, y)
        x = b.add(x, z)
        weights += [gamma, w]
        nodes += [y, z, x]
    for i, node in enumerate(nodes):  # y over what was x before the last one
        places[node] = (i + 1) % 3
    slots = {t: Slot(Place((1 << 24) + (place << 16))) for t, place in places.items()}
    slots |= {t: Slot(Place((1 << 28) + (i << 16))) for i, t in enumerate(weights)}
    (first, *_) = places
    return SplitGraph(1, tuple(b.nodes), (first, *weights), (x,), slots)  # type: ignore[arg-type]


def lower(graph: SplitGraph) -> Lowering:
    return lowered(graph, chip("Ascend910B3"), lambda _: None, Scratch(), lambda *_: 0)


def test_no_result_lies_over_what_is_still_read() -> None:
    """Where the plan takes an input of the sum for dead, the norm of the sum goes elsewhere."""
    made = lower(layers(4)).launches
    fused = [m for m in made if isinstance(m, Call) and m.operator == "AddRmsNorm"]
    assert len(fused) == 3
    for call in fused:
        a, b, _, _, y, _, total = call.arguments
        assert not any(out.meets(t) for out in (y, total) for t in (a, b))  # type: ignore


def test_scratch_does_not_grow_with_the_layers() -> None:
    few, many = (lower(layers(n)).scratch for n in (4, 40))
    assert (few.peak, few.lasting) == (many.peak, many.lasting)


def test_who_reads_what() -> None:
    b = Builder(OPS)
    x = Tensor((4, 8), F32, Role.INPUT, "x")
    y = b.neg(x)
    z = b.neg(b.view(y, axis=0, start=0, stop=2))
    out = b.add(b.view(y, axis=0, start=2, stop=4), z)
    reads = Reads.of(SplitGraph(1, tuple(b.nodes), (x,), (out,), {}))
    assert reads.nodes == (y, z, out)  # a view is computed by nobody
    assert reads.last == {x: 0, y: 2, z: 2}
    assert reads.within((z,), (z, out))
    assert not reads.within((y,), (y, z))  # read once more
    assert not reads.within((out,), (out,))  # by others, after the split
