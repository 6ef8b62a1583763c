"""What is known of chips before anything is tried on them.

The vendor's tables are wrong both ways for the small chips; what stands here is what others
have measured there. A 310B and a 310P multiply float16 alone: values stay float16, for a cast
before and after every product would double the launches, which cost most on them. A 910B
computes float32 everywhere: values are float32 there, and weights that the file has as such.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class Chip:
    """How a family of chips is used."""

    name: str
    dtype: str  # of values
    gather: str  # the operator that takes rows of a table
    scatters: bool  # it has an operator that writes rows
    refused: Mapping[str, str] = attrs.field(factory=dict)  # operators, and why not
    float32: bool = True  # it computes f32 at all
    float32_products: bool = False
    least_row: int = 0  # bytes of a row that RmsNorm takes at least
    long_rows: int = 0  # products of 64 rows and more only up to so many columns; 0: all


_UNMEASURED = (
    "AddRmsNorm Argsort Cat Clamp Exp GatherV2 Gelu IndexSelect InplaceIndexCopy Matmul Neg "
    "ReduceSum Relu RmsNorm RotaryPositionEmbedding Softplus Sort Sqrt SwiGlu Tanh Topk Abs "
    "WeightQuantBatchMatmulV2"
)
_310B = dict.fromkeys(_UNMEASURED.split(), "nobody has seen it work on a 310B")
del _310B["Neg"]  # the vendor states it
_310P = dict.fromkeys(("InplaceIndexCopy", "RotaryPositionEmbedding"), "a 310P has none")

CHIPS = (
    Chip("310B", "f16", "Embedding", False, _310B, float32=False, long_rows=4096),
    Chip("310P", "f16", "GatherV2", False, _310P, least_row=32),
    Chip("910B", "f32", "GatherV2", True, float32_products=True),
    Chip("910", "f16", "GatherV2", False),
)
UNKNOWN = Chip("", "f16", "GatherV2", False)


def chip(soc: str) -> Chip:
    """The family of a chip as aclrtGetSocName names it: "Ascend310B4"."""
    name = soc.removeprefix("Ascend")
    if name.startswith("910_93"):  # a 910C: two of 910B
        name = "910B"
    return next((c for c in CHIPS if name.startswith(c.name)), UNKNOWN)
