"""Products with weights, and gathers of their rows."""

from collections.abc import Callable, Sequence

from umbel.graph import Tensor

ATTRIBUTES: dict[str, Callable[[Tensor], tuple[Sequence[int], Sequence[float]]]] = {}


def _packed_rows(node: Tensor) -> str | None:
    """A packed weight may be some of its rows, or in other stacks of them, but not turned."""
    w = node.inputs[0]
    whole = w.storage.shape[-1]
    if w.shape[-1] != whole or w.strides[-2] != w.dtype.row_bytes(whole):
        return "it multiplies whole rows of a packed weight only"
    return None


CHECKS: dict[str, Callable[[Tensor], str | None]] = {"mul_mat": _packed_rows}
