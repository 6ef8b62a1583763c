"""Lowering: a split of the core's graph to one graph of the IR, a file per family."""

from umbel_ane.compiler.lowering.context import Options, WeightOf
from umbel_ane.compiler.lowering.layout import Refused
from umbel_ane.compiler.lowering.lower import lower, unsupported

__all__ = ["Options", "Refused", "WeightOf", "lower", "unsupported"]
