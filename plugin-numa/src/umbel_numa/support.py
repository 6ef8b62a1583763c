"""Which nodes the engine can run, and why not the others."""

from umbel.graph import Role, Tensor

from umbel_numa.engine import Engine
from umbel_numa.library import library, operations
from umbel_numa.operations import CHECKS

PRODUCTS = ("mul_mat", "mul_mat_id")


def unsupported(node: Tensor, engine: Engine) -> str | None:
    """None, or the reason."""
    assert node.op is not None
    name = node.op.name
    if name in PRODUCTS or name == "get_rows":
        w = node.inputs[0]
        packed = w.storage.role is Role.WEIGHT and engine.packs(w.dtype)
        if w.dtype.quantised and not packed:
            return f"it has no kernel for {name} with {w.dtype} that is not a packed weight"
        if name == "mul_mat" and not packed:
            name = "mul_mat_dense"
    number = operations().get(name)
    if number is None or not library().un_has_op(engine.table, number):
        return f"it has no kernel for {name}"
    check = CHECKS.get(name)
    return check(node) if check else None
