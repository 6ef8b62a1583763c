"""Turns the keys of a KV cache to other positions: a rotation by the difference.

Rotary positions are angles that grow linearly with the position, whatever scaling was chosen,
so a key at position p becomes the key at p + d by one more rotation by d.
"""

import math
from collections.abc import Mapping, Sequence

import attrs

from umbel.gguf.types import I32
from umbel.graph import Builder, Graph, Operation, Role
from umbel.models.builder import CacheRope


def shift_graph(ropes: Sequence[CacheRope], ops: Mapping[str, Operation], n: int) -> Graph:
    """Inputs `cells` (n,), `turns` (n,): the keys of those cells, turned so many positions."""
    b = Builder(ops)
    cells, turns = (b.leaf(Role.INPUT, name, (n,), I32) for name in ("cells", "turns"))
    writes = []
    for entry in ropes:
        width, rope = entry.cache.shape[1], entry.rope
        keys = b.get_rows(entry.cache, cells)
        keys = b.reshape(keys, shape=(n, entry.heads, width // entry.heads))
        # the same angles, without the magnitude that YaRN gives to keys
        magnitude = 1.0 - 0.1 * math.log(rope.freq_scale) if rope.ext_factor else 1.0
        how = attrs.asdict(rope) | {"attn_factor": 1.0 / magnitude}
        turned = b.rope(keys, turns, entry.factors, **how)
        rows = b.reshape(turned, shape=(n, width))
        writes.append(b.set_rows(entry.cache, rows, cells))
    return b.graph(writes)
