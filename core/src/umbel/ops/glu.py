"""Gated linear units: activation(gate) * up (Shazeer 2020, arXiv 2002.05202)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from umbel.gguf.types import DType
from umbel.graph import Builder, Operation, Spec, Tensor
from umbel.ops import elementwise
from umbel.ops.rules import Array, need, need_float


def _infer(name: str, gate: Tensor, up: Tensor) -> Spec:
    need_float(name, gate)
    need_float(name, up)
    need(gate.shape == up.shape, name, "gate and up of one shape", gate, up)
    return Spec(gate.shape, gate.dtype)


def _glu(name: str, activation: str, function: Callable[[Array], Array]) -> Operation:
    def reference(gate: Array, up: Array) -> Array:
        return function(gate) * up

    def parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
        gate, up = node.inputs
        return build.mul(getattr(build, activation)(gate), up)

    return Operation(name, partial(_infer, name), reference, parts, in_place=True)


OPS = (
    _glu("swiglu", "silu", elementwise.silu),
    _glu("geglu", "gelu", elementwise.gelu),
    _glu("geglu_erf", "gelu_erf", elementwise.gelu_erf),
    _glu("geglu_quick", "gelu_quick", elementwise.gelu_quick),
    _glu("reglu", "relu", elementwise.relu),
)
