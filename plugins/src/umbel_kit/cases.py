"""The cases of the conformance suite: every operation with the inputs that it meets in models,
and with those that break kernels (odd sizes, nothing at all, strides, broadcasts, edges of a
dtype, infinities).

Cases for operations of other distributions are lists of the same kind, `CASES` in a module that
`--umbel-cases` names.
"""

import itertools
from collections.abc import Iterator, Sequence

import attrs
from umbel.gguf.types import BY_NAME, DECODABLE

from umbel_kit.conformance.inputs import (
    EXACT,
    LAYOUTS,
    Arg,
    Case,
    Shape,
    arrays,
    draw,
    graph,
    ids,
    laid_out,
    random_blocks,
    state,
    weight,
)
from umbel_kit.conformance.sequences import attentions, recurrent

__all__ = ["CASES", "EXACT", "SHAPES", "WEIGHTS", "Arg", "Case", "Shape"]
__all__ += ["arrays", "draw", "graph", "laid_out", "random_blocks"]

WEIGHTS = ("f32", "f16", "bf16", *sorted(n for n in DECODABLE if BY_NAME[n].quantised))
SHAPES: tuple[Shape, ...] = (
    (1,),
    (7,),
    (3, 5),
    (2, 3, 4, 5),
    (33, 257),
    (0, 4),
    (3, 0),
    (1, 1, 64),
)
_UNARY: tuple[str, ...] = ("sqr", "exp", "neg", "tanh", "relu", "sigmoid", "silu", "gelu")
_UNARY += ("gelu_erf", "gelu_quick", "softplus", "cont")
_BINARY = ("add", "sub", "mul", "div")
_GLU = ("reglu", "swiglu", "geglu", "geglu_erf", "geglu_quick")


def elementwise() -> Iterator[Case]:
    for op in (*_UNARY, "sqrt"):
        values = "positive" if op == "sqrt" else "normal"
        yield from (Case(op, (Arg(s, values=values),)) for s in SHAPES)
        for layout in LAYOUTS:
            yield Case(op, (Arg((2, 3, 4, 6), layout=layout, values=values),))
        for odd in ("edges", "infinite", "lost") if op != "sqrt" else ("infinite", "lost"):
            yield Case(op, (Arg((5, 8), values=odd),), note=odd)
    for op in _BINARY:
        second = "positive" if op == "div" else "normal"
        pairs: list[tuple[Shape, Shape]] = [(s, s) for s in SHAPES]
        pairs += [((2, 3, 4, 5), b) for b in ((5,), (4, 1), (3, 1, 5), (1,), (1, 1, 1, 1))]
        pairs += [((0, 4), (4,)), ((3, 0), (3, 1))]
        yield from (Case(op, (Arg(a), Arg(b, values=second))) for a, b in pairs)
        for one, two in (("turned", "plain"), ("plain", "window"), ("rows", "heads")):
            args = Arg((3, 4, 6), layout=one), Arg((3, 4, 6), layout=two, values=second)
            yield Case(op, args)
        yield Case(op, (Arg((3, 4, 6)), Arg((3, 1, 6), layout="window", values=second)))
        yield Case(op, (Arg((3, 4, 6)), weight((6,), values=second)))
        for odd in ("edges", "infinite", "lost"):
            yield Case(op, (Arg((5, 8), values=odd), Arg((8,), values=second)), note=odd)
    for op in _GLU:
        yield from (Case(op, (Arg(s), Arg(s))) for s in SHAPES)
        for layout in LAYOUTS:
            shape = (2, 3, 64) if layout == "heads" else (3, 64)
            yield Case(op, (Arg(shape, layout=layout), Arg(shape, layout=layout)))
        for odd in ("edges", "infinite", "lost"):
            yield Case(op, (Arg((5, 8), values=odd), Arg((5, 8))), note=odd)
    yield from _with_numbers()


