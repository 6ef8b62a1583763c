"""The operations: shape rule, NumPy reference, and the same from simpler operations.

One file per family. `OPS` is what a `Builder` is made with; names follow ggml.
"""

from __future__ import annotations

from collections.abc import Mapping

from umbel.graph import Operation
from umbel.ops import attention, elementwise, norm, rope, rows, shape, ssm
from umbel.ops.interpret import evaluate

_FAMILIES = (elementwise, shape, rows, norm, rope, attention, ssm)

OPS: Mapping[str, Operation] = {op.name: op for family in _FAMILIES for op in family.OPS}

__all__ = ["OPS", "evaluate"]
