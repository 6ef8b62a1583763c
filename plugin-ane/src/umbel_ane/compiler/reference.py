"""What a graph means, in NumPy: the truth for the passes and for canaries.

Two modes. "fp32" computes everything in float32, whatever the nodes' dtypes say. "fp16" rounds
each value that a node calls fp16, once, after a float32 computation: what the Neural Engine
does by all reports. Every value is kept in C order, so that a result depends on values and
shapes alone, never on how an earlier operation left its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from umbel.errors import GraphError

from umbel_ane.compiler.ir import FP16, INT32, Graph, Node

Mode = Literal["fp32", "fp16"]
Values = tuple[np.ndarray, ...]


def evaluate(
    graph: Graph, inputs: Mapping[str, np.ndarray], dtype: Mode = "fp32"
) -> dict[str, np.ndarray]:
    """The graph's outputs for these inputs, by name; memory is given back as it goes."""
    nodes = graph.nodes()
    uses = Counter(n for node in nodes for n in node.inputs)
    uses.update(graph.outputs.values())
    values: dict[Node, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for node in nodes:
            given = tuple(values[n] for n in node.inputs)
            values[node] = _value(node, given, inputs, dtype)
            for n in node.inputs:
                uses[n] -= 1
                if not uses[n]:
                    del values[n]
    return {name: values[node] for name, node in graph.outputs.items()}


def constant(node: Node, dtype: Mode = "fp16") -> np.ndarray:
    """The values of a constant, in float32 (integers as they are)."""
    if node.weight is None:
        msg = f"{node!r} has no values"
        raise ValueError(msg)
    return _stored(node, np.asarray(node.weight.read()), dtype)


def _value(
    node: Node, given: Values, inputs: Mapping[str, np.ndarray], mode: Mode
) -> np.ndarray:
    if node.op == "const":
        return constant(node, mode)
    if node.op == "input":
        if node.name not in inputs:
            msg = "an input of the graph was given no value"
            raise GraphError(msg, where=node.name, expected=list(node.shape), got=list(inputs))
        return _stored(node, np.asarray(inputs[node.name]), mode)
    return _stored(node, _OPS[node.op](node, given), mode)


def _stored(node: Node, value: np.ndarray, mode: Mode) -> np.ndarray:
    """As a node of that shape and dtype holds it."""
    if value.size != node.size:
        msg = "a value has not the size that its node says"
        raise GraphError(msg, where=repr(node), expected=list(node.shape), got=value.shape)
    if node.dtype == INT32:
        return np.ascontiguousarray(value.reshape(node.shape), np.int32)
    if node.dtype == FP16 and mode == "fp16":
        value = value.astype(np.float16)
    return np.ascontiguousarray(value.reshape(node.shape), np.float32)


def _conv1x1(node: Node, given: Values) -> np.ndarray:
    x, w = given
    (b, c, h, s), out = x.shape, w.shape[0]
    product: np.ndarray = np.matmul(w.reshape(out, c), x.reshape(b, c, h * s))
    return product.reshape(b, out, h, s)


def _matmul(node: Node, given: Values) -> np.ndarray:
    x, y = given
    x = x.swapaxes(2, 3) if node.attrs["transpose_x"] else x
    y = y.swapaxes(2, 3) if node.attrs["transpose_y"] else y
    product: np.ndarray = np.matmul(x, y)
    return product


def _softmax(node: Node, given: Values) -> np.ndarray:
    (x,), axis = given, node.attrs["axis"]
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    result: np.ndarray = e / e.sum(axis=axis, keepdims=True)
    return result


def _reduced(how: Callable[..., Any]) -> Callable[[Node, Values], np.ndarray]:
    def reduce(node: Node, given: Values) -> np.ndarray:
        result: np.ndarray = how(given[0], axis=node.attrs["axis"], keepdims=True)
        return result

    return reduce


def _slice(node: Node, given: Values) -> np.ndarray:
    ranges = zip(node.attrs["begin"], node.attrs["size"], strict=True)
    return given[0][tuple(slice(b, b + n) for b, n in ranges)]


def _split(node: Node, given: Values) -> np.ndarray:
    axis, sizes, index = (node.attrs[k] for k in ("axis", "sizes", "index"))
    begin = sum(sizes[:index])
    where = [slice(None)] * 4
    where[axis] = slice(begin, begin + sizes[index])
    return given[0][tuple(where)]


def _pad(node: Node, given: Values) -> np.ndarray:
    return np.pad(given[0], list(zip(node.attrs["before"], node.attrs["after"], strict=True)))


_OPS: Mapping[str, Callable[[Node, Values], np.ndarray]] = {
    "add": lambda _, v: v[0] + v[1],
    "sub": lambda _, v: v[0] - v[1],
    "mul": lambda _, v: v[0] * v[1],
    "pow": lambda _, v: np.power(v[0], v[1]),
    "relu": lambda _, v: np.maximum(v[0], 0),
    "tanh": lambda _, v: np.tanh(v[0]),
    "sigmoid": lambda _, v: 1 / (1 + np.exp(-v[0])),
    "exp": lambda _, v: np.exp(v[0]),
    "sqrt": lambda _, v: np.sqrt(v[0]),
    "rsqrt": lambda _, v: 1 / np.sqrt(v[0]),
    "neg": lambda _, v: -v[0],
    "identity": lambda _, v: v[0],
    "cast": lambda _, v: v[0],
    "reduce_sum": _reduced(np.sum),
    "reduce_mean": _reduced(np.mean),
    "reduce_max": _reduced(np.max),
    "softmax": _softmax,
    "conv1x1": _conv1x1,
    "matmul": _matmul,
    "reshape": lambda _, v: v[0],
    "transpose": lambda node, v: v[0].transpose(node.attrs["perm"]),
    "slice": _slice,
    "split": _split,
    "pad": _pad,
}
