"""What a chip can do: as it was tried out, or as is assumed where that cannot be done.

A 310B and a 310P multiply float16 alone: values stay float16, for a cast before and after every
product would double the launches, which cost most on them. A 910B computes float32 everywhere:
values are float32 there, and weights that the file has as such.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

GATHERS = ("GatherV2", "Embedding", "IndexSelect")  # operators that take rows, the best first
SCATTER = "InplaceIndexCopy"  # the one that writes them
QUANTISED = "WeightQuantBatchMatmulV2"
ATTENTION = "FusedInferAttentionScoreV2"
_VALUES = ("Add", "Mul", "Muls", "Adds", "Cast", "InplaceCopy", "Softmax", "LayerNorm")
_PRODUCTS = ("Mm", "BatchMatMul")
_LEAST_ROW = 32  # bytes, where less fails
_MANY, _LONG = 64, 4096  # rows from which on more columns fail

# Names of probes beside those of operators: `probing` has them.
NARROW = "rows of 16 bytes"
LONG = "64 rows of 4224"
ALIAS = "over its input"
MIXED = "and f16"
EXACT = "exact"
CAPTURE = "capture"
BLOCKS = "in blocks"
WEIGHTS = ("int8", "int4")

Reasons = Mapping[str, "str | None"]  # by dtype: None where it works


@attrs.frozen
class Chip:
    """How a chip is used."""

    name: str
    dtype: str  # of values
    gather: str = GATHERS[0]  # the operator that takes rows of a table
    scatters: bool = False  # it has an operator that writes rows
    operators: Mapping[str, Reasons] = attrs.field(factory=dict)  # what is not here may work
    float32: bool = True  # it computes f32 at all
    float32_products: bool = False
    mixes: bool = False  # its Add takes f32 and f16 at once
    least_row: int = 0  # bytes of a row that RmsNorm takes at least
    short: frozenset[str] = frozenset()  # products of few rows, or of few columns, alone
    alias: bool = False  # an Add may write into its input, and spoils nothing
    weight_quant: tuple[str, ...] = ()  # what a product takes as weights: "int8", "int4"
    capture: bool = False  # launches can be recorded and run as a whole
    blocks: bool = False  # attention reads keys and values through a table of blocks

    def columns(self, operator: str, rows: int) -> int:
        """How many columns of so many rows a product takes at once; 0: all."""
        return _LONG if operator in self.short and rows >= _MANY else 0

    def why_not(self, operator: str, dtype: str | None = None) -> str | None:
        """Why an operator does not work with a dtype; with any, where that one is unknown."""
        told = self.operators.get(operator, {})
        if dtype is not None and dtype in told:
            why = told[dtype]
            return f"aclnn{operator} of {dtype}: {why}" if why else None
        reasons = [why for why in told.values() if why]
        return f"aclnn{operator}: {reasons[0]}" if len(reasons) == len(told) > 0 else None


def tried(soc: str, verdicts: Reasons) -> Chip:
    """A chip that was tried out; verdicts by the names of probes."""
    operators = _by_operator(verdicts)

    def works(*names: str) -> bool:
        return all(name in verdicts and verdicts[name] is None for name in names)

    def some(operator: str, dtypes: tuple[str, ...]) -> bool:
        return works(*(f"{operator} {dtype}" for dtype in dtypes))

    float32 = all(works(f"{name} f32") for name in _VALUES)
    products = float32 and all(works(f"{name} f32") for name in _PRODUCTS)
    kinds = ("f16", "f32") if float32 else ("f16",)
    quantised = f"{QUANTISED} f16"
    weights = (w for w in WEIGHTS if works(f"{quantised} {w}", f"{quantised} {w} offset"))
    return Chip(
        name=chip(soc).name or soc.removeprefix("Ascend"),
        dtype="f32" if products else "f16",
        gather=next((name for name in GATHERS if some(name, kinds)), GATHERS[0]),
        scatters=some(SCATTER, kinds),
        operators=operators,
        float32=float32,
        float32_products=products,
        mixes=works(f"Add f32 {MIXED}"),
        least_row=0 if works(f"RmsNorm f16 {NARROW}") else _LEAST_ROW,
        short=frozenset(name for name in _PRODUCTS if not works(f"{name} f16 {LONG}")),
        alias=works(f"Add f16 {ALIAS}"),
        weight_quant=tuple(weights),
        capture=works(f"{CAPTURE} f16"),
        blocks=works(f"{ATTENTION} f16", f"{ATTENTION} f16 {BLOCKS}"),
    )


def _by_operator(verdicts: Reasons) -> dict[str, dict[str, str | None]]:
    """By operator and dtype; where all probes have a variant one that works is enough."""
    found: dict[str, dict[str, str | None]] = {}
    for name, why in verdicts.items():
        operator, dtype, *variant = name.split(" ")
        plain = f"{operator} {dtype}" in verdicts
        if variant and plain:
            continue
        known = found.setdefault(operator, {})
        known[dtype] = why if dtype not in known or why is None else known[dtype]
    return found


# What others have measured, for when nothing can be tried. The vendor's tables are wrong both
# ways for the small chips.

_UNMEASURED = (
    "AddRmsNorm Argsort Cat Clamp Exp FusedInferAttentionScoreV2 GatherV2 Gelu IndexSelect "
    "InplaceIndexCopy Relu RmsNorm RotaryPositionEmbedding Softplus Sort Sqrt SwiGlu Tanh Topk "
    "Abs ReduceSum WeightQuantBatchMatmulV2"
)


def _lacks(why: str, names: str) -> dict[str, Reasons]:
    return {name: {"f16": why, "f32": why} for name in names.split()}


_310B = _lacks("nobody has seen it work on a 310B", _UNMEASURED)
_310P = _lacks(
    "a 310P has none", f"{SCATTER} RotaryPositionEmbedding FusedInferAttentionScoreV2"
)

CHIPS = (
    Chip(
        *("310B", "f16", "Embedding", False, _310B),
        float32=False,
        short=frozenset(_PRODUCTS),  # it was seen of an Mm
    ),
    Chip("310P", "f16", operators=_310P, least_row=32, weight_quant=("int8",)),
    Chip(
        "910B",
        "f32",
        scatters=True,
        float32_products=True,
        mixes=True,
        weight_quant=WEIGHTS,
        capture=True,
    ),
    Chip("910", "f16"),
)
UNKNOWN = Chip("", "f16")


def chip(soc: str) -> Chip:
    """What is assumed of a chip as aclrtGetSocName names it: "Ascend310B4"."""
    name = soc.removeprefix("Ascend")
    if name.startswith("910_93"):  # a 910C: two of 910B
        name = "910B"
    return next((c for c in CHIPS if name.startswith(c.name)), UNKNOWN)
