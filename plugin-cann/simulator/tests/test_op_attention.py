"""Attention and rotary positions: layouts, groups of heads, masks, blocks of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from operators import Array, Handle, Operators, Tensor, close, some
from simulated import Acl, simulated

FAR = 65535
LAYOUTS = {"BSND": (0, 1, 2, 3), "BNSD": (0, 2, 1, 3)}


def attention(
    q: Array, k: Array, v: Array, *, scale: float, shift: Any = 0, hidden: Any = False
) -> tuple[Array, Array]:
    """Of (B, S, N, D); shift and hidden broadcast to (B, N, S, KV)."""
    group = q.shape[2] // k.shape[2]
    wide = [np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, k, v)]
    keys, values = (np.repeat(x, group, 1) for x in wide[1:])
    score = wide[0] @ keys.transpose(0, 1, 3, 2) * scale + shift
    score = np.where(hidden, -np.inf, score)
    score = np.where(np.isneginf(score).all(-1, keepdims=True), 0, score)
    weights = np.exp(score - score.max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)
    lse = score.max(-1, keepdims=True) + np.log(total)
    return (weights / total @ values).transpose(0, 2, 1, 3), lse


def arguments(
    on: Operators,
    given: Sequence[Any],
    heads: int,
    kv_heads: int,
    layout: str = "BSND",
    shift: Tensor | None = None,
    mask: Tensor | None = None,
    lengths: Handle | None = None,
    table: Tensor | None = None,
    block: int = 0,
    precise: int = 0,
    lse: Tensor | None = None,
    pre: int = FAR,
    sparse: int = 0,
    quant: Tensor | None = None,
) -> tuple[Any, ...]:
    """All of FusedInferAttentionScoreV2's; `given`: query, key, value, output."""
    q, k, v, out = given
    return (
        q,
        on.tensors(k),
        on.tensors(v),
        shift,
        mask,
        None,
        lengths,
        *[quant] * 7,
        table,
        None,
        None,
        *[None] * 4,
        None,
        None,
        None,
        heads,
        0.25,
        pre,
        FAR,
        layout,
        kv_heads,
        sparse,
        precise,
        block,
        0,
        lse is not None,
        0,
        0,
        out,
        lse,
    )


NAME = "FusedInferAttentionScoreV2"


@simulated()
def test_layouts_and_groups_of_heads(acl: Acl) -> None:
    on = Operators(acl)
    for dtype in ("f16", "bf16"):
        for heads, kv_heads, width in ((4, 4, 16), (6, 2, 32), (3, 1, 48)):
            q, k, v = (
                some((2, s, n, width), dtype)
                for s, n in ((3, heads), (7, kv_heads), (7, kv_heads))
            )
            want, lse = attention(q, k, v, scale=0.25)
            for layout, order in LAYOUTS.items():
                t = [on.tensor(np.ascontiguousarray(x.transpose(order))) for x in (q, k, v)]
                out = on.empty(t[0].array.shape, dtype)
                on.call(NAME, *arguments(on, [*t, out], heads, kv_heads, layout))
                close(on.read(out).transpose(order), want, dtype, 4, f"{layout} {heads}")
            t = [on.tensor(x.reshape(*x.shape[:2], -1).copy()) for x in (q, k, v)]
            out, sums = on.empty(t[0].array.shape, dtype), on.empty(lse.shape, "f32")
            on.call(NAME, *arguments(on, [*t, out], heads, kv_heads, "BSH", lse=sums))
            close(on.read(out).reshape(want.shape), want, dtype, 4)
            close(on.read(sums), lse, "f32", 8)


