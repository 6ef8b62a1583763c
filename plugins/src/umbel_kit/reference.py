"""The plain interpreter: every node by its reference, one after the other.

What a device is compared with, and what the tests of operations and models run.
"""

from collections.abc import Callable, Mapping

import numpy as np
from umbel.errors import GraphError
from umbel.gguf.types import F32, DType, dequantise
from umbel.graph import Graph, Operation, Role, Tensor
from umbel.ops.elementwise import cast
from umbel.ops.rules import Array, is_a

# What a product reads of the activations, when its weight is of that dtype.
Activations = Callable[[Array, DType], Array]
PRODUCTS = ("mul_mat", "mul_mat_id")


def evaluate(
    graph: Graph,
    feeds: Mapping[Tensor, Array],
    *,
    dtype: DType = F32,
    activations: Activations = lambda x, _: x,
) -> list[Array]:
    """The values of the graph's outputs; state among `feeds` is changed in place.

    Quantised tensors are fed as their bytes, as `GGUFFile.array` gives them. With another
    `dtype` every value on the way is rounded to it, which is the best that a device computing
    in that dtype can do. `activations` likewise is what products round.
    """
    values: dict[Tensor, Array] = {}
    needed = (t for node in graph.nodes for t in (*node.inputs, node))
    with np.errstate(all="ignore"):
        for t in dict.fromkeys([*needed, *graph.outputs]):
            value = feeds[t] if t in feeds else _computed(t, values, activations)
            values[t] = _rounded(t, value, dtype)
    return [values[t] for t in graph.outputs]


def _computed(t: Tensor, values: Mapping[Tensor, Array], activations: Activations) -> Array:
    if t.op is not None:
        arguments = [_argument(t.op, i, x, values[x]) for i, x in enumerate(t.inputs)]
        if t.op.name in PRODUCTS:
            arguments[1] = activations(arguments[1], t.inputs[0].dtype)
        return t.op.reference(*arguments, **t.attrs)
    if t.data is None:
        msg = f"{t.role.value} {t.label!r} is not fed"
        raise GraphError(msg, got=t)
    return t.data


def _argument(op: Operation, i: int, t: Tensor, values: Array) -> Array:
    """As it is stored where that is changed or cut; else float32, or integers as they are."""
    sliceable = t.dtype.numpy is not None or t.storage.role is Role.STATE
    if i in op.mutates or (op.view and sliceable) or not is_a(t, ""):
        return values
    if values.dtype.kind == "f":
        return values.astype(np.float32, copy=False)
    return dequantise(values, t.dtype)


def _rounded(t: Tensor, values: Array, dtype: DType) -> Array:
    """As the memory of `t` would hold the values in a run of that dtype; state is state."""
    if values.dtype.kind == "f" and not t.dtype.quantised and t.storage.role is not Role.STATE:
        for other in {t.dtype, dtype} - {F32}:
            values = cast(values, dtype=other.name)
    return values
