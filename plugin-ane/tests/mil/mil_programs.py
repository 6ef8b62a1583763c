"""Random programs, for tests that write and read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from umbel_ane.mil.literals import KINDS
from umbel_ane.mil.program import (
    Blob,
    Function,
    Literal,
    Nested,
    Program,
    Ref,
    Statement,
    Type,
    Value,
)

FLOATS = ("fp16", "fp32")
INTEGERS = ("int8", "uint8", "int16", "int32", "uint64", "int4", "uint3")
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


@st.composite
def literals(draw: st.DrawFn) -> Literal:
    dtype = draw(st.sampled_from((*FLOATS, *INTEGERS, "bool", "string", "blob")))
    if dtype == "blob":
        kind = Type(draw(st.sampled_from(("fp16", "uint4", "bf16"))), (2, 3))
        return Literal(kind, Blob("@model_path/" + draw(TEXT), draw(st.integers(0, 2**64 - 1))))
    one = scalars(dtype)
    if draw(st.booleans()):
        return Literal(Type(dtype), draw(one))
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    return Literal(
        Type(dtype, shape), draw(arrays.arrays(KINDS[dtype].numpy, shape, elements=one))
    )


def scalars(dtype: str) -> st.SearchStrategy[Any]:
    if dtype in FLOATS:
        return st.floats(width=KINDS[dtype].bits)  # type: ignore[arg-type]
    if dtype == "string":
        return TEXT
    kind = KINDS[dtype]
    return st.booleans() if dtype == "bool" else st.integers(kind.low, kind.high)


TYPES = st.builds(
    Type,
    st.sampled_from((*FLOATS, "int32", "bool")),
    st.none() | st.lists(st.none() | st.integers(1, 9), min_size=1, max_size=4).map(tuple),
)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name not in KINDS
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    names = draw(st.lists(NAMES, min_size=4, max_size=12, unique=True))
    known, fresh = names[:2], iter(names[2:])
    inputs = tuple(Value(name, draw(TYPES)) for name in known)
    statements = []
    for name in fresh:
        if draw(st.booleans()):
            value = draw(literals())
            statements.append(
                Statement("const", (Value(name, value.type),), {}, {"val": value})
            )
        else:
            part = st.sampled_from(known).map(Ref) | literals()
            args = draw(st.dictionaries(NAMES, part | st.lists(part).map(tuple), max_size=3))
            more = next(fresh, None)
            results = tuple(Value(n, draw(TYPES)) for n in (name, more) if n is not None)
            label = Literal(Type("string"), draw(TEXT))
            statements.append(Statement(draw(NAMES), results, args, {"name": label}))
        known += [r.name for r in statements[-1].results]
    outputs = draw(st.lists(st.sampled_from(known[2:]), min_size=1, max_size=3, unique=True))
    attributes = {"Shapes": Nested("dict<string, tensor<int32, [?]>>", draw(DATA))}
    function = Function("main", "ios18", inputs, tuple(statements), tuple(outputs), attributes)
    version = draw(st.sampled_from(("1.0", "1.3")))
    return Program(version, (function,), draw(st.dictionaries(TEXT, TEXT, max_size=2)))


DATA = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)


def same(a: object, b: object) -> bool:
    """Whether two values of `Literal.data` or `Nested.data` are equal bit for bit."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and same(a.tolist(), b.tolist())
    if isinstance(a, float) and isinstance(b, float):
        return a.hex() == b.hex()
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b
