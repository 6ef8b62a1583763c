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


def cut(
    shares: Sequence[int],
    count: int,
    groups: int,
    *,
    copies: bool,
    whole: bool,
    use: Sequence[int] | None = None,
) -> Cut:
    """Of `count` matrices with so many groups, by the nodes' threads: rows of each, or whole
    matrices, or a copy of all. `use` says how often each matrix is read."""
    if copies and len(shares) > 1:
        return Cut(COPIES, (0,) * (len(shares) + 1), (count * groups,) * len(shares))
    by_matrix = whole and count >= len(shares) > 1
    n, each = (count, groups) if by_matrix else (groups, count)
    first = (0, *(n * part // sum(shares) for part in accumulate(shares)))
    if by_matrix and use is not None and len(use) == count and any(use):
        first = _by_use(shares, use)
    held = tuple(each * (b - a) for a, b in pairwise(first))
    return Cut(MATRICES if by_matrix else ROWS, first, held)


def _by_use(shares: Sequence[int], use: Sequence[int]) -> tuple[int, ...]:
    """Where each node's matrices begin, so that it has its share of what is read: as near as
    matrices that lie together allow."""
    before = [0, *accumulate(use)]
    wanted = [before[-1] * part / sum(shares) for part in accumulate(shares)]
    ends = [min(range(len(before)), key=lambda i: abs(before[i] - w)) for w in wanted[:-1]]
    return (0, *ends, len(use))
