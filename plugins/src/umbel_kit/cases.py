"""The cases of the conformance suite: every operation with the inputs that it meets in models,
and with those that break kernels (odd sizes, nothing at all, strides, broadcasts, edges of a
dtype).

A case is data; its arrays are drawn from a generator that is seeded by its name, so that it is
the same in every run. Cases for operations of other distributions are lists of the same kind,
`CASES` in a module that `--umbel-cases` names.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from umbel.gguf.types import BY_NAME, DECODABLE, DType, dequantise, quantise
from umbel.graph import MASKED, Builder, Graph, Operation, Role, Tensor

Shape = tuple[int, ...]
WEIGHTS = ("f32", "f16", "bf16", *sorted(n for n in DECODABLE if BY_NAME[n].quantised))
# Inputs that must not be rounded: factors divide angles of hundreds of turns.
EXACT = {"rope": (2,), "rope_cos_sin": (1,)}
LARGE = 32  # what a random block of a quantised weight may hold at most


@attrs.frozen
class Arg:
    """One input: what it holds, and how it lies in memory.

    `dtype` "" is the one that the device computes in. `layout` is "plain", "turned" (the last
    two axes are swapped in memory) or "window" (a part of what is longer along the last axis).
    `values` are normal, positive, negative, edges, mask, distances or hidden; or "rows below N"
    (no two are the same), "numbers below N".
    """

    shape: Shape
    dtype: str = ""
    role: Role = Role.INPUT
    layout: str = "plain"
    values: str = "normal"

    def stored_in(self, compute: DType) -> DType:
        return BY_NAME[self.dtype] if self.dtype else compute


@attrs.frozen
class Case:
    """One call of an operation."""

    op: str
    args: tuple[Arg, ...]
    attrs: Mapping[str, Any] = attrs.field(factory=dict)
    note: str = ""

    def __str__(self) -> str:
        args = (
            f"{'x'.join(map(str, a.shape))}{a.dtype and f':{a.dtype}'}"
            f"{'' if a.layout == 'plain' else f':{a.layout}'}"
            for a in self.args
        )
        words = [self.op, ",".join(args), self.note]
        words += [f"{k}={v}" for k, v in self.attrs.items()]
        return " ".join(filter(None, words))

    @property
    def edges(self) -> bool:
        return any(a.values == "edges" for a in self.args)


def graph(
    case: Case,
    ops: Mapping[str, Operation],
    dtype_of: Callable[[Arg], DType],
    stored_as: DType | None = None,
) -> Graph:
    """The operation alone, over leaves `in0`, `in1` ..., whose dtypes the caller chooses."""
    build = Builder(ops)
    inputs = [_input(build, f"in{i}", arg, dtype_of(arg)) for i, arg in enumerate(case.args)]
    how = {"name": case.op, "stored_as": stored_as, **case.attrs}
    return build.graph([build.apply(ops[case.op], *inputs, **how)])


def _input(build: Builder, name: str, arg: Arg, dtype: DType) -> Tensor:
    last = len(arg.shape) - 1
    if arg.layout == "turned":
        axes = (*range(last - 1), last, last - 1)
        shape = tuple(arg.shape[a] for a in axes)
        return build.permute(build.leaf(arg.role, name, shape, dtype), axes=axes)
    if arg.layout == "window":
        leaf = build.leaf(arg.role, name, (*arg.shape[:-1], arg.shape[-1] + 3), dtype)
        return build.view(leaf, axis=last, start=2, stop=2 + arg.shape[-1])
    return build.leaf(arg.role, name, arg.shape, dtype)


def laid_out(arg: Arg, array: np.ndarray) -> np.ndarray:
    """What the leaf of an input holds, so that the input itself holds `array`."""
    if arg.layout == "turned":
        return np.ascontiguousarray(array.swapaxes(-1, -2))
    if arg.layout == "window":
        edges = [*[(0, 0)] * (array.ndim - 1), (2, 1)]
        return np.pad(array, edges, constant_values=7)
    return array


def arrays(case: Case, compute: DType) -> list[np.ndarray]:
    """The arrays of a case as a file would hold them: typed, or rows of bytes."""
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    made = [draw(a, a.stored_in(compute), rng) for a in case.args]
    if case.op == "kv_attention":  # the last entries of a table are the step's own cells
        cells, table = made[5], made[6]
        own = len(cells) // len(table)
        table[np.isin(table, cells)] = np.setdiff1d(np.arange(80, dtype=np.int32), cells)[0]
        table[:, -own:] = cells.reshape(len(table), own)
    return made


def draw(arg: Arg, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    if dtype.quantised:
        return random_blocks(arg.shape, dtype, rng)
    kind, _, top = arg.values.partition(" below ")
    if kind == "rows":  # that are written: no two are the same
        return rng.permutation(int(top))[: int(np.prod(arg.shape))].astype(np.int32)
    if kind == "numbers":
        return rng.integers(0, int(top), arg.shape).astype(np.int32)
    values = _floats(arg, dtype, rng).astype(np.float32)
    return values.astype(dtype.numpy) if dtype.numpy is not None else quantise(values, dtype)


def _floats(arg: Arg, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    match arg.values:
        case "positive":
            return np.abs(rng.standard_normal(arg.shape)) + 0.1
        case "negative":
            return -np.exp(rng.standard_normal(arg.shape))
        case "hidden":
            return np.full(arg.shape, MASKED)
        case "mask":
            return causal(arg.shape)
        case "distances":
            return distances(arg.shape)
        case "edges":
            return _edges(arg.shape, dtype)
    return rng.standard_normal(arg.shape)


def causal(shape: Shape) -> np.ndarray:
    """A mask (..., T, L): the last T columns are the step's own, nobody looks ahead."""
    tokens, cells = shape[-2:]
    seen = np.tril(np.ones((tokens, cells), bool), cells - tokens)
    return np.broadcast_to(np.where(seen, 0.0, MASKED), shape)


