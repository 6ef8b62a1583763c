"""A case of the conformance suite and what its inputs hold.

A case is data; its arrays are drawn from a generator that is seeded by its name, so that it is
the same in every run.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
from umbel.gguf.types import BY_NAME, DType, dequantise, quantise
from umbel.graph import MASKED, Builder, Graph, Operation, Role, Tensor

from umbel_kit.compare import LARGEST, SMALLEST

Shape = tuple[int, ...]
LAYOUTS = ("turned", "window", "rows", "heads")  # that an activation may have
# Inputs that must not be rounded: factors divide angles of hundreds of turns.
EXACT = {"rope": (2,), "rope_cos_sin": (1,)}
LARGE = 32  # what a random block of a quantised weight may hold at most
_DRAWN = 4096  # random blocks; a larger weight repeats them
_MORE = 3  # rows or columns of what a window lies on, beyond its own
_SIZES = {"f32": 1e15, "f16": 6e3, "bf16": 1e15}  # "large": squares leave a narrow dtype


@attrs.frozen
class Arg:
    """One input: what it holds, and how it lies in memory.

    `dtype` "" is the one that the device computes in. `layout` is "plain", "turned" (the last
    two axes are swapped in memory), "heads" (the two before the last), "window" (a part of what
    is longer along the last axis), "rows" (the same along the axis before the last) or "joined"
    (all axes but the last are one in memory).
    `values` are normal, positive, negative, large, small, edges, alike (all rows are the same),
    ties (few different values), mask, barely (a mask that hides with the least that does),
    distances, hidden, infinite (some are), lowered (some are minus infinity, and all of the
    first row), lost (the first row is NaN), junk (a state: NaN in every row that no index
    names); or of integers "rows below N" (no two are the same), "numbers below N".
    """

    shape: Shape
    dtype: str = ""
    role: Role = Role.INPUT
    layout: str = "plain"
    values: str = "normal"

    def stored_in(self, compute: DType) -> DType:
        return BY_NAME[self.dtype] if self.dtype else compute

    @property
    def leaf_shape(self) -> Shape:
        """Of the memory that the input is a view of."""
        *others, last = self.shape
        match self.layout:
            case "turned" | "heads":
                return tuple(self.shape[a] for a in self._axes)
            case "window":
                return (*others, last + _MORE)
            case "rows":
                return (*others[:-1], others[-1] + _MORE, last)
            case "joined":
                return (math.prod(others), last)
        return self.shape

    @property
    def _axes(self) -> Shape:
        """In which order the axes of one are found in the other."""
        axes = list(range(len(self.shape)))
        one, two = (-2, -1) if self.layout == "turned" else (-3, -2)
        axes[one], axes[two] = axes[two], axes[one]
        return tuple(axes)

    def of(self, build: Builder, name: str, dtype: DType) -> Tensor:
        """The input as a graph has it: a leaf, or a view of one."""
        leaf = build.leaf(self.role, name, self.leaf_shape, dtype)
        match self.layout:
            case "turned" | "heads":
                return build.permute(leaf, axes=self._axes)
            case "window" | "rows":
                axis = len(self.shape) - (1 if self.layout == "window" else 2)
                return build.view(leaf, axis=axis, start=2, stop=2 + self.shape[axis])
            case "joined":
                return build.reshape(leaf, shape=self.shape)
        return leaf


def weight(shape: Shape, dtype: str = "f32", **how: Any) -> Arg:
    return Arg(shape, dtype, Role.WEIGHT, **how)


def state(shape: Shape, dtype: str = "f32", **how: Any) -> Arg:
    return Arg(shape, dtype, Role.STATE, **how)


def ids(shape: Shape, below: int, kind: str = "numbers", **how: Any) -> Arg:
    return Arg(shape, "i32", values=f"{kind} below {below}", **how)


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

    @property
    def stored(self) -> str:
        """The dtype of the weight or cache that is read, the coarsest; "f32" without one."""
        kept = [a for a in self.args if a.role in (Role.WEIGHT, Role.STATE)]
        kinds = [BY_NAME[a.dtype] for a in kept if len(a.shape) > 1]
        return min(kinds, key=lambda d: d.block_bytes / d.block).name if kinds else "f32"


def graph(
    case: Case,
    ops: Mapping[str, Operation],
    dtype_of: Callable[[Arg], DType],
    stored_as: DType | None = None,
) -> Graph:
    """The operation alone, over leaves `in0`, `in1` ..., whose dtypes the caller chooses."""
    build = Builder(ops)
    inputs = [arg.of(build, f"in{i}", dtype_of(arg)) for i, arg in enumerate(case.args)]
    how = {"name": case.op, "stored_as": stored_as, **case.attrs}
    return build.graph([build.apply(ops[case.op], *inputs, **how)])


def laid_out(arg: Arg, array: np.ndarray) -> np.ndarray:
    """What the leaf of an input holds, so that the input itself holds `array`.

    Rows of bytes are those of bf16, two to a value, or of blocks, which only whole rows move.
    """
    pairs = array.dtype == np.uint8 and array.shape[-1] == 2 * arg.shape[-1]
    values = np.ascontiguousarray(array).view(np.uint16) if pairs else array
    match arg.layout:
        case "turned" | "heads":
            values = np.ascontiguousarray(values.transpose(arg._axes))
        case "window" | "rows":
            edges = [(0, 0)] * values.ndim
            edges[-1 if arg.layout == "window" else -2] = (2, _MORE - 2)
            values = np.pad(values, edges, constant_values=7)
        case "joined":
            values = values.reshape(*arg.leaf_shape[:-1], values.shape[-1])
    return values.view(np.uint8) if pairs else values


def arrays(case: Case, compute: DType) -> list[np.ndarray]:
    """The arrays of a case as a file would hold them: typed, or rows of bytes."""
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    made = [draw(a, a.stored_in(compute), rng) for a in case.args]
    if case.op == "kv_attention" and len(made[6]):  # the table ends with the step's own cells
        cells, table = made[5], made[6]
        own = len(cells) // len(table)
        table[np.isin(table, cells)] = np.setdiff1d(np.arange(80, dtype=np.int32), cells)[0]
        table[:, -own:] = cells.reshape(len(table), own)
    named = [array.ravel() for array in made if array.dtype == np.int32]
    for arg, array in zip(case.args, made, strict=True):
        if arg.values == "junk":
            others = np.setdiff1d(np.arange(len(array)), np.concatenate(named))
            array[others] = np.nan if array.dtype.kind == "f" else 0xFF
    return made


def draw(arg: Arg, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    """The values of one input as a file would hold them."""
    if dtype.quantised:
        return random_blocks(arg.shape, dtype, rng)
    kind, _, top = arg.values.partition(" below ")
    if kind == "rows":  # that are written: no two are the same
        return rng.permutation(int(top))[: math.prod(arg.shape)].astype(np.int32)
    if kind == "last":
        return np.arange(int(top) - math.prod(arg.shape), int(top), dtype=np.int32).reshape(
            arg.shape
        )
    if kind == "numbers":
        return rng.integers(0, int(top), arg.shape).astype(np.int32)
    values = np.array(_floats(arg, dtype, rng), np.float32)
    if dtype.numpy is not None:
        return values.astype(dtype.numpy)
    if not values.size:  # which gguf cannot encode
        return np.empty((*arg.shape[:-1], dtype.row_bytes(arg.shape[-1])), np.uint8)
    return quantise(values, dtype)


def _floats(arg: Arg, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    match arg.values:
        case "hidden":
            return np.full(arg.shape, MASKED)
        case "mask":
            return causal(arg.shape)
        case "barely":
            return causal(arg.shape) * 0.51  # half would be rounded to less in bf16
        case "distances":
            return distances(arg.shape)
        case "edges":
            return _edges(arg.shape, dtype)
        case "ties":
            return rng.integers(-2, 3, arg.shape) / 2
    normal = rng.standard_normal(arg.shape, np.float32)
    match arg.values:
        case "positive":
            return np.abs(normal) + np.float32(0.1)
        case "negative":
            return -np.exp(normal)
        case "large":
            return normal * np.float32(_SIZES[dtype.name])
        case "small":
            return normal * np.float32(1e-3)
        case "alike":
            normal[...] = normal[:1]
        case "infinite":
            normal.reshape(-1)[::7], normal.reshape(-1)[3::7] = np.inf, -np.inf
        case "lowered":
            normal.reshape(-1)[::3] = normal.reshape(-1, arg.shape[-1])[0] = -np.inf
        case "lost":
            normal[0] = np.nan
    return normal


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
    top, least = LARGEST[dtype.name], SMALLEST[dtype.name]
    sizes = [0.0, least, 4 * least, 1e-3, 1.0, 12.0, 100.0, top**0.5, top / 4, top]
    values = [sign * size for size in sizes for sign in (1.0, -1.0)]
    return np.resize(np.array(values), shape)


def random_blocks(shape: Shape, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    """Rows of random blocks (..., row bytes) whose values are moderate.

    No encoder is needed: whatever bits a decoder has to read will occur.
    """
    whole = math.prod(shape) // dtype.block
    n = min(whole, _DRAWN)
    blocks = rng.integers(0, 256, (n, dtype.block_bytes), np.uint8)
    while n:
        size = np.abs(dequantise(blocks, dtype)).max(axis=-1)
        bad = ~(size < LARGE) | (size < 1 / LARGE)
        if not bad.any():
            break
        blocks[bad] = rng.integers(0, 256, (int(bad.sum()), dtype.block_bytes), np.uint8)
    rows = (*shape[:-1], dtype.row_bytes(shape[-1]))
    return np.resize(blocks, rows) if whole > n else blocks.reshape(rows)
