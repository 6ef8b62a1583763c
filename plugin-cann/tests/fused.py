"""Run as a program, with a simulated chip: graphs of which parts are fused, planned and run as
a model's, against the reference.

It prints for each how far the results are off (NMSE), and which operators were launched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import umbel_cann
from umbel import plugins
from umbel.gguf.types import BY_NAME, F16, F32, I32, DType
from umbel.graph import MASKED, Builder, Role, Tensor
from umbel.loading import targets
from umbel.ops import OPS
from umbel.plan import Arenas, Placer, States, Weights, make
from umbel_cann.ops import rope
from umbel_kit import compare
from umbel_kit.reference import evaluate

LARGEST, MANY = rope._VALUES, "of many tokens"

Outputs = Callable[["Case"], list[Tensor]]


class Case(Builder):
    """A graph and the arrays of its leaves."""

    def __init__(self, weights: DType = F32) -> None:
        super().__init__(OPS)
        self.rng = np.random.default_rng(0)
        self.weights = weights
        self.arrays: dict[str, np.ndarray] = {}

    def given(self, name: str, *shape: int, values: np.ndarray | None = None) -> Tensor:
        ints = values is not None and values.dtype.kind == "i"
        drawn = self.rng.standard_normal(shape) if values is None else values
        self.arrays[name] = drawn.astype(np.int32 if ints else np.float32)
        return self.leaf(Role.INPUT, name, shape, I32 if ints else F32)

    def weight(self, name: str, *shape: int) -> Tensor:
        """A matrix in the case's dtype, or a row in float32."""
        dtype = self.weights if len(shape) > 1 else F32
        drawn = self.rng.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 1)
        self.arrays[name] = drawn.astype(dtype.numpy)
        return self.leaf(Role.WEIGHT, name, shape, dtype)

    def state(self, name: str, *shape: int) -> Tensor:
        self.arrays[name] = self.rng.standard_normal(shape).astype(np.float16)
        return self.leaf(Role.STATE, name, shape, F16)

    def linear(self, x: Tensor, name: str, n: int) -> Tensor:
        return self.mul_mat(self.weight(name, n, x.shape[-1]), x)


def residual(b: Case) -> list[Tensor]:
    """Sums that are read again, over the memory of what died."""
    x = b.given("x", 3, 64)
    for i in range(3):
        y = b.linear(b.rms_norm(x, b.weight(f"norm{i}", 64), eps=1e-5), f"w{i}", 64)
        x = b.add(x, y)
    last = b.rms_norm(x, b.weight("last", 64), eps=1e-5)
    return [last, x, b.mul(last, x)]


def norm_of_part(b: Case) -> list[Tensor]:
    """Not all of the sum is normed; the next has not two alike; the last is normed in another
    order."""
    x = b.add(b.given("x", 4, 64), b.given("y", 4, 64))
    part = b.rms_norm(b.view(x, axis=0, start=1, stop=3), b.weight("a", 64), eps=1e-5)
    wide = b.add(b.given("z", 4, 64), b.weight("row", 64))
    square = b.add(b.given("u", 3, 3, 64), b.given("v", 3, 3, 64))
    other = b.rms_norm(b.permute(square, axes=(1, 0, 2)), b.weight("c", 64), eps=1e-5)
    return [part, b.rms_norm(wide, b.weight("b", 64), eps=1e-5), other]


def biased(b: Case) -> list[Tensor]:
    """Products whose bias is added; one that is read without it, too."""
    x = b.given("x", 3, 64)
    first, two = (b.add(b.linear(x, f"w{i}", 48), b.weight(f"bias{i}", 48)) for i in range(2))
    last = b.linear(x, "last", 48)
    more = b.add(last, b.weight("more", 48))
    return [b.mul(b.mul(first, two), more), b.neg(last)]


def feed(glu: str, tokens: int, width: int, b: Case) -> list[Tensor]:
    x = b.given("x", tokens, 64)
    gate, up = b.linear(x, "gate", width), b.linear(x, "up", width)
    return [b.linear(b.apply(OPS[glu], gate, up), "down", 64)]


def gate_read_again(b: Case) -> list[Tensor]:
    x = b.given("x", 2, 64)
    gate, up = b.linear(x, "gate", 96), b.linear(x, "up", 96)
    y = b.swiglu(gate, up)
    return [b.linear(b.add(y, gate), "down", 64), b.swiglu(up, gate), b.neg(up)]


def gate_given(b: Case) -> list[Tensor]:
    """Halves that no product makes, or but one of the outputs."""
    x = b.given("x", 2, 64)
    gate = b.linear(x, "gate", 64)
    return [b.swiglu(gate, x), b.swiglu(x, b.neg(x)), gate]