def _with_numbers() -> Iterator[Case]:
    by, between = {"s": 0.5, "b": -1.5}, {"min": -0.5, "max": 0.25}
    for op, how in (("scale", by), ("clamp", between)):
        yield from (Case(op, (Arg(s),), how) for s in SHAPES)
        yield from (Case(op, (Arg((2, 3, 4, 6), layout=w),), how) for w in LAYOUTS)
        for odd in ("edges", "infinite", "lost"):
            yield Case(op, (Arg((5, 8), values=odd),), how, odd)
    yield Case("scale", (Arg((3, 5)),), {"s": 0.0, "b": 1.0})
    yield Case("clamp", (Arg((3, 5)),), {"min": -30000.0, "max": 30000.0})
    for dtype, source in itertools.product(("f32", "f16", "bf16", "i32"), repeat=2):
        values = "numbers below 2000" if source == "i32" else "normal"
        for layout in (
            ("plain", "window") if source == "bf16" else ("plain", "window", "turned")
        ):
            args = (Arg((3, 33), source, layout=layout, values=values),)
            yield Case("cast", args, {"dtype": dtype})
    for source in ("f32", "f16"):
        for odd in ("edges", "infinite") if source == "f32" else ("infinite",):
            yield Case("cast", (Arg((5, 8), source, values=odd),), {"dtype": "f16"}, odd)
        yield Case("cast", (Arg((3, 0), source),), {"dtype": "f16"})


def moves() -> Iterator[Case]:
    for axis, dtype in itertools.product(range(4), ("", "i32")):
        values = "numbers below 99999" if dtype else "normal"
        one, two = [2, 3, 4, 5], [2, 3, 4, 5]
        two[axis] += 1
        args = Arg(tuple(one), dtype, values=values), Arg(tuple(two), dtype, values=values)
        for layout in ("plain", "window", "heads") if axis else ("plain", "turned"):
            yield Case(
                "concat", (attrs.evolve(args[0], layout=layout), args[1]), {"axis": axis}
            )
    yield Case("concat", (Arg((2, 0)), Arg((2, 5))), {"axis": 1})
    yield Case("concat", (Arg((0, 5)), Arg((0, 5))), {"axis": 0})
    yield Case("concat", (Arg((3,)), Arg((130,))), {"axis": 0})
    args = Arg((5, 8), values="infinite"), Arg((5, 8), values="lost")
    yield Case("concat", args, {"axis": 0}, "infinite and lost")
    for layout in ("plain", *LAYOUTS):
        yield Case("cont", (ids((2, 3, 4, 6), 99999, layout=layout),))
    for s in ((4, 8), (1, 1), (2, 3, 65), (2, 3, 4, 5), (3, 0), (0, 4), (2, 1000)):
        yield Case("sum_rows", (Arg(s),))
    for s, k in (((1, 9), 1), ((5, 60), 4), ((2, 128), 8), ((7, 7), 7), ((0, 8), 2)):
        yield Case("top_k", (Arg(s),), {"k": k})
    for odd in ("ties", "infinite", "edges"):  # of equal ones the first comes first
        yield Case("top_k", (Arg((6, 40), values=odd),), {"k": 8}, odd)
    for layout in ("window", "turned"):
        yield Case("sum_rows", (Arg((3, 4, 6), layout=layout),))
        yield Case("top_k", (Arg((3, 4, 6), layout=layout),), {"k": 2})
    yield Case("sum_rows", (Arg((5, 8), values="lost"),), note="lost")


