"""Memory by liveness: nothing overlaps that lives at the same time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from umbel.gguf.types import F16, F32
from umbel.graph import Builder, Role
from umbel.ops import OPS
from umbel.plan.allocate import FreeList, allocate
from umbel.plan.emit import Placed
from umbel.plan.split import cut


@st.composite
def plans(draw, kit):
    """Splits of a random graph on devices with memory of all kinds."""
    flags = st.booleans()
    fakes = [
        kit.Fake(
            f"{name}:0",
            alignment=draw(st.sampled_from([1, 16, 48, 512])),
            padding=draw(st.sampled_from([0, 5])),
            in_place=draw(flags),
            opaque=draw(flags),
            separate=draw(st.sampled_from([False, False, True])),
            readers=draw(st.sampled_from([(), ("a:0",), ("b:0", "c:0")])),
        )
        for name in "abc"
    ]
    targets = [fake.target() for fake in fakes]
    b, placed = Builder(OPS), []
    values = [b.leaf(Role.INPUT, f"in{i}", (4, n), F32) for i, n in enumerate((8, 8, 3))]
    for i in range(draw(st.integers(1, 25))):
        one = values[draw(st.integers(0, len(values) - 1))]
        like = [v for v in values if (v.shape, v.dtype) == (one.shape, one.dtype)]
        two = like[draw(st.integers(0, len(like) - 1))]
        kind = draw(st.sampled_from(["add", "scale", "half", "view", "join", "sum"]))
        made = {
            "add": lambda one=one, two=two: b.add(one, two),
            "scale": lambda one=one, i=i: b.scale(one, s=float(i + 2)),
            "half": lambda one=one, i=i: b.apply(OPS["scale"], one, s=i / 99, stored_as=F16),
            "view": lambda one=one: b.view(one, axis=0, start=1, stop=2),
            "join": lambda one=one, two=two: b.concat(one, two, axis=0),
            "sum": lambda one=one: b.sum_rows(one),
        }[kind]()
        if 2 <= made.shape[0] < 30:
            values.append(made)
    for node in b.nodes:
        if not node.op.view:
            placed.append(Placed(node, draw(st.sampled_from(targets)), "", ""))
    made = [p.node for p in placed]
    wanted = draw(st.lists(st.sampled_from(made), unique=True)) if made else []
    return cut(placed, wanted), wanted


def lives(splits, layout, wanted):
    """(device, storage) -> first and last moment, independently of the allocator.

    A moment is a node; copies happen just before the first node of a split.
    """
    spans, now, end = {}, 0, sum(len(s.nodes) for s in splits)

    def note(target, t, first, last):
        key = (layout.owner(target, t), t)
        a, z = spans.get(key, (first, last))
        spans[key] = min(a, first), max(z, last)

    made = {n: s.target for s in splits for n in s.nodes}
    for split, copies in zip(splits, layout.copies, strict=True):
        last = now + len(split.nodes) - 1
        for t in copies:
            assert not split.target.reads(made[t])
            note(made[t], t, now - 0.5, now - 0.5)
            note(split.target, t, now - 0.5, now - 0.5)
        for i, node in enumerate(split.nodes, now):
            for t in {t.storage for t in (*node.inputs, node)}:
                if split.target.info.opaque and t in split.inputs + split.outputs:
                    note(split.target, t, now, last)
                elif not split.target.info.opaque:
                    note(split.target, t, i, i)
        now = last + 1
    for t in wanted:
        note(made[t], t, end, end)
    for key in spans:
        if key[1].role is Role.INPUT:
            spans[key] = -1, spans[key][1]
    return spans


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nothing_overlaps(kit, data):
    """Of two storages in one arena at one time, one has only taken over the other's memory."""
    splits, wanted = data.draw(plans(kit))
    layout = allocate(splits, wanted)
    spans = lives(splits, layout, wanted)
    shared = {key for key in spans if not key[0].buffer_type.separate}
    assert shared == set(layout.offsets)
    size = {k: k[0].buffer_type.alloc_size(k[1]) for k in layout.offsets}
    total = {}
    for key, offset in layout.offsets.items():
        target, _t = key
        kind = target.buffer_type
        assert offset % kind.alignment == 0
        assert offset + size[key] <= layout.arenas[target].peak
        rounded = -(-size[key] // kind.alignment) * kind.alignment
        total[target] = total.get(target, 0) + rounded
        for other, start in layout.offsets.items():
            if other == key or other[0] is not target:
                continue
            apart = start + size[other] <= offset or offset + size[key] <= start
            early, late = sorted((key, other), key=lambda k: spans[k][0])
            if not apart and spans[early][1] >= spans[late][0]:
                assert spans[early][1] == spans[late][0]  # it dies as the other is born
                node = late[1]
                assert kind.in_place
                assert node.op.in_place
                assert node.inputs.count(early[1]) == 1
                assert (early[1].shape, early[1].dtype) == (node.shape, node.dtype)
                assert layout.offsets[early] == layout.offsets[late]
    for target, arena in layout.arenas.items():
        assert 0 < arena.peak <= total[target]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([1, 16, 512]), st.lists(st.integers(0, 2000), max_size=40), st.data())
def test_free_list(alignment, sizes, data):
    """What is taken never overlaps, is aligned, and what is given can be taken again."""
    memory, taken = FreeList(alignment), {}
    for size in sizes:
        if taken and data.draw(st.booleans()):
            offset = data.draw(st.sampled_from(sorted(taken)))
            del taken[offset]
            memory.give(offset)
        offset = memory.take(size)
        assert offset % alignment == 0
        for start, other in taken.items():
            assert start + max(other, 1) <= offset or offset + max(size, 1) <= start
        taken[offset] = size
        assert memory.peak >= offset + size
    for offset in list(taken):
        memory.give(offset)
    assert memory.taken == []
    assert memory.take(memory.peak) == 0


def test_best_fit():
    """The smallest gap that is large enough is taken, else the end grows."""
    memory = FreeList(1)
    a, b, c, d, e = (memory.take(n) for n in (30, 5, 10, 5, 7))
    assert [a, b, c, d, e] == [0, 30, 35, 45, 50]
    memory.give(a)
    memory.give(c)
    assert memory.take(10) == 35
    assert memory.take(25) == 0
    assert memory.take(6) == 57
    assert memory.take(5) == 25
    assert memory.peak == 63


def test_memory_is_reused(kit):
    """A chain of operations needs the memory of two values, not of all."""
    for in_place, count in ((True, 1), (False, 2)):
        small = kit.Small(kit.Fake(in_place=in_place))
        b, x = small.build, small.input("x", 1000)
        y = x
        for i in range(20):
            y = b.scale(y, s=float(i + 2))
        small.plan(y)
        size = small.arenas.nbytes(small.targets[0])
        assert count * 4000 <= size <= (count + 0.1) * 4000
