"""Turns the keys of a KV cache to other positions: a rotation by the difference.

Rotary positions are angles that grow linearly with the position, whatever scaling was chosen,
so a key at position p becomes the key at p + d by one more rotation by d.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from umbel.gguf.types import I32
from umbel.graph import Builder, Graph, Operation, Role

if TYPE_CHECKING:
    from umbel.models.builder import CacheRope
    from umbel.models.hparams import Rope


def shift_graph(ropes: Sequence[CacheRope], ops: Mapping[str, Operation], n: int) -> Graph:
    """Inputs `cells` (n,), `turns` (n,): the keys of those cells, turned so many positions."""
    b = Builder(ops)
    cells, turns = (b.leaf(Role.INPUT, name, (n,), I32) for name in ("cells", "turns"))
    writes = []
    for entry in ropes:
        width = entry.cache.shape[1]
        keys = b.get_rows(entry.cache, cells)
        keys = b.reshape(keys, shape=(n, entry.heads, width // entry.heads))
        turned = b.rope(keys, turns, entry.factors, **attrs.asdict(unscaled(entry.rope)))
        rows = b.reshape(turned, shape=(n, width))
        writes.append(b.set_rows(entry.cache, rows, cells))
    return b.graph(writes)


def unscaled(rope: Rope) -> Rope:
    """The same angles, without the magnitude that YaRN and others give to keys."""
    magnitude = 1.0 - 0.1 * math.log(rope.freq_scale) if rope.ext_factor else 1.0
    return attrs.evolve(rope, attn_factor=1.0 / magnitude)
