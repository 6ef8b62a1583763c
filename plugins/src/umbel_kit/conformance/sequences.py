"""Cases of what looks along a sequence: soft maximum, attention, convolution and scan."""

import itertools
from collections.abc import Iterator

import attrs
from umbel.gguf.types import BY_NAME

from umbel_kit.conformance.inputs import LAYOUTS, Arg, Case, Shape, ids, state, weight


def attentions() -> Iterator[Case]:
    for shape in ((5,), (3, 33), (2, 4, 3, 7), (0, 5), (3, 0), (2, 1000)):
        yield Case("soft_max", (Arg(shape),))
    whole = Arg((2, 4, 3, 7))
    for mask in ("mask", "barely", "hidden"):
        yield Case("soft_max", (whole, Arg((2, 1, 3, 7), values=mask)), note=mask)
    slopes = Arg((2, 12, 3, 7)), Arg((2, 1, 3, 7), values="distances")
    yield Case("soft_max", slopes, {"max_bias": 8.0})
    for layout in LAYOUTS:
        args = attrs.evolve(whole, layout=layout), Arg((2, 1, 3, 7), values="mask")
        yield Case("soft_max", args)
        yield Case("soft_max", (whole, attrs.evolve(args[1], layout=layout)))
    for odd in ("edges", "lowered", "lost"):
        yield Case("soft_max", (Arg((5, 8), values=odd),), note=odd)
    # S, H, Hkv, T, L
    shapes = ((1, 4, 4, 1, 9), (2, 8, 2, 3, 7), (2, 6, 1, 4, 4), (1, 4, 2, 33, 65))
    kinds: tuple[dict[str, float], ...] = ({}, {"logit_softcap": 5.0}, {"max_bias": 8.0})
    for sizes, kind in itertools.product((*shapes, (0, 4, 2, 1, 5)), kinds):
        yield from _attention(*sizes, {"scale": 0.25, **kind})
    yield from _strided_attention(*shapes[1])


def _attention(
    s: int, h: int, kv: int, t: int, cells: int, how: dict[str, float]
) -> Iterator[Case]:
    mask = Arg((s, 1, t, cells), values="distances" if "max_bias" in how else "mask")
    q, k, v = Arg((s, h, t, 16)), Arg((s, kv, cells, 16)), Arg((s, kv, cells, 8))
    for others in ((mask,), (mask, weight((h,)))):
        yield Case("flash_attn_ext", (q, k, v, *others), how)
    if not s:
        return
    q, k, v = Arg((s, t, h, 16)), Arg((s, t, kv, 16)), Arg((s, t, kv, 32))
    for dtype, values in itertools.product(("f32", "f16", "q8_0"), ("normal", "junk")):
        caches = [state((80, kv * n), dtype, values=values) for n in (16, 32)]
        if any(c.shape[1] % BY_NAME[dtype].block for c in caches):
            continue
        places = ids((s * t,), 80, "rows"), ids((s, cells), 80)
        note = "" if values == "normal" else values
        yield Case("kv_attention", (q, k, v, *caches, *places, mask), how, note)
        if dtype == "f16" and values == "normal":
            sinks = weight((h,))
            yield Case("kv_attention", (q, k, v, *caches, *places, mask, sinks), how)


def _strided_attention(s: int, h: int, kv: int, t: int, cells: int) -> Iterator[Case]:
    """As views of one product for q, k and v, and of caches that hold more."""
    how, mask = {"scale": 0.25}, Arg((s, 1, t, cells), values="mask")
    sizes: tuple[Shape, ...] = ((s, h, t, 16), (s, kv, cells, 16), (s, kv, cells, 8))
    for layout in LAYOUTS:
        q, k, v = (Arg(shape, layout=layout) for shape in sizes)
        yield Case("flash_attn_ext", (q, k, v, mask), how)
    yield Case("flash_attn_ext", (*map(Arg, sizes),), how, "no mask")
    hidden = attrs.evolve(mask, values="hidden")
    yield Case("flash_attn_ext", (*map(Arg, sizes), hidden), how, "hidden")
    places = ids((s * t,), 80, "rows"), ids((s, cells), 80)
    for layout, kept in itertools.product(("rows", "window", "heads"), ("rows", "joined")):
        q, k, v = (
            Arg(shape, layout=layout)
            for shape in ((s, t, h, 16), (s, t, kv, 16), (s, t, kv, 8))
        )
        caches = [state((80, kv * n), "f16", layout=kept) for n in (16, 8)]
        yield Case("kv_attention", (q, k, v, *caches, *places, mask), how)


def recurrent() -> Iterator[Case]:
    for s, channels, width, t in ((1, 5, 4, 1), (2, 5, 4, 6), (2, 33, 1, 3), (3, 4, 3, 2)):
        sx, kernel = Arg((s, channels, width - 1 + t)), weight((channels, width))
        yield Case("ssm_conv", (sx, kernel))
        yield Case("ssm_conv", (sx, attrs.evolve(kernel, layout="window")))
        for layout in ("window", "turned"):
            yield Case("ssm_conv", (attrs.evolve(sx, layout=layout), kernel))
    for shape in ((2, 5, 3), (0, 5, 6)):
        yield Case("ssm_conv", (Arg(shape), weight((5, 4))), note="nothing")
    yield Case("ssm_conv", (Arg((3, 5, 6), values="lost"), weight((5, 4))), note="lost")
    # H, P, N, G, decays
    for (h, p, n, g, decays), t in itertools.product(
        ((6, 1, 4, 1, 4), (4, 3, 5, 2, 1), (4, 3, 5, 1, 1)), (0, 1, 5)
    ):
        b, c = Arg((2, t, g, n)), Arg((2, t, g, n))
        a, slots = weight((h, decays), values="negative"), ids((2,), 5)
        for layout, values in (("plain", "normal"), ("joined", "normal"), ("plain", "junk")):
            for dtype in ("f16", "f32"):
                states = state((5, h, p, n), dtype, layout=layout, values=values)
                args = (states, Arg((2, t, h, p)), Arg((2, t, h)), a, b, c, slots)
                yield Case("ssm_scan", args, note="" if values == "normal" else values)
        x, dt = Arg((2, t, h, p), layout="window"), Arg((2, t, h), layout="window")
        b, c = (attrs.evolve(m, layout="rows") for m in (b, c))
        yield Case("ssm_scan", (states, x, dt, a, b, c, slots))