def rows() -> Iterator[Case]:
    for dtype in WEIGHTS:
        width = max(64, BY_NAME[dtype].block)
        yield Case("get_rows", (weight((19, width), dtype), ids((5,), 19)))
    for dtype in ("f32", "f16", "q4_0", "q8_0"):
        part = weight((19, 64), dtype, layout="rows")
        yield Case("get_rows", (part, ids((40,), 19)), note="repeated")
    table = Arg((19, 24))
    shapes: tuple[Shape, ...] = ((1,), (7,), (2, 3), (2, 2, 3), (0,), (0, 3))
    yield from (Case("get_rows", (table, ids(shape, 19))) for shape in shapes)
    yield Case("get_rows", (table, ids((2, 3), 19, layout="window")))
    yield Case("get_rows", (attrs.evolve(table, layout="turned"), ids((7,), 3)))
    yield Case(
        "get_rows", (attrs.evolve(table, values="infinite"), ids((7,), 19)), {}, "infinite"
    )
    batched: tuple[tuple[Shape, Shape], ...] = (
        ((4, 9, 5), (4, 3)),
        ((2, 4, 9, 5), (2, 4, 12)),
        ((4, 9, 1), (4, 3)),
    )
    for table_shape, ids_shape in batched:
        for layout in ("plain", "window"):
            table = Arg(table_shape, layout=layout)
            yield Case("get_rows", (table, ids(ids_shape, 9)))
    for dtype, n in itertools.product(("f32", "f16", "q8_0"), (0, 1, 5)):
        places = ids((n,), 23, "rows")
        yield Case("set_rows", (state((23, 64), dtype), Arg((n, 64)), places))
        yield Case("get_rows", (state((23, 64), dtype, values="junk"), places))
    parts = [*itertools.product(("f32", "f16"), ("rows", "joined")), ("q8_0", "rows")]
    for dtype, layout in parts:
        part = state((23, 64), dtype, layout=layout)
        yield Case("set_rows", (part, Arg((5, 64)), ids((5,), 23, "rows")))
        yield Case("get_rows", (part, ids((5,), 23)))
    new = Arg((5, 64), layout="window")
    yield Case("set_rows", (state((23, 64)), new, ids((5,), 23, "rows")))
    same = Arg((9, 64), values="alike")  # as padding writes a scratch cell again and again
    yield Case("set_rows", (state((23, 64)), same, ids((9,), 4)), note="repeated")


def products() -> Iterator[Case]:
    for dtype in WEIGHTS:
        width = max(96, 2 * BY_NAME[dtype].block)
        for n in (1, 2, 17):
            yield Case("mul_mat", (weight((37, width), dtype), Arg((n, width))))
    for dtype in ("f32", "f16", "bf16", "q4_0", "q8_0", "q4_k"):
        width = max(32, BY_NAME[dtype].block)
        part, stack = (
            weight((37, width), dtype, layout="rows"),
            weight((2, 9, width), dtype, layout="joined"),
        )
        yield Case("mul_mat", (part, Arg((3, width))))
        yield Case("mul_mat", (stack, Arg((2, 3, width))))
        yield Case("mul_mat", (weight((37, width), dtype), Arg((3, width), layout="window")))
        yield Case("mul_mat", (weight((37, width), dtype), Arg((0, width))))
        yield Case("mul_mat", (weight((37, width), dtype), Arg((2, 2, 3, width))))
        yield Case("mul_mat", (weight((37, width), dtype), Arg((4, width), values="lost")))
    sizes: tuple[tuple[Shape, Shape], ...] = (
        ((5, 7), (3, 7)),
        ((1, 1), (1, 1)),
        ((130, 65), (33, 65)),
        ((3, 1030), (2, 1030)),
        ((2, 5, 7), (2, 3, 7)),
        ((2, 5, 8), (2, 6, 3, 8)),
        ((2, 2, 5, 8), (2, 6, 3, 8)),
        ((5, 8), (0, 8)),
        ((0, 8), (3, 8)),
        ((5, 0), (3, 0)),
        ((9, 5, 1), (9, 1, 1)),
    )
    for w, x in sizes:
        yield Case("mul_mat", (Arg(w), Arg(x)))
    for one, two in (("turned", "plain"), ("plain", "window"), ("heads", "heads")):
        yield Case("mul_mat", (Arg((2, 6, 8), layout=one), Arg((2, 3, 8), layout=two)))
    turned = Arg((2, 2, 6, 8), layout="turned"), Arg((2, 4, 3, 8), layout="heads")
    yield Case("mul_mat", turned)
    yield from _experts()