@simulated()
def test_shifts_masks_and_lengths(acl: Acl) -> None:
    on = Operators(acl)
    q, k, v = (some((2, s, n, 16), "f16") for s, n in ((4, 4), (9, 2), (9, 2)))
    rng = np.random.default_rng(4)
    t = [on.tensor(x) for x in (q, k, v)]
    out = on.empty(q.shape, "f16")
    for shape in ((2, 4, 4, 9), (1, 4, 4, 9)):
        shift = some(shape, "f16")
        on.call(NAME, *arguments(on, [*t, out], 4, 2, shift=on.tensor(shift)))
        want, _ = attention(q, k, v, scale=0.25, shift=shift)
        close(on.read(out), want, "f16", 4, f"{shape}")
    shapes: list[tuple[int, ...]] = [(2, 1, 4, 9), (4, 9), (2, 4, 9)]
    for which in shapes:
        mask = rng.uniform(size=which) < 0.4
        mask[..., 0] = False
        for kind in (np.bool_, np.int8, np.uint8):
            on.call(NAME, *arguments(on, [*t, out], 4, 2, mask=on.tensor(mask.astype(kind))))
            hidden = mask[:, None] if mask.ndim == 3 else mask
            want, _ = attention(q, k, v, scale=0.25, hidden=hidden)
            close(on.read(out), want, "f16", 4, f"{which}")
    lengths = np.array([5, 8])
    on.call(NAME, *arguments(on, [*t, out], 4, 2, lengths=on.ints(5, 8)))
    hidden = np.arange(9) >= lengths[:, None, None, None]
    want, _ = attention(q, k, v, scale=0.25, hidden=hidden)
    close(on.read(out), want, "f16", 4)


@simulated()
def test_a_row_that_sees_nothing(acl: Acl) -> None:
    on = Operators(acl)
    q, k, v = (some((1, s, 1, 16), "f16") for s in (2, 3, 3))
    mask = np.array([[True] * 3, [False] * 3])
    t, out = [on.tensor(x) for x in (q, k, v)], on.empty(q.shape, "f16")
    want, _ = attention(q, k, v, scale=0.25, hidden=mask)
    for precise in (0, 2):
        on.call(NAME, *arguments(on, [*t, out], 1, 1, mask=on.tensor(mask), precise=precise))
        got = on.read(out)
        close(got[:, 1], want[:, 1], "f16", 4)
        close(got[:, 0], want[:, 0] if precise == 0 else np.zeros((1, 1, 16)), "f16", 4)


@simulated()
def test_keys_in_blocks(acl: Acl) -> None:
    on = Operators(acl)
    block, lengths, heads, kv_heads, width = 16, (40, 7), 4, 2, 16
    q = some((2, 1, heads, width), "f16")
    cells = [some((6, block, kv_heads, width), "f16") for _ in range(2)]
    table = np.array([[4, 0, 5], [2, 1, 1]], np.int32)
    k, v = (x[table].reshape(2, -1, kv_heads, width) for x in cells)
    hidden = np.arange(48) >= np.array(lengths)[:, None, None, None]
    want, _ = attention(q, k, v, scale=0.25, hidden=hidden)
    by, known = on.tensor(table), on.ints(*lengths)
    for layout in ("BNSD", "BSND"):
        turned = layout == "BNSD"
        t = [
            on.tensor(x.transpose(0, 2, 1, 3).copy() if turned else x.reshape(6, block, -1))
            for x in cells
        ]
        asked = q.transpose(LAYOUTS[layout]).copy()
        out = on.empty(asked.shape, "f16")
        given = [on.tensor(asked), *t, out], heads, kv_heads, layout
        on.call(NAME, *arguments(on, *given, table=by, block=block, lengths=known))
        close(on.read(out).transpose(LAYOUTS[layout]), want, "f16", 4)
    assert on.refused(NAME, *arguments(on, *given, table=by, block=block)) == 161002
    assert on.refused(NAME, *arguments(on, *given, table=by, block=32, lengths=known)) == 161002
    long = on.ints(49, 1)
    assert (
        on.refused(NAME, *arguments(on, *given, table=by, block=block, lengths=long)) == 161002
    )
    outside = on.tensor(np.array([[6, 0, 0], [0, 0, 0]], np.int32))
    code, size, executor = on.first(
        NAME, *arguments(on, *given, table=outside, block=block, lengths=known)
    )
    assert (code, on.second(NAME, size, executor)) == (0, 0)
    assert acl.aclrtSynchronizeStream(None) == 507015


