"""The order of the nodes and the cuts between devices."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from umbel.gguf.types import F32, I32
from umbel.graph import Builder, Role
from umbel.ops import OPS
from umbel.plan.emit import Placed
from umbel.plan.split import cut


class Device:
    def __init__(self, name):
        self.name = name


DEVICES = [Device("a:0"), Device("b:0"), Device("c:0")]


@st.composite
def graphs(draw):
    """Nodes on devices: arithmetic, views, and reads and writes of two states."""
    b = Builder(OPS)
    states = [b.leaf(Role.STATE, name, (4, 4), F32) for name in "st"]
    ids = b.leaf(Role.INPUT, "ids", (4,), I32)
    values = [b.leaf(Role.INPUT, "x", (4, 4), F32)]
    for i in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["add", "turn", "read", "write", "scale"]))
        one, two = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        state = states[draw(st.integers(0, 1))]
        made = {
            "add": lambda one=one, two=two: b.add(one, two),
            "turn": lambda one=one: b.permute(one, axes=(1, 0)),
            "read": lambda state=state, i=i: b.scale(b.get_rows(state, ids), s=float(i)),
            "write": lambda state=state, one=one: b.set_rows(state, one, ids),
            "scale": lambda one=one, i=i: b.scale(one, s=float(i + 20)),
        }[kind]()
        values.append(made)
    return [
        Placed(n, draw(st.sampled_from(DEVICES)), n.label, "") for n in b.nodes if not n.op.view
    ]


def touches(node, state):
    """How a node uses a state: "" not at all, "r" or "w"."""
    changed = [node.inputs[k].storage for k in node.op.mutates]
    if state in changed:
        return "w"
    return "r" if state in [t.storage for t in node.inputs] else ""


@settings(max_examples=150, deadline=None)
@given(graphs(), st.booleans())
def test_order_and_borders(placed, single):
    """Inputs come first, effects keep their order, and borders are complete."""
    computed = {p.node for p in placed}
    wanted = [placed[-1].node] if placed and placed[-1].node.base is None else []
    splits = cut(placed, wanted, single=single)
    order = [n for s in splits for n in s.nodes]
    assert computed == set(order)
    assert len(computed) == len(order)
    at = {node: i for i, node in enumerate(order)}
    for p in placed:
        for t in p.node.inputs:
            assert t.storage not in at or at[t.storage] < at[p.node]
    states = {t.storage for p in placed for t in p.node.inputs if t.storage.role is Role.STATE}
    for state in states:
        users = [p.node for p in placed if touches(p.node, state)]
        for i, one in enumerate(users):
            for two in users[i + 1 :]:
                if "w" in (touches(one, state), touches(two, state)):
                    assert at[one] < at[two]
    home = {n: i for i, s in enumerate(splits) for n in s.nodes}
    device = {p.node: p.target for p in placed}
    for i, split in enumerate(splits):
        assert {split.target} == {device[n] for n in split.nodes}
        read = {t.storage for n in split.nodes for t in n.inputs}
        assert {t for t in read if home.get(t) != i} == set(split.inputs)
        later = {
            t.storage
            for s in splits[i + 1 :]
            for n in s.nodes
            for t in n.inputs
            if home.get(t.storage) == i
        }
        writes = {n for n in split.nodes if n.op.writes}
        assert later | writes | {t for t in wanted if home[t] == i} == set(split.outputs)
        assert len(split.outputs) == len(set(split.outputs))
    if single:
        assert all(len(s.nodes) == 1 for s in splits)
    else:
        neighbours = itertools.pairwise(splits)
        assert all(a.target is not b.target for a, b in neighbours)


def test_stays_on_a_device():
    """Interleaved work of two devices becomes two splits, not one for each node."""
    b = Builder(OPS)
    x = b.leaf(Role.INPUT, "x", (2,), F32)
    one, two, placed = x, x, []
    for i in range(10):
        one, two = b.scale(one, s=float(i + 2)), b.scale(two, s=float(-i - 2))
        placed += [Placed(one, DEVICES[0], "", ""), Placed(two, DEVICES[1], "", "")]
    assert [s.target.name for s in cut(placed, [one, two])] == ["a:0", "b:0"]