def distances(shape: Shape) -> np.ndarray:
    """A mask for ALiBi: minus the distance where a token may look."""
    tokens, cells = shape[-2:]
    behind = np.arange(tokens)[:, None] + cells - tokens - np.arange(cells)
    return np.where(causal(shape) == 0, -behind.astype(np.float64), MASKED)


def _edges(shape: Shape, dtype: DType) -> np.ndarray:
    from umbel_kit.compare import LARGEST, SMALLEST

    top, least = LARGEST[dtype.name], SMALLEST[dtype.name]
    sizes = [0.0, least, 4 * least, 1e-3, 1.0, 12.0, 100.0, top**0.5, top / 4, top]
    values = [sign * size for size in sizes for sign in (1.0, -1.0)]
    return np.resize(np.array(values), shape)


def random_blocks(shape: Shape, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    """Rows of random blocks (..., row bytes) whose values are moderate.

    No encoder is needed: whatever bits a decoder has to read will occur.
    """
    n = int(np.prod(shape)) // dtype.block
    blocks = rng.integers(0, 256, (n, dtype.block_bytes), np.uint8)
    while n:
        size = np.abs(dequantise(blocks, dtype)).max(axis=-1)
        bad = ~(size < LARGE) | (size < 1 / LARGE)
        if not bad.any():
            break
        blocks[bad] = rng.integers(0, 256, (int(bad.sum()), dtype.block_bytes), np.uint8)
    return blocks.reshape(*shape[:-1], dtype.row_bytes(shape[-1]))


# the lists, by family

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
    edged = (*_UNARY, "sqrt")
    for op in edged:
        values = "positive" if op == "sqrt" else "normal"
        yield from (Case(op, (Arg(s, values=values),)) for s in SHAPES)
        for layout in ("turned", "window"):
            yield Case(op, (Arg((3, 4, 6), layout=layout, values=values),))
    for op in _UNARY:
        yield Case(op, (Arg((5, 8), values="edges"),), note="edges")
    for op in _BINARY:
        second = "positive" if op == "div" else "normal"
        pairs: list[tuple[Shape, Shape]] = [(s, s) for s in SHAPES]
        pairs += [((2, 3, 4, 5), b) for b in ((5,), (4, 1), (3, 1, 5), (1,), (1, 1, 1, 1))]
        yield from (Case(op, (Arg(a), Arg(b, values=second))) for a, b in pairs)
        for one, two in (("turned", "plain"), ("plain", "window"), ("window", "turned")):
            args = Arg((3, 4, 6), layout=one), Arg((3, 4, 6), layout=two, values=second)
            yield Case(op, args)
    for op in _GLU:
        yield from (Case(op, (Arg(s), Arg(s))) for s in SHAPES)
        yield Case(op, (Arg((3, 64), layout="window"), Arg((3, 64), layout="window")))
    for s in SHAPES:
        yield Case("scale", (Arg(s),), {"s": 0.5, "b": -1.5})
        yield Case("clamp", (Arg(s),), {"min": -0.5, "max": 0.25})
    yield Case("scale", (Arg((3, 4, 6), layout="turned"),), {"s": 3.0})
    for dtype in ("f32", "f16", "bf16", "i32"):
        for source in ("f32", "f16", "bf16"):
            yield Case("cast", (Arg((3, 33), source),), {"dtype": dtype})


def moves() -> Iterator[Case]:
    for axis in range(3):
        one, two = [2, 3, 4], [2, 3, 4]
        two[axis] += 1
        args = (Arg(tuple(one)), Arg(tuple(two)))
        yield Case("concat", args, {"axis": axis})
        yield Case("concat", (attrs.evolve(args[0], layout="window"), args[1]), {"axis": axis})
    yield Case("concat", (Arg((2, 0)), Arg((2, 5))), {"axis": 1})
    for s in ((4, 8), (1, 1), (2, 3, 65), (3, 0)):
        yield Case("sum_rows", (Arg(s),))
    for s, k in (((1, 9), 1), ((5, 60), 4), ((2, 128), 8)):
        yield Case("top_k", (Arg(s),), {"k": k})


def rows() -> Iterator[Case]:
    for dtype in WEIGHTS:
        width = max(64, BY_NAME[dtype].block)
        weight = Arg((19, width), dtype, Role.WEIGHT)
        yield Case("get_rows", (weight, Arg((5,), "i32", values="numbers below 19")))
    table = Arg((19, 24))
    for shape in ((1,), (7,), (2, 3), (0,)):
        yield Case("get_rows", (table, Arg(shape, "i32", values="numbers below 19")))
    yield Case("get_rows", (Arg((4, 9, 5)), Arg((4, 3), "i32", values="numbers below 9")))
    for dtype, n in itertools.product(("f32", "f16", "q8_0"), (1, 5)):
        cache = Arg((23, 64), dtype, Role.STATE)
        ids = Arg((n,), "i32", values="rows below 23")
        yield Case("set_rows", (cache, Arg((n, 64)), ids))
        yield Case("get_rows", (cache, ids))


def products() -> Iterator[Case]:
    for dtype in WEIGHTS:
        width = max(96, 2 * BY_NAME[dtype].block)
        for n in (1, 2, 17):
            weight = Arg((37, width), dtype, Role.WEIGHT)
            yield Case("mul_mat", (weight, Arg((n, width))))
    sizes: tuple[tuple[Shape, Shape], ...] = (
        ((5, 7), (3, 7)),
        ((1, 1), (1, 1)),
        ((130, 65), (33, 65)),
        ((2, 5, 7), (2, 3, 7)),
        ((2, 5, 8), (2, 6, 3, 8)),
        ((2, 2, 5, 8), (2, 6, 3, 8)),
        ((5, 8), (0, 8)),
        ((5, 0), (3, 0)),
        ((9, 5, 1), (9, 1, 1)),
    )
    for w, x in sizes:
        yield Case("mul_mat", (Arg(w), Arg(x)))
    yield Case("mul_mat", (Arg((2, 6, 8), layout="turned"), Arg((2, 3, 8))))
    yield Case("mul_mat", (Arg((6, 8)), Arg((5, 8), layout="window")))
    for dtype in ("f32", "f16", "q4_0", "q8_0", "q4_k"):
        width = max(32, BY_NAME[dtype].block)
        for n, own in ((1, 1), (3, 1), (3, 2)):
            weight = Arg((6, 9, width), dtype, Role.WEIGHT)
            ids = Arg((n, 2), "i32", values="numbers below 6")
            yield Case("mul_mat_id", (weight, Arg((n, own, width)), ids))


def norms() -> Iterator[Case]:
    for op, count in (("rms_norm", 2), ("norm", 3)):
        for s in ((1, 5), (3, 64), (2, 3, 33), (0, 8)):
            for n in range(1, count + 1):
                others = [Arg(s[-1:], "f32", Role.WEIGHT) for _ in range(n - 1)]
                yield Case(op, (Arg(s), *others), {"eps": 1e-5})
        yield Case(op, (Arg((3, 64), layout="window"),), {"eps": 1e-6})


def ropes() -> Iterator[Case]:
    how = {"freq_base": 10000.0, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0}
    how |= {"beta_fast": 32.0, "beta_slow": 1.0, "n_ctx_orig": 128}
    yarn = how | {"freq_scale": 0.25, "ext_factor": 1.0, "attn_factor": 1.1}
    kinds = {"plain": how, "linear": how | {"freq_scale": 0.5}, "yarn": yarn}
    positions = Arg((5,), "i32", values="numbers below 4000")
    factors = Arg((8,), "f32", Role.WEIGHT, values="positive")
    for (note, kind), mode, dims in itertools.product(
        kinds.items(), ("norm", "neox"), (16, 12)
    ):
        settings = {"n_dims": dims, "mode": mode, **kind}
        yield Case("rope", (Arg((5, 3, 16)), positions), settings, note)
    settings = {"n_dims": 16, "mode": "neox", **how}
    yield Case("rope", (Arg((5, 3, 16)), positions, factors), settings, "factors")
    yield Case("rope", (Arg((5, 3, 16), layout="window"), positions), settings)
    yield Case("rope_cos_sin", (positions,), {"n_dims": 16, **how})


def attentions() -> Iterator[Case]:
    for shape in ((5,), (3, 33), (2, 4, 3, 7), (0, 5)):
        yield Case("soft_max", (Arg(shape),))
    masked = Arg((2, 4, 3, 7)), Arg((2, 1, 3, 7), values="mask")
    yield Case("soft_max", masked)
    slopes = Arg((2, 12, 3, 7)), Arg((2, 1, 3, 7), values="distances")
    yield Case("soft_max", slopes, {"max_bias": 8.0})
    hidden = Arg((2, 1, 3, 7), values="hidden")
    yield Case("soft_max", (masked[0], hidden), note="all hidden")
    # S, H, Hkv, T, L
    shapes = ((1, 4, 4, 1, 9), (2, 8, 2, 3, 7), (2, 6, 1, 4, 4), (1, 4, 2, 33, 65))
    kinds: tuple[dict[str, float], ...] = ({}, {"logit_softcap": 5.0}, {"max_bias": 8.0})
    for (s, h, kv, t, cells), kind in itertools.product(shapes, kinds):
        mask = Arg((s, 1, t, cells), values="distances" if "max_bias" in kind else "mask")
        q, k, v = Arg((s, h, t, 16)), Arg((s, kv, cells, 16)), Arg((s, kv, cells, 8))
        sinks = Arg((h,), "f32", Role.WEIGHT)
        for others in ((mask,), (mask, sinks)):
            yield Case("flash_attn_ext", (q, k, v, *others), {"scale": 0.25, **kind})
        q, k, v = Arg((s, t, h, 16)), Arg((s, t, kv, 16)), Arg((s, t, kv, 32))
        for dtype in ("f32", "f16", "q8_0"):
            caches = (
                Arg((80, kv * 16), dtype, Role.STATE),
                Arg((80, kv * 32), dtype, Role.STATE),
            )
            if any(c.shape[1] % BY_NAME[dtype].block for c in caches):
                continue
            places = (
                Arg((s * t,), "i32", values="rows below 80"),
                Arg((s, cells), "i32", values="numbers below 80"),
            )
            yield Case(
                "kv_attention", (q, k, v, *caches, *places, mask), {"scale": 0.25, **kind}
            )


def recurrent() -> Iterator[Case]:
    for s, channels, width, t in ((1, 5, 4, 1), (2, 5, 4, 6), (2, 33, 1, 3), (3, 4, 3, 2)):
        kernel = Arg((channels, width), "f32", Role.WEIGHT)
        yield Case("ssm_conv", (Arg((s, channels, width - 1 + t)), kernel))
    # H, P, N, G, decays
    for (h, p, n, g, decays), t in itertools.product(
        ((6, 1, 4, 1, 4), (4, 3, 5, 2, 1), (4, 3, 5, 1, 1)), (1, 5)
    ):
        state = Arg((5, h, p, n), "f32", Role.STATE)
        b, c = Arg((2, t, g, n)), Arg((2, t, g, n))
        a = Arg((h, decays), "f32", Role.WEIGHT, values="negative")
        ids = Arg((2,), "i32", values="numbers below 5")
        yield Case("ssm_scan", (state, Arg((2, t, h, p)), Arg((2, t, h)), a, b, c, ids))


_FAMILIES = (elementwise, moves, rows, products, norms, ropes, attentions, recurrent)
CASES: Sequence[Case] = [case for family in _FAMILIES for case in family()]
