"""What the conformance suite asks: `--umbel-cases umbel_relu_sqr.cases`."""

from umbel_kit.cases import SHAPES, Arg, Case

CASES = [Case("relu_sqr", (Arg(shape),)) for shape in SHAPES]
CASES += [Case("relu_sqr", (Arg((5, 8), values="edges"),), note="edges")]
