"""Attention against float64 loops; its decompositions in float32 and float16."""

import math

import numpy as np
import pytest
from umbel.errors import GraphError
from umbel.gguf.types import F16, F32, I32, Q8_0, dequantise, quantise
from umbel.graph import MASKED, Builder, Role
from umbel.ops import OPS
from umbel_kit.reference import evaluate

SLOPES_8 = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
SLOPES_12 = [*SLOPES_8, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]  # as in the ALiBi paper's code


def slopes(heads, max_bias):
    """For 8 and 12 heads and a bias of 8 the published values, else their powers."""
    return [s ** (max_bias / 8) for s in {8: SLOPES_8, 12: SLOPES_12}[heads]]


def weights(scores, hidden, sink=None):
    """One row of weights; zero where hidden, all zero when all is hidden."""
    seen = [s for s, h in zip(scores, hidden, strict=True) if not h]
    top = max([*seen, *([] if sink is None else [sink])], default=0.0)
    total = sum(math.exp(s - top) for s in seen)
    total += 0.0 if sink is None else math.exp(sink - top)
    return [
        0.0 if h else math.exp(s - top) / total for s, h in zip(scores, hidden, strict=True)
    ]


def attention(q, k, v, mask=None, sinks=None, *, scale, max_bias=0.0, logit_softcap=0.0):
    (seqs, heads, tokens, _), (_, kv_heads, _, size) = q.shape, v.shape
    out = np.zeros((seqs, tokens, heads, size))
    mask = np.zeros((seqs, 1, tokens, k.shape[2])) if mask is None else mask
    for s, h, t in np.ndindex(seqs, heads, tokens):
        keys, values = (x[s, h // (heads // kv_heads)].astype(np.float64) for x in (k, v))
        scores = keys @ q[s, h, t].astype(np.float64) * scale
        if logit_softcap:
            scores = logit_softcap * np.tanh(scores / logit_softcap)
        slope = slopes(heads, max_bias)[h] if max_bias else 1.0
        bias = np.broadcast_to(mask, (seqs, *mask.shape[1:]))[s, 0, t]
        row = weights(
            scores + slope * bias, bias <= MASKED / 2, None if sinks is None else sinks[h]
        )
        out[s, t, h] = np.array(row) @ values
    return out


def causal(seqs, tokens, cells):
    """Each token sees what is up to it; the last `tokens` cells are the step's own."""
    seen = np.tril(np.ones((tokens, cells), bool), cells - tokens)
    return np.where(seen, 0, MASKED).astype(np.float32)[None, None].repeat(seqs, 0)


def distances(seqs, tokens, cells):
    """A mask for ALiBi: minus the distance, hidden ahead."""
    mask = causal(seqs, tokens, cells)
    ahead = np.arange(tokens)[:, None] + cells - tokens - np.arange(cells)
    return np.where(mask == 0, -ahead, mask).astype(np.float32)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 4, 5), (0, 5), (3, 0), (3, 1)])
def test_soft_max(ops, normal, shape):
    """The last axis sums to one, in any number of axes."""
    x = 2 * normal(*shape)
    rows = x.reshape(-1, shape[-1]) if x.size else x.reshape(0, shape[-1])
    expected = [weights(r.astype(np.float64).tolist(), [False] * len(r)) for r in rows]
    actual = ops.reference("soft_max", x)
    np.testing.assert_allclose(actual.ravel(), np.array(expected).ravel(), atol=1e-6)


def test_soft_max_mask(ops):
    """Hidden is exactly zero even under a huge score; all hidden is all zero; no NaN."""
    x = np.array([[1e5, 0, 0], [1, 2, 3], [1e5, 1e5, -1e5]], np.float32)
    mask = np.array([[MASKED, 0, 0], [MASKED] * 3, [0, 0, 0]], np.float32)
    expected = [[0, 0.5, 0.5], [0, 0, 0], [0.5, 0.5, 0]]
    assert expected == ops.reference("soft_max", x, mask).tolist()


def test_mask_threshold(ops):
    """Half of MASKED hides; what lies above it is a bias."""
    x = np.zeros((2, 2), np.float32)
    mask = np.array([[0, MASKED / 2], [MASKED / 2 + 1000, MASKED / 2 + 1000]], np.float32)
    assert ops.reference("soft_max", x, mask).tolist() == [[1, 0], [0.5, 0.5]]


