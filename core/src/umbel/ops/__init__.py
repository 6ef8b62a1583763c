"""The operations: shape rule, NumPy reference, and the same from simpler operations.

One file per family. `OPS` is what a `Builder` is made with; names follow ggml.
"""

from collections.abc import Mapping

from umbel.graph import Operation
from umbel.ops import attention, elementwise, norm, rope, rows, shape, ssm

_FAMILIES = (elementwise, shape, rows, norm, rope, attention, ssm)

OPS: Mapping[str, Operation] = {op.name: op for family in _FAMILIES for op in family.OPS}
