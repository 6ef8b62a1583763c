"""Products with weights, and gathers of their rows."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from umbel.gguf.types import BF16, BY_NAME, F16, F32, Q8_0, DType
from umbel.graph import Role, Tensor

from umbel_numa.library import library

PRODUCTS = ("mul_mat", "mul_mat_id")
# Weights of these are read block by block; the first name the tables that raw.c wants.
_GRIDS = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m")
_RAW = {BY_NAME[name] for name in (*_GRIDS, "nvfp4", "tq1_0", "tq2_0")}
READABLE = _RAW | {F32, F16, BF16, Q8_0}


def first_row(w: Tensor) -> int:
    """Which row of its storage a matrix begins with."""
    return w.offset // max(w.dtype.row_bytes(w.storage.shape[-1]), 1)


@cache
def hand_over_table(dtype: DType) -> np.ndarray | None:
    """Gives the library the table that rows of this type are decoded with, once; it stays."""
    name = dtype.name.upper()
    if dtype not in _RAW or name.startswith("TQ"):
        return None
    from gguf import quants  # costs a quarter of a second

    known: Any = getattr(quants, name)
    if dtype.name in _GRIDS:
        known.init_grid()
        values = known.grid
    else:
        values = known.kvalues
    table = np.array(values, np.int8).reshape(-1)
    library().un_set_table(dtype.number, table.ctypes.data)
    return table


def _get_rows(node: Tensor) -> tuple[Sequence[int], Sequence[float]]:
    return (first_row(node.inputs[0]),), ()


ATTRIBUTES: dict[str, Callable[[Tensor], tuple[Sequence[int], Sequence[float]]]] = {
    "get_rows": _get_rows
}


def _experts(node: Tensor) -> str | None:
    w = node.inputs[0]
    stored = w.storage.shape
    if w.storage.role is not Role.WEIGHT or len(stored) == 2 or stored[-2:] == w.shape[-2:]:
        return None
    return "it multiplies with experts as they are stored"


CHECKS: dict[str, Callable[[Tensor], str | None]] = {"mul_mat_id": _experts}