@pytest.mark.parametrize("heads", [8, 12])
def test_soft_max_alibi(ops, normal, heads):
    """The mask counts by the slope of its head; hidden stays hidden under a small slope."""
    x, mask = normal(2, heads, 3, 7), distances(2, 3, 7)
    actual = ops.reference("soft_max", x, mask, max_bias=8.0)
    for s, h, t in np.ndindex(2, heads, 3):
        scores = x[s, h, t].astype(np.float64) + slopes(heads, 8.0)[h] * mask[s, 0, t]
        expected = weights(scores.tolist(), mask[s, 0, t] <= MASKED / 2)
        np.testing.assert_allclose(actual[s, h, t], expected, atol=1e-6)


def test_soft_max_refused(ops, normal):
    """A mask that does not broadcast, and ALiBi without heads or a mask."""
    with pytest.raises(GraphError, match="soft_max"):
        ops.reference("soft_max", normal(2, 3, 4), normal(2, 4))
    with pytest.raises(GraphError, match="soft_max"):
        ops.reference("soft_max", normal(2, 3, 4), max_bias=8.0)
    with pytest.raises(GraphError, match="soft_max"):
        ops.reference("soft_max", normal(3, 4), normal(4), max_bias=8.0)


CASES = {
    "plain": {},
    "softcap": {"logit_softcap": 5.0},
    "alibi": {"max_bias": 8.0},
    "alibi softcap": {"max_bias": 4.0, "logit_softcap": 5.0},
}
SHAPES = {  # S, H, Hkv, T, L
    "decode": (1, 8, 8, 1, 9),
    "groups": (2, 8, 2, 3, 7),
    "one kv head": (2, 8, 1, 4, 4),
    "odd heads": (1, 12, 4, 2, 5),
}


def inputs(normal, shape, case):
    seqs, heads, kv_heads, tokens, cells = SHAPES[shape]
    mask = distances if "alibi" in case else causal
    return [
        normal(seqs, heads, tokens, 16),
        normal(seqs, kv_heads, cells, 16),
        normal(seqs, kv_heads, cells, 6),
        mask(seqs, tokens, cells),
        normal(heads),
    ]


@pytest.mark.parametrize("count", [3, 4, 5], ids=["bare", "mask", "sinks"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_flash_attention(ops, normal, case, shape, count):
    """Every combination of mask, ALiBi, soft cap, sinks and head groups."""
    if count == 3 and "alibi" in case:
        return  # ALiBi is a mask
    args = inputs(normal, shape, case)[:count]
    how = {"scale": 0.25, **CASES[case]}
    expected = attention(*args, **how)
    assert ops.nmse(expected, ops.reference("flash_attn_ext", *args, **how)) < 1e-12
    assert ops.nmse(expected, ops.decomposed("flash_attn_ext", *args, **how)) < 1e-12
    half = [a.astype(np.float16).astype(np.float32) for a in args]
    half[3:4] = args[3:4]
    actual = ops.decomposed("flash_attn_ext", *half, compute="f16", **how)
    assert ops.nmse(attention(*half, **how), actual) < 2e-6


@pytest.mark.parametrize("sinks", [False, True])
def test_all_hidden(ops, normal, sinks):
    """A row that sees nothing gives zero, with and without sinks, in every form."""
    args = inputs(normal, "groups", "plain")[: 5 if sinks else 4]
    args[3][1, 0, 1] = MASKED
    for values in (
        ops.reference("flash_attn_ext", *args, scale=0.25),
        ops.decomposed("flash_attn_ext", *args, scale=0.25),
        ops.decomposed("flash_attn_ext", *args, compute="f16", scale=0.25),
    ):
        assert not values[1, 1].any()
        assert np.isfinite(values).all()
        assert values[1, 2].any()


@pytest.mark.parametrize("size", [40.0, 1e3, 6e4])
def test_large_scores_in_f16(ops, size):
    """Products of large queries and keys make no NaN (a Qwen2 then says only "!!!!")."""
    q = np.full((1, 2, 2, 128), size, np.float32)
    k = np.full((1, 1, 4, 128), size, np.float32)
    v = np.arange(4 * 8, dtype=np.float32).reshape(1, 1, 4, 8)
    k[0, 0, 1:] *= -1
    mask = causal(1, 2, 4)
    scale = 128**-0.5
    expected = attention(q, k, v, mask, scale=scale)
    actual = ops.decomposed("flash_attn_ext", q, k, v, mask, compute="f16", scale=scale)
    assert ops.nmse(expected, actual) < 1e-6


def test_future_tokens_have_no_influence(ops, normal):
    """Changing what a token may not see changes no bit of its result."""
    args = inputs(normal, "groups", "plain")
    before = ops.reference("flash_attn_ext", *args[:4], scale=0.25)
    for x in args[1:3]:
        x[:, :, -1] = 1e4
    after = ops.reference("flash_attn_ext", *args[:4], scale=0.25)
    assert before[:, :2].tolist() == after[:, :2].tolist()
    assert before[:, 2].tolist() != after[:, 2].tolist()


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.__setitem__(1, a[1][..., :-1]),
        lambda a: a.__setitem__(2, a[2][:, :, :-1]),
        lambda a: a.__setitem__(0, a[0][:, :3]),
        lambda a: a.__setitem__(3, a[3][..., :-1]),
        lambda a: a.__setitem__(4, a[4][:-1]),
        lambda a: a.__setitem__(0, a[0][0]),
    ],
)
def test_flash_attention_refused(ops, normal, change):
    """Sizes that do not fit together are refused; the message says what is expected."""
    args = inputs(normal, "groups", "plain")
    change(args)
    with pytest.raises(GraphError, match="flash_attn_ext") as caught:
        ops.reference("flash_attn_ext", *args, scale=0.25)
    assert "q (S, H, T, hd)" in caught.value.expected


