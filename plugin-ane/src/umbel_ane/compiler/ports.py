"""What a program's surfaces carry: the edge between the core's tensors and a program's values.

Lowering names each input of the graph with such a source; `runtime` fills surfaces by it. A
surface is [B, C, H, W] of float16, packed from byte 0.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs
from umbel.graph import Tensor

from umbel_ane.compiler.ir import Shape4, Weight


@attrs.frozen
class Whole:
    """The values of a storage (an input of the split, or its output): its axes in the order
    `axes`, then reshaped to the port's shape; what the port has more at its end is padding."""

    tensor: Tensor
    axes: tuple[int, ...]


@attrs.frozen
class Rows:
    """Rows `ids` (an integer input, values below the number of rows) of a weight or a state:
    (*ids.shape, columns), flat in C order; `axes` permute that as in `Whole`."""

    tensor: Tensor  # (rows, columns)
    ids: Tensor
    axes: tuple[int, ...]


@attrs.frozen
class OneHot:
    """(rows, n): row i has its one at `ids[i]`, else zeros. A product with it picks rows."""

    ids: Tensor
    n: int
    axes: tuple[int, ...]


@attrs.frozen
class Held:
    """The values of a constant, in C order, given as an input: they can change without a
    compile (`runtime.held`)."""

    weight: Weight
    shape: tuple[int, int, int, int]  # in the port, with what is padded left out


@attrs.frozen
class Between:
    """A value that an earlier program of the same split leaves for later ones."""

    number: int


@attrs.frozen
class Watched:
    """A number that is finite where all values of the program were (`compiler.watch`)."""


Source: TypeAlias = Whole | Rows | OneHot | Held | Between | Watched


@attrs.frozen
class Port:
    """One surface of a program. Sorted by name, ports are in their declared order."""

    name: str  # in the MIL text: a00, a01 ...
    shape: Shape4
    source: Source
    dtype: str = "fp16"