@simulated()
def test_what_blocks_of_keys_refuse(acl: Acl) -> None:
    """The vendor's rules for a block table, each broken. Beside those above: of several queries
    blocks are 128 to 512 long; keys lie as (blocks, blockSize, N * D), which is 65535 at most,
    where query is no BNSD; there are blocks for all lengths; and what is added or hidden is as
    long as the blocks of the longest."""
    on, size = Operators(acl), 16

    def code(queries: int = 2, block: int = 128, lengths: Any = (200, 100), **more: Any) -> int:
        heads, count = more.pop("heads", 2), more.pop("count", 3)
        q = on.empty((2, queries, heads, size), "f16")
        t = on.empty(more.pop("shape", (count, block, heads * size)), "f16")
        table = on.tensor(np.zeros(more.pop("table", (2, 2)), more.pop("kind", np.int32)))
        how = {"table": table, "block": block, "lengths": on.ints(*lengths), **more}
        call = NAME, *arguments(on, [q, t, t, q], heads, heads, **how)
        first, workspace, executor = on.first(*call)
        return first or on.second(NAME, workspace, executor)

    shifts = [on.empty((2, 2, 2, n), "f16") for n in (256, 255, 200)]
    masks = [on.empty((2, 1, 2, n), "bool") for n in (256, 255)]
    assert code() == code(shift=shifts[0]) == code(mask=masks[0]) == 0
    assert code(1, 16, (20, 7)) == code(block=512, lengths=(512, 200)) == 0
    assert code(block=64, count=8, table=(2, 4)) == 161002
    assert code(1, 24, (20, 7)) == code(block=640) == code(1, 528) == 161002
    assert code(table=(1, 2)) == code(table=(2, 1)) == code(kind=np.int64) == 161002
    assert code(count=2) == code(lengths=(200,)) == 161002
    assert code(lengths=(200,), count=4) == 0
    assert code(shape=(3, 2, 128, size)) == 161002
    assert code(shift=shifts[1]) == code(shift=shifts[2]) == code(mask=masks[1]) == 161002


@simulated()
def test_wide_rows_in_blocks(acl: Acl) -> None:
    on = Operators(acl)
    for heads, expected in ((127, 0), (128, 161002)):
        q, t = on.empty((1, 1, heads, 512), "f16"), on.empty((1, 16, heads * 512), "f16")
        table, known = on.tensor(np.zeros((1, 1), np.int32)), on.ints(1)
        call = arguments(on, [q, t, t, q], heads, heads, table=table, block=16, lengths=known)
        code, workspace, executor = on.first(NAME, *call)
        assert (code or on.second(NAME, workspace, executor)) == expected


@simulated()
def test_one_query_for_each_sequence(acl: Acl) -> None:
    on = Operators(acl)
    q, k, v = (some((2, s, n, 16), "f16") for s, n in ((1, 4), (9, 2), (9, 2)))
    out = on.empty(q.shape, "f16")
    on.call(
        "IncreFlashAttention",
        on.tensor(q),
        on.tensors(on.tensor(k)),
        on.tensors(on.tensor(v)),
        None,
        None,
        None,
        4,
        0.25,
        "BSND",
        2,
        out,
    )
    close(on.read(out), attention(q, k, v, scale=0.25)[0], "f16", 4)


@simulated()
def test_what_attention_refuses(acl: Acl) -> None:
    on = Operators(acl)
    q, k, v = (on.tensor(some((1, s, 2, 16), "f16")) for s in (4, 9, 9))
    out, mask = on.empty((1, 4, 2, 16), "f16"), on.tensor(np.zeros((4, 9), np.bool_))
    short = on.tensor(np.zeros((4, 8), np.bool_))

    def code(heads: int = 2, kv_heads: int = 2, **more: Any) -> int:
        names = {"q": q, "k": k, "v": v, "out": out}
        given = [more.pop(name, tensor) for name, tensor in names.items()]
        return on.refused(NAME, *arguments(on, given, heads, kv_heads, **more))

    assert code(q=None) == 161001
    assert code(out=None) == 161001
    assert code(layout="TND") == 161002
    assert code(layout=None) == 161001
    assert code(heads=4) == 161002
    assert code(kv_heads=1) == 161002
    assert code(mask=short) == 161002
    assert code(mask=on.tensor(some((4, 9), "f16"))) == 161002
    assert code(mask=mask, pre=3) == 161002
    assert code(sparse=3) == 161002
    assert code(precise=4) == 161002
    one = on.empty((1, 1, 2, 16), "f16")
    assert code(q=one, out=one, precise=2) == code(q=one, out=one, precise=3) == 161002
    for shape in ((1, 1, 4, 9), (4, 9), (2, 4, 9), (1, 2, 1, 9), (1, 2, 4, 8)):
        assert code(shift=on.tensor(some(shape, "f16"))) == 161002, shape
    assert code(shift=on.tensor(some((1, 2, 4, 9), "f32"))) == 161002
    assert code(quant=out) == 161002
    assert code(lengths=on.ints(10)) == 161002
    odd = on.tensor(some((1, 4, 2, 24), "f16"))
    assert code(q=odd, k=odd, v=odd, out=odd) == 161002
    f32 = on.tensor(some((1, 4, 2, 16), "f32"))
    assert code(q=f32, k=f32, v=f32, out=f32) == 161002


