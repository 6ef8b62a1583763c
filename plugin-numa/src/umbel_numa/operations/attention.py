"""Attention, soft maximum, rope, and rows of caches."""

from collections.abc import Callable, Sequence

from umbel.graph import Tensor

ATTRIBUTES: dict[str, Callable[[Tensor], tuple[Sequence[int], Sequence[float]]]] = {}
CHECKS: dict[str, Callable[[Tensor], str | None]] = {}