def turned(mode: str, n_dims: int, part: bool, b: Case) -> list[Tensor]:
    """Heads of q and k, of a product or of a part of one, with one table."""
    x, positions = b.given("x", 5, 64), b.given("positions", 5, values=np.arange(3, 8))
    both = b.linear(x, "both", 6 * 32)
    q, k = (b.view(both, axis=1, start=i, stop=i + 96) for i in (0, 96))
    if not part:
        q, k = b.linear(x, "q", 96), b.linear(x, "k", 64)
    heads = (b.cont(t) if part else t for t in (q, k))
    heads = (b.reshape(t, shape=(5, t.shape[1] // 32, 32)) for t in heads)
    turned = [b.rope(t, positions, n_dims=n_dims, mode=mode, freq_base=100.0) for t in heads]
    return [b.scale(t, s=2.0) for t in turned]


def attention(
    sequences: int, tokens: int, heads: int, width: int, name: str, b: Case, **more: float
) -> list[Tensor]:
    """Over a cache, of several sequences; one row is all hidden."""
    n, kv, cells, length = sequences * tokens, 2, 64, 32
    q = b.given("q", sequences, tokens, heads, width)
    k, v = (b.given(t, sequences, tokens, kv, width) for t in "kv")
    caches = (b.state(f"{t}_cache.0", cells, kv * width) for t in "kv")
    rows = b.rng.permutation(cells)[: sequences * length].astype(np.int32)
    table = rows.reshape(sequences, length)
    seen = np.tril(np.ones((tokens, length)), length - tokens)
    mask = np.broadcast_to(np.where(seen, 0, MASKED), (sequences, 1, tokens, length)).copy()
    mask[-1, 0, -1] = MASKED if tokens > 1 else mask[-1, 0, -1]  # a single one sees itself
    own = b.given("cells", n, values=table[:, -tokens:].reshape(-1))
    where = own, b.given("table", *table.shape, values=table)
    hidden = b.given(name, *mask.shape, values=mask)
    made = b.kv_attention(q, k, v, *caches, *where, hidden, scale=width**-0.5, **more)
    return [b.linear(made, "out", 64)]


def within(b: Case) -> list[Tensor]:
    """Without a cache: an encoder's."""
    shape = (2, 6, 4, 16)
    q, k, v = (b.permute(b.given(t, *shape), axes=(0, 2, 1, 3)) for t in "qkv")
    y = b.flash_attn_ext(q, k, v, scale=0.25)
    return [b.linear(b.reshape(y, shape=(12, 64)), "out", 64)]


def cases() -> Iterator[tuple[str, Outputs]]:
    named = (residual, norm_of_part, biased, gate_read_again, gate_given, within)
    yield from ((f.__name__, f) for f in named)
    for glu in ("swiglu", "geglu"):
        for tokens, width in ((1, 96), (3, 96), (3, 97)):
            yield f"{glu} {tokens}x{width}", bound(feed, glu, tokens, width)
    for mode in ("norm", "neox"):
        for n_dims in (32, 16):
            for part in (False, True):
                told = f"rope {mode} {n_dims}{' of a part' * part}"
                yield told, bound(turned, mode, n_dims, part)
    for n_dims in (32, 16):
        yield f"rope neox {n_dims} {MANY}", bound(turned, "neox", n_dims, False)
    for shape in ((1, 1, 4, 16), (2, 1, 4, 32), (2, 3, 2, 64), (1, 5, 4, 24)):
        yield f"attention {shape}", bound(attention, *shape, "mask")
    yield "attention, other mask", bound(attention, 2, 3, 4, 32, "seen")


def bound(function: Any, *arguments: Any) -> Outputs:
    return lambda case: function(*arguments, case)


def off(case: Case, outputs: list[Tensor]) -> tuple[float, list[str]]:
    graph = case.graph(outputs)
    roles = (Role.INPUT, Role.WEIGHT, Role.STATE)
    leaves = {t.name: t for role in roles for t in graph.leaves(role)}
    feeds = {t: case.arrays[name].copy() for name, t in leaves.items()}
    given = {name: feeds[t] for name, t in leaves.items() if t.role is Role.INPUT}
    file = SimpleNamespace(tensors=leaves, array=lambda name: case.arrays[name])
    options = {"cann": {"dtype": sys.argv[1]}}
    placer, states = Placer(targets("cann:0", options, None, False), OPS), States()
    for name, home in placer.homes([graph]).items():
        states.add(leaves[name], home)
        raw = case.arrays[name].view(np.uint8)
        states.write_rows(name, np.arange(len(raw)), raw)
    plan = make(graph, placer, Weights(file), states, Arenas())  # type: ignore[arg-type]
    programs = umbel_cann._open["cann:0"].programs
    expected = evaluate(graph, feeds)
    errors = []
    for _ in range(4):  # anew, again, recorded, replayed
        found = plan.run({k: v.copy() for k, v in given.items()})
        errors += [compare.nmse(e, a) for e, a in zip(expected, found, strict=True)]
    uids = {step.graph.uid for step in plan.steps}
    launches = [x for (uid, _), p in programs.made.items() if uid in uids for x in p.launches]
    plan.forget()
    return max(errors), [getattr(launch, "operator", "copies") for launch in launches]


def main() -> None:
    told = {}
    for dtype in ("f32", "f16"):
        for name, function in cases():
            rope._VALUES = 0 if MANY in name else LARGEST
            case = Case(BY_NAME[dtype])
            error, launches = off(case, function(case))
            told[f"{name}, {dtype}"] = {"off": error, "launches": launches}
    print(json.dumps(told))
    plugins.get().close()


if __name__ == "__main__":
    main()
