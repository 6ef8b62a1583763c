"""A graph with its weights as inputs computes the same."""

from __future__ import annotations

import numpy as np
from umbel_ane.compiler import reference
from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import Graph, Weight
from umbel_ane.compiler.lowered import Lowered
from umbel_ane.compiler.ports import Between, Held
from umbel_ane.runtime.held import held


def _weight(name: str, shape: tuple[int, ...]) -> Weight:
    values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float16)
    return Weight(name, lambda: values)


def test_weights_become_inputs() -> None:
    b = IRBuilder()
    x = b.input("x", (1, 6, 1, 16))
    w = b.weight(_weight("w", (8, 6, 1, 1)), (8, 6, 1, 1))
    g = b.weight(_weight("gain", (1, 8, 1, 1)), (1, 8, 1, 1))
    t = b.weight(_weight("table", (1, 1, 4, 8)), (1, 1, 4, 8))
    y = b.mul(b.add(b.mul(b.conv1x1(x, w), g), g), 0.5)
    z = b.matmul(t, b.reshape(y, (1, 1, 8, 16)))
    before = Lowered(Graph({"y": y, "z": z}), {"x": Between(0)}, {})

    after = held(before)
    assert not [n for n in after.graph.nodes() if n.op == "const" and n.size > 1]
    assert not [n for n in after.graph.nodes() if n.op == "conv1x1"]
    given = {"x": np.random.default_rng(0).standard_normal((1, 6, 1, 16)).astype(np.float16)}
    wanted = reference.evaluate(before.graph, given)
    sources = {n: s for n, s in after.inputs.items() if isinstance(s, Held)}
    assert len(sources) == 3
    nodes = {n.name: n for n in after.graph.inputs()}
    for name, source in sources.items():
        given[name] = np.asarray(source.weight.read()).reshape(nodes[name].shape)
    got = reference.evaluate(after.graph, given)
    for name, values in wanted.items():
        assert np.allclose(got[name], values, rtol=1e-6, atol=1e-6)
    assert reference.evaluate(before.graph, given)["y"].any()