@pytest.mark.parametrize("attributes", [{}, {"scale": 1.0, "softcap": 5.0}])
def test_unknown_attributes(ops, normal, attributes):
    """An attribute that is missing or misspelt is told when the graph is built."""
    leaves = [ops.leaf(a, i) for i, a in enumerate(inputs(normal, "groups", "plain"))]
    with pytest.raises(GraphError, match=r"^flash_attn_ext(.|\n)*argument"):
        Builder(OPS).flash_attn_ext(*leaves, **attributes)


class Cached:
    """Two sequences with cells scattered over one cache; cell 0 is for padding."""

    def __init__(self, normal, dtype=F32, tokens=2, sinks=False, hidden=True):
        self.tokens, length = tokens, 5
        self.table = np.array([[0, 0, 9, 4, 7], [3, 8, 2, 5, 6]], np.int32)
        self.table[0, :3] = [0, 0, 9] if hidden else [1, 10, 9]
        self.cells = self.table[:, length - tokens :].ravel().copy()
        self.mask = causal(2, tokens, length)
        if hidden:
            self.mask[0, :, :, :2] = MASKED
        self.dtype = dtype
        self.caches = [quantise(normal(11, width), dtype) for width in (64, 32)]
        self.q, self.k = normal(2, tokens, 8, 16), normal(2, tokens, 4, 16)
        self.v = normal(2, tokens, 4, 8)
        self.sinks = [normal(8)] if sinks else []

    def node(self, **how):
        build = Builder(OPS)
        arrays = [self.q, self.k, self.v, *self.caches, self.cells, self.table, self.mask]
        arrays += self.sinks
        shapes = [a.shape for a in arrays]
        shapes[3:5] = [(11, 64), (11, 32)]
        dtypes = [F32, F32, F32, self.dtype, self.dtype, I32, I32, F32, F32]
        leaves = [
            build.leaf(Role.STATE if i in (3, 4) else Role.INPUT, f"in{i}", shape, dtypes[i])
            for i, shape in enumerate(shapes)
        ]
        fed = [a.copy() for a in arrays]
        node = build.kv_attention(*leaves, scale=0.25, **how)
        return build, node, dict(zip(leaves, fed, strict=True)), fed[3:5]

    def expected(self, **how):
        """(result, caches afterwards): rows written one by one, sequences one by one."""
        after = [c.copy() for c in self.caches]
        for cache, new in zip(after, (self.k, self.v), strict=True):
            rows = quantise(np.ascontiguousarray(new.reshape(len(self.cells), -1)), self.dtype)
            for cell, row in zip(self.cells, rows, strict=True):
                cache[cell] = row
        k, v = (dequantise(c, self.dtype)[self.table] for c in after)
        turned = (x.reshape(2, 5, 4, -1).transpose(0, 2, 1, 3) for x in (k, v))
        out = attention(
            self.q.transpose(0, 2, 1, 3), *turned, self.mask, *self.sinks, scale=0.25, **how
        )
        return out.reshape(2 * self.tokens, -1), after