def _experts() -> Iterator[Case]:
    for dtype in ("f32", "f16", "bf16", "q4_0", "q8_0", "q4_k"):
        width = max(32, BY_NAME[dtype].block)
        for n, own in ((0, 1), (1, 1), (3, 1), (3, 2), (33, 2)):
            stack, x = weight((6, 9, width), dtype), Arg((n, own, width))
            yield Case("mul_mat_id", (stack, x, ids((n, 2), 6)))
        joined = weight((6, 9, width), dtype, layout="joined")
        yield Case("mul_mat_id", (joined, Arg((3, 1, width)), ids((3, 2), 6)))
    stack = weight((6, 9, 32))
    yield Case("mul_mat_id", (stack, Arg((3, 2, 32), layout="window"), ids((3, 2), 6)))
    yield Case("mul_mat_id", (stack, Arg((3, 1, 32)), ids((3, 2), 1)), note="one for all")
    yield Case("mul_mat_id", (stack, Arg((4, 1, 32), values="lost"), ids((4, 2), 6)))


def norms() -> Iterator[Case]:
    for op, count in (("rms_norm", 2), ("norm", 3)):
        for s in ((1, 5), (3, 64), (2, 3, 33), (2, 3, 4, 8), (1, 1), (0, 8), (2, 1000)):
            for n in range(1, count + 1):
                others = [weight(s[-1:]) for _ in range(n - 1)]
                yield Case(op, (Arg(s), *others), {"eps": 1e-5})
        for layout in LAYOUTS:
            yield Case(op, (Arg((2, 3, 64), layout=layout), weight((64,))), {"eps": 1e-6})
        for odd in ("large", "small", "lost"):
            yield Case(op, (Arg((5, 64), values=odd),), {"eps": 1e-5}, odd)


def ropes() -> Iterator[Case]:
    how = {"freq_base": 10000.0, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0}
    how |= {"beta_fast": 32.0, "beta_slow": 1.0, "n_ctx_orig": 128}
    yarn = how | {"freq_scale": 0.25, "ext_factor": 1.0, "attn_factor": 1.1}
    kinds = {"plain": how, "linear": how | {"freq_scale": 0.5}, "yarn": yarn}
    positions, far = ids((5,), 4000), ids((5,), 1_000_000)
    factors = weight((8,), values="positive")
    for (note, kind), mode in itertools.product(kinds.items(), ("norm", "neox")):
        for dims, where in ((16, positions), (12, positions), (2, positions), (16, far)):
            settings = {"n_dims": dims, "mode": mode, **kind}
            word = f"{note} far" if where is far else note
            yield Case("rope", (Arg((5, 3, 16)), where), settings, word)
    for mode in ("norm", "neox"):
        settings = {"n_dims": 16, "mode": mode, **how}
        yield Case("rope", (Arg((5, 3, 16)), positions, factors), settings, "factors")
        yield Case("rope", (Arg((0, 3, 16)), ids((0,), 9)), settings)
        yield Case("rope", (Arg((1, 9, 16)), ids((1,), 4000)), settings)
        yield Case("rope", (Arg((5, 3, 16), values="lost"), positions), settings, "lost")
        for layout in LAYOUTS:
            yield Case("rope", (Arg((5, 3, 16), layout=layout), positions), settings)
    for (note, kind), where in itertools.product(kinds.items(), (positions, far, ids((0,), 9))):
        word = f"{note} far" if where is far else note
        yield Case("rope_cos_sin", (where,), {"n_dims": 16, **kind}, word)
    yield Case("rope_cos_sin", (positions, factors), {"n_dims": 16, **how}, "factors")
    window = attrs.evolve(positions, layout="window")
    yield Case("rope_cos_sin", (window,), {"n_dims": 16, **how})


_FAMILIES = (elementwise, moves, rows, products, norms, ropes, attentions, recurrent)
CASES: Sequence[Case] = [case for family in _FAMILIES for case in family()]
