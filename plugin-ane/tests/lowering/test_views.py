"""Views cost what they must, and mean what they mean in NumPy."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from ane_ports import EXACT, PROFILE, computed, draw, lowered_graph, truth
from hypothesis import given, settings
from hypothesis import strategies as st
from umbel.gguf.types import F16
from umbel.graph import Builder, Role, Tensor
from umbel.ops import OPS

SHAPES = st.lists(st.sampled_from((1, 1, 2, 3, 4, 6)), min_size=1, max_size=4).map(tuple)


def cut(draw_: Any, n: int) -> tuple[int, ...]:
    """n as a product of up to four."""
    found: list[int] = []
    for _ in range(draw_(st.integers(0, 3))):
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        found.append(draw_(st.sampled_from(divisors)))
        n //= found[-1]
    return (*found, n)


def step(draw_: Any, b: Builder, x: Tensor) -> Tensor:
    match draw_(st.sampled_from(("reshape", "permute", "view", "concat", "add", "scale"))):
        case "reshape":
            return b.reshape(x if x.is_contiguous else b.cont(x), shape=cut(draw_, x.size))
        case "permute":
            return b.permute(x, axes=tuple(draw_(st.permutations(range(len(x.shape))))))
        case "view":
            axis = draw_(st.integers(0, len(x.shape) - 1))
            start = draw_(st.integers(0, x.shape[axis] - 1))
            stop = draw_(st.integers(start + 1, x.shape[axis]))
            return b.view(x, axis=axis, start=start, stop=stop)
        case "concat" if x.size < 500:
            return b.concat(x, x, axis=draw_(st.integers(0, len(x.shape) - 1)))
        case "add":
            small = tuple(n if draw_(st.booleans()) else 1 for n in x.shape)
            y = b.leaf(Role.INPUT, f"y{len(b.nodes)}", small, F16)
            return b.add(x, y)
    return b.scale(x, s=2.0)


@settings(max_examples=150, deadline=None)
@given(st.data(), SHAPES)
def test_chains(data: Any, shape: tuple[int, ...]) -> None:
    b = Builder(dict(OPS))
    x = b.leaf(Role.INPUT, "x", shape, F16)
    for _ in range(data.draw(st.integers(1, 7))):
        x = step(data.draw, b, x)
    made = b.graph([b.scale(x, s=0.5)])
    arrays = draw(made)
    (end,) = made.outputs
    expected = truth(made, arrays)[end]
    for profile in (PROFILE, EXACT):
        lowered = lowered_graph(made, arrays, profile)
        got = computed(lowered, arrays, "fp32")[end]
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert all(math.prod(n.shape) == n.size for n in lowered.graph.nodes())


def test_heads_cost_nothing() -> None:
    """(tokens, features) as heads, turned, and back: no data moves."""
    b = Builder(dict(OPS))
    x = b.leaf(Role.INPUT, "x", (32, 48), F16)
    heads = b.permute(b.reshape(x, shape=(32, 4, 12)), axes=(1, 0, 2))
    back = b.permute(heads, axes=(1, 0, 2))
    y = b.leaf(Role.INPUT, "y", (32, 48), F16)
    flat = b.add(b.reshape(b.cont(back), shape=(32, 48)), y)
    made = b.graph([flat])
    lowered = lowered_graph(made, draw(made))
    assert Counter(n.op for n in lowered.graph.nodes()) == {"input": 2, "add": 1}
