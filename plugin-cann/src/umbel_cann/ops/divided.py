"""Values that would leave float16's range, kept divided by a power of two.

The outputs of a selective scan are sums over all that came before: in a mamba of random weights
they, and all that is added to the residual stream after them, reach a million. On a chip that
keeps values as float16 they therefore lie in memory divided by 64, from the scan to the next
norm, which does not mind. That costs nothing: operations that are linear in an operand give a
divided result from a divided one, an Add scales its second operand anyway. What others read,
beyond the split, is never divided.
"""

from __future__ import annotations

from umbel.graph import Tensor

from umbel_cann.lowering import Lowering

POWER = 6  # of two. Embeddings of 0.004 still are normal numbers, 4 million is in range
SCALE_FREE = frozenset({"norm", "rms_norm"})  # they only divide their eps


def carried(to: Lowering, node: Tensor) -> int:
    """The power by which a result is divided because its operands are; 0: they are to be
    multiplied first."""
    assert node.op is not None
    powers = [to.divided(t) for t in node.inputs]
    if not any(powers) or node.storage not in to.last:
        return 0
    match node.op.name:
        case "add":
            return max(powers)
        case "mul" | "mul_mat":
            return sum(powers)
        case "cont" | "get_rows":
            return powers[0]
        case "swiglu" if not powers[0]:
            return powers[1]
    return 0
