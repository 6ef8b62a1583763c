"""Elementwise operations, norms, moves, sums, state spaces."""

from collections.abc import Callable, Sequence

from umbel.graph import Role, Tensor

Attributes = tuple[Sequence[int], Sequence[float]]

_MOVED = frozenset({"f32", "f16", "bf16", "i32"})
_STATES = frozenset({"f32", "f16", "bf16"})


def _scale(node: Tensor) -> Attributes:
    return (), (node.attrs["s"], node.attrs.get("b") or -0.0)  # which -0 is added to as well


def _clamp(node: Tensor) -> Attributes:
    return (), (node.attrs["min"], node.attrs["max"])


def _concat(node: Tensor) -> Attributes:
    return (node.attrs["axis"] + 4 - len(node.shape),), ()


def _eps(node: Tensor) -> Attributes:
    return (), (node.attrs["eps"],)


def _is_float(t: Tensor) -> bool:
    """Whether it is float32 in memory, as every weight is that is no matrix of a product."""
    return t.dtype.name == "f32" or t.storage.role is Role.WEIGHT


def _floats(node: Tensor) -> str | None:
    return _all_floats(node.inputs)


def _all_floats(inputs: Sequence[Tensor]) -> str | None:
    found = (t.dtype for t in inputs if not _is_float(t))
    return next((f"it computes in f32, not {dtype}" for dtype in found), None)


def _moves(node: Tensor) -> str | None:
    found = (t.dtype for t in (*node.inputs, node) if t.dtype.name not in _MOVED)
    return next((f"it moves f32, f16, bf16 and i32, not {dtype}" for dtype in found), None)


def _scan(node: Tensor) -> str | None:
    state, *others, _ = node.inputs
    if state.dtype.name not in _STATES:
        return f"it keeps states as f32, f16 or bf16, not {state.dtype}"
    return _all_floats(others)


_ARITHMETIC = "add sub mul div sqr sqrt exp neg tanh relu sigmoid softplus silu gelu gelu_erf"
_ARITHMETIC += " gelu_quick reglu swiglu geglu geglu_erf geglu_quick scale clamp rms_norm norm"
_ARITHMETIC += " top_k sum_rows ssm_conv"

ATTRIBUTES: dict[str, Callable[[Tensor], Attributes]] = {
    "scale": _scale,
    "clamp": _clamp,
    "concat": _concat,
    "rms_norm": _eps,
    "norm": _eps,
}
CHECKS: dict[str, Callable[[Tensor], str | None]] = {
    **dict.fromkeys(_ARITHMETIC.split(), _floats),
    **dict.fromkeys(("cast", "cont", "concat"), _moves),
    "ssm_scan": _scan,
}
