"""How a packed weight is cut over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import attrs

ROWS, COPIES, MATRICES = range(3)  # UN_BY_ROWS, ...


@attrs.frozen
class Cut:
    """Node k holds `held[k]` groups of rows; `first` says which, as un_weight has it."""

    split: int
    first: tuple[int, ...]
    held: tuple[int, ...]


def cut(shares: Sequence[int], count: int, groups: int, *, copies: bool, whole: bool) -> Cut:
    """Of `count` matrices with so many groups, by the nodes' threads: rows of each, or whole
    matrices, or a copy of all."""
    if copies and len(shares) > 1:
        return Cut(COPIES, (0,) * (len(shares) + 1), (count * groups,) * len(shares))
    by_matrix = whole and count >= len(shares) > 1
    n, each = (count, groups) if by_matrix else (groups, count)
    first = (0, *(n * part // sum(shares) for part in accumulate(shares)))
    held = tuple(each * (b - a) for a, b in pairwise(first))
    return Cut(MATRICES if by_matrix else ROWS, first, held)
