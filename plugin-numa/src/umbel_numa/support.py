"""Which nodes the engine can run, and why not the others."""

from umbel.graph import Role, Tensor

from umbel_numa.engine import Engine
from umbel_numa.library import operations
from umbel_numa.operations import CHECKS
from umbel_numa.operations.products import PRODUCTS, READABLE


def unsupported(node: Tensor, engine: Engine) -> str | None:
    """None, or the reason."""
    assert node.op is not None
    name = node.op.name
    if name in PRODUCTS or name == "get_rows":
        w = node.inputs[0]
        packed = w.storage.role is Role.WEIGHT and engine.packs(w.dtype)
        if not packed and w.dtype not in READABLE:
            what = "" if w.storage.role is Role.WEIGHT else " that is not a weight"
            return f"it has no kernel for {name} with {w.dtype}{what}"
        if packed and not _whole_rows(w):
            return f"it has no kernel for {name} with a part of the columns of a weight"
        if name == "mul_mat" and not packed:
            name = "mul_mat_dense"
    if name not in operations():
        return f"it has no kernel for {name}"
    check = CHECKS.get(name)
    return check(node) if check else None


def _whole_rows(w: Tensor) -> bool:
    """Whether a view of a weight holds rows as they are packed."""
    row = w.dtype.row_bytes(w.storage.shape[-1])
    return w.shape[-1:] == w.storage.shape[-1:] and w.strides[-2:] == (row, w.dtype.block_bytes)