@pytest.mark.parametrize("dtype", [F32, F16, Q8_0], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 5])
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
def test_kv_attention(ops, normal, dtype, tokens, sinks):
    """Writes the step's rows, then attends to each sequence's own cells; in both forms."""
    case = Cached(normal, dtype, tokens, sinks, hidden=tokens < 3)
    expected, after = case.expected()
    for form in (lambda build, node: node, lambda build, node: ops.lower(build, node, F32)):
        build, node, feeds, caches = case.node()
        (actual,) = evaluate(build.graph([form(build, node)]), feeds)
        assert ops.nmse(expected, actual) < 1e-11
        assert [a.tolist() for a in after] == [c.tolist() for c in caches]


@pytest.mark.parametrize("how", [{"max_bias": 8.0}, {"logit_softcap": 3.0}], ids=str)
def test_kv_attention_attributes(ops, normal, how):
    """ALiBi and soft cap reach the attention."""
    case = Cached(normal)
    expected, _ = case.expected(**how)
    build, node, feeds, _ = case.node(**how)
    assert ops.nmse(expected, evaluate(build.graph([node]), feeds)[0]) < 1e-11
    build, node, feeds, _ = case.node(**how)
    assert (
        ops.nmse(expected, evaluate(build.graph([ops.lower(build, node, F32)]), feeds)[0])
        < 1e-11
    )


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_rows_form(ops, normal, tokens):
    """Without a scatter: the same result from the old caches, and the rows to write."""
    case = Cached(normal, tokens=tokens, hidden=tokens < 3)
    expected, after = case.expected()
    build, node, feeds, caches = case.node()
    form = node.op.rows_form(build, node, F32)
    graph = build.graph([form.result, *(rows for _, rows, _ in form.writes)])
    assert not any(n.op.writes for n in graph.nodes)
    actual, *rows = evaluate(graph, feeds)
    assert ops.nmse(expected, actual) < 1e-11
    assert [node.inputs[3], node.inputs[4]] == [state for state, _, _ in form.writes]
    for cache, new, (_, _, ids), wanted in zip(caches, rows, form.writes, after, strict=True):
        cache[feeds[ids]] = new
        assert wanted.tolist() == cache.tolist()


def test_kv_attention_in_f16(ops, normal):
    """Decomposed for a float16 device the result is that of rounding."""
    case = Cached(normal, F16, sinks=True)
    expected, _ = case.expected()
    build, node, feeds, _ = case.node()
    (actual,) = evaluate(build.graph([ops.lower(build, node, F16)]), feeds, dtype=F16)
    assert ops.nmse(expected, actual) < 4e-6


@pytest.mark.parametrize("name", ["k", "v", "cells", "table", "mask"])
def test_kv_attention_refused(normal, name):
    """Each input that does not fit is refused."""
    case = Cached(normal)
    value = getattr(case, name)
    setattr(case, name, value[:-1] if name == "cells" else value[..., :-1])
    with pytest.raises(GraphError, match="kv_attention"):
        case.node()


def test_kv_attention_needs_its_own_cells(normal):
    """A table that has no room for the step's own cells is refused."""
    case = Cached(normal, tokens=2)
    case.table, case.mask = case.table[:, -1:].copy(), case.mask[..., -1:].copy()
    with pytest.raises(GraphError, match="kv_attention"):
        case.node()


def test_kv_attention_wants_all_its_inputs(normal):
    """Too few inputs are a typed error too."""
    _, node, _, _ = Cached(normal).node()
    with pytest.raises(GraphError, match="kv_attention"):
        Builder(OPS).kv_attention(*node.inputs[:7], scale=1.0)