def rotated(x: Array, mode: int) -> tuple[Array, Array]:
    """x as the mode sorts it, and what sin multiplies."""
    wide = x.astype(np.float64)
    if mode == 3:
        wide = np.concatenate([wide[..., ::2], wide[..., 1::2]], -1)
    if mode == 1:
        pairs = np.stack([-wide[..., 1::2], wide[..., ::2]], -1)
        return wide, pairs.reshape(wide.shape)
    parts = np.split(wide, 4 if mode == 2 else 2, -1)
    turned = [y for a, b in zip(parts[::2], parts[1::2], strict=True) for y in (-b, a)]
    return wide, np.concatenate(turned, -1)


@simulated()
def test_rotary_positions(acl: Acl) -> None:
    on = Operators(acl)
    for dtype in ("f32", "f16", "bf16"):
        x = some((2, 3, 4, 8), dtype)
        for shape in ((1, 3, 1, 8), (2, 3, 4, 8), (1, 1, 4, 8)):
            cos, sin = some(shape, dtype, -1, 1), some(shape, dtype, -1, 1)
            by = on.tensor(cos), on.tensor(sin)
            for mode in range(4):
                plain, turned = rotated(x, mode)
                want = plain * cos.astype(np.float64) + turned * sin.astype(np.float64)
                got = on.run("RotaryPositionEmbedding", x.shape, dtype, on.tensor(x), *by, mode)
                close(got, want, dtype, 2, f"{dtype} {shape} {mode}")
    q, k = some((2, 3, 4, 8), "f16"), some((2, 3, 1, 8), "f16")
    cos, sin = some((2, 3, 1, 8), "f16", -1, 1), some((2, 3, 1, 8), "f16", -1, 1)
    t = [on.tensor(x) for x in (q, k, cos, sin)]
    on.call("ApplyRotaryPosEmb", *t, 1)
    for tensor, x in ((t[0], q), (t[1], k)):
        plain, turned = rotated(x, 0)
        close(on.read(tensor), plain * cos + turned * sin.astype(np.float64), "f16", 2)
    assert on.refused("ApplyRotaryPosEmb", *t, 2) == 161002


@simulated()
def test_what_rotary_positions_refuse(acl: Acl) -> None:
    on = Operators(acl)
    name = "RotaryPositionEmbedding"
    x, angle = on.tensor(some((1, 2, 3, 8))), on.tensor(some((1, 2, 1, 8)))
    other = on.tensor(some((1, 2, 1, 8), "f16"))
    assert on.refused(name, x, angle, angle, 4, x) == 161002
    assert on.refused(name, x, other, other, 0, x) == 161002
    assert on.refused(name, x, on.tensor(some((1, 5, 1, 8))), angle, 0, x) == 161002
    assert on.refused(name, x, None, angle, 0, x) == 161001
    odd, by = on.tensor(some((1, 2, 3, 7))), on.tensor(some((1, 2, 1, 7)))
    assert on.refused(name, odd, by, by, 0, odd) == 161002
    six, by = on.tensor(some((1, 2, 3, 6))), on.tensor(some((1, 2, 1, 6)))
    assert on.refused(name, six, by, by, 2, six) == 161002
