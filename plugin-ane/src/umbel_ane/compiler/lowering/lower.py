"""A split of the core's graph as one graph of the IR.

Values that a split is given become ports, those it leaves become named outputs; in between a
core tensor is a `Value`, whose views cost nothing or little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
from umbel.gguf.types import F16, F32
from umbel.graph import Role, Tensor

from umbel_ane.compiler.ir import Graph, Node, Weight
from umbel_ane.compiler.lowered import Lowered
from umbel_ane.compiler.lowering import attention, elementwise, norms, products, rows
from umbel_ane.compiler.lowering.context import FIXED, Context, Options, Rule, WeightOf
from umbel_ane.compiler.lowering.layout import Refused, Value, permuted
from umbel_ane.compiler.lowering.moves import reshaped, sliced
from umbel_ane.compiler.ports import Whole
from umbel_ane.profile import Profile

_RULES: Mapping[str, Rule] = {
    **elementwise.OPS,
    **norms.OPS,
    **products.OPS,
    **attention.OPS,
    **rows.OPS,
}
_REASONS = {
    "set_rows": "an ANE cannot scatter",
    "kv_attention": "an ANE cannot scatter",
    "mul_mat_id": "an ANE cannot choose among weights",
    "top_k": "an ANE cannot sort",
    "rope": "its angles are prepared by the host",
    "rope_cos_sin": "float16 loses the angles",
    "ssm_conv": "it has no convolution over tokens",
    "ssm_scan": "it has no scan over tokens",
    "gelu_erf": "it has no error function",
    "geglu_erf": "it has no error function",
    "softplus": "it has no logarithm",
    "cast": "other dtypes are the host's",
}


class Split(Protocol):
    """What is read of a `SplitGraph`."""

    @property
    def nodes(self) -> Sequence[Tensor]: ...

    @property
    def outputs(self) -> Sequence[Tensor]: ...


def lower(
    split: Split, profile: Profile, weight_of: WeightOf, options: Options | None = None
) -> Lowered:
    """The graph of a split; `weight_of` gives the values of a weight when they are needed.

    `Refused` for what `unsupported` refuses too.
    """
    c = Context(profile, options or Options(), weight_of)
    for node in (n for n in split.nodes if not _is_view(n)):
        c.b.name = node.label
        for t in node.inputs:
            _resolve(c, t)
        c.values[node] = _lowered(c, node)
    outputs, ends = _outputs(c, split.outputs)
    graph = Graph(outputs)
    _check(graph, profile)
    read = {node.name for node in graph.inputs()}
    return Lowered(graph, {n: s for n, s in c.sources.items() if n in read}, ends)


def unsupported(node: Tensor, profile: Profile, options: Options | None = None) -> str | None:
    """Why a node cannot be lowered, in the dtypes and shapes that it has; None: it can."""
    if profile.max_inputs:  # a step has dozens, and nobody packs them into one
        return f"the profile takes {profile.max_inputs} inputs a program"
    try:
        lower(_Single((node,), (node,)), profile, _unread, options)
    except Refused as refused:
        return str(refused)
    return None


@attrs.frozen
class _Single:
    nodes: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def _unread(t: Tensor) -> Weight:
    def read() -> np.ndarray:
        msg = f"{t.label} was read before there was a program"
        raise AssertionError(msg)

    return Weight(("unread", t.name, id(t)), read)


def _is_view(t: Tensor) -> bool:
    return t.op is not None and t.op.view


def _resolve(c: Context, t: Tensor) -> None:
    """Makes a value of what a node reads: a view of something, or what is there before."""
    if t in c.values or t.dtype.name == "i32":
        return
    if not _is_view(t):
        _check_leaf(t)
        if t.role is not Role.STATE and t.role not in FIXED:
            c.values[t] = c.leaf(t)
        return
    source = t.inputs[0]
    _resolve(c, source)
    c.values[t] = _viewed(c, t, _value(c, source))


def _value(c: Context, t: Tensor) -> Value:
    """Weights and states become values where a rule wants them as such, and only then."""
    if t not in c.values:
        c.values[t] = c.leaf(t)
    return c.values[t]


def _viewed(c: Context, t: Tensor, x: Value) -> Value:
    assert t.op is not None
    how: Mapping[str, Any] = t.attrs
    if t.op.name == "reshape":
        return reshaped(c.b, x, t.shape)
    if t.op.name == "permute":
        return permuted(x, how["axes"])
    if t.op.name == "view":
        return sliced(c.b, x, how["axis"], how["start"], how["stop"])
    msg = f"it does not know the view {t.op.name}"
    raise Refused(msg)


def _check_leaf(t: Tensor) -> None:
    fixed = t.role in FIXED
    if t.dtype is F16 or (fixed and t.dtype is F32):
        return
    if t.role is Role.STATE:
        msg = f"states are taken as f16, this one is kept as {t.dtype}"
    else:
        msg = f"it computes with f16, not with {t.dtype}"
    raise Refused(msg)


def _lowered(c: Context, node: Tensor) -> Value:
    assert node.op is not None
    name = node.op.name
    if name in _REASONS:
        raise Refused(_REASONS[name])
    if any(t.size == 0 for t in (node, *node.inputs)):
        msg = "there is nothing to compute"
        raise Refused(msg)
    if node.dtype is not F16:
        msg = f"it computes with f16, not with {node.dtype}"
        raise Refused(msg)
    if name == "get_rows":
        return rows.get_rows(c, node)
    rule = _RULES.get(name)
    if rule is None:
        msg = f"it has no way to compute {name}"
        raise Refused(msg)
    if any(t.dtype.name == "i32" for t in node.inputs):
        msg = "integers are the host's"
        raise Refused(msg)
    return rule(c, node, *(_value(c, t) for t in node.inputs))


def _outputs(c: Context, outputs: Iterable[Tensor]) -> tuple[dict[str, Node], dict[str, Whole]]:
    made: dict[str, Node] = {}
    ends: dict[str, Whole] = {}
    for i, t in enumerate(outputs):
        c.b.name = t.label
        node, axes = c.finished(c.values[t])
        if node.op in ("input", "const") or node in made.values():
            # a result of its own: two ports cannot share a value
            node = Node("identity", (node,), node.shape, node.dtype, name=t.label)
        name = f"{t.label}.{i}"
        made[name], ends[name] = node, Whole(t, axes)
    return made, ends


def _check(graph: Graph, profile: Profile) -> None:
    """No axis may be longer than the profile takes."""
    for node in graph.nodes():
        longest = max(node.shape)
        if longest > profile.max_dim:
            msg = f"an axis of {longest}, the profile takes at most {profile.max_dim}"
            raise Refused(msg)
