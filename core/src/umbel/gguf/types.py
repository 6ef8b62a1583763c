"""The data types of tensors, named and numbered as GGUF does.

The `gguf` package is the source of these numbers; importing it costs a quarter of a second, so
they stand here as a table and a test holds the table against the package.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from attrs.converters import optional

from umbel.errors import GraphError


@attrs.frozen
class DType:
    """How the numbers of a tensor are stored: `block` values share `block_bytes` bytes."""

    name: str
    number: int
    block: int
    block_bytes: int
    # None where NumPy cannot read it: bf16 and quantised types
    numpy: np.dtype | None = attrs.field(default=None, converter=optional(np.dtype))

    @property
    def quantised(self) -> bool:
        return self.block > 1

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` values; a `GraphError` where blocks do not divide the row."""
        if n % self.block:
            msg = f"a row of {n} values cannot be stored as {self.name}"
            raise GraphError(msg, expected=f"a multiple of {self.block}", got=n)
        return n // self.block * self.block_bytes

    def __repr__(self) -> str:
        return self.name


_TABLE: dict[str, tuple[Any, ...]] = {  # number, values per block, bytes per block, NumPy
    "f32": (0, 1, 4, "<f4"),
    "f16": (1, 1, 2, "<f2"),
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q5_0": (6, 32, 22),
    "q5_1": (7, 32, 24),
    "q8_0": (8, 32, 34),
    "q8_1": (9, 32, 40),
    "q2_k": (10, 256, 84),
    "q3_k": (11, 256, 110),
    "q4_k": (12, 256, 144),
    "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210),
    "q8_k": (15, 256, 292),
    "iq2_xxs": (16, 256, 66),
    "iq2_xs": (17, 256, 74),
    "iq3_xxs": (18, 256, 98),
    "iq1_s": (19, 256, 50),
    "iq4_nl": (20, 32, 18),
    "iq3_s": (21, 256, 110),
    "iq2_s": (22, 256, 82),
    "iq4_xs": (23, 256, 136),
    "i8": (24, 1, 1, "i1"),
    "i16": (25, 1, 2, "<i2"),
    "i32": (26, 1, 4, "<i4"),
    "i64": (27, 1, 8, "<i8"),
    "f64": (28, 1, 8, "<f8"),
    "iq1_m": (29, 256, 56),
    "bf16": (30, 1, 2),
    "tq1_0": (34, 256, 54),
    "tq2_0": (35, 256, 66),
    "mxfp4": (39, 32, 17),
    "nvfp4": (40, 64, 36),
    "q1_0": (41, 128, 18),
}
BY_NAME = {name: DType(name, *row) for name, row in _TABLE.items()}
BY_NUMBER = {dtype.number: dtype for dtype in BY_NAME.values()}

F32, F16, BF16, I32 = BY_NAME["f32"], BY_NAME["f16"], BY_NAME["bf16"], BY_NAME["i32"]
Q8_0 = BY_NAME["q8_0"]
