"""Gives every storage of a plan its place: offsets in one arena per device, by liveness.

After ggml's allocator: the memory of what is dead is reused, best fit among the gaps, and
elementwise results take over an input that dies with them. An opaque device keeps only what
enters or leaves its splits.
"""

import bisect
from collections.abc import Iterable, Sequence

import attrs

from umbel.graph import Role, Tensor
from umbel.plan.memory import Target
from umbel.plan.split import Split

Key = tuple[Target, Tensor]  # a storage in the memory of a device
Lives = dict[Key, tuple[int, int]]  # its first and its last moment, counted by nodes
PERSISTENT = (Role.WEIGHT, Role.STATE, Role.CONST)
_ENDLESS = 1 << 62


class FreeList:
    """Simulated addresses from 0 on."""

    def __init__(self, alignment: int) -> None:
        self.alignment = max(alignment, 1)
        self.taken: list[tuple[int, int]] = []  # (offset, size), rising
        self.peak = 0

    def take(self, nbytes: int) -> int:
        """The smallest gap that is large enough; the last one has no end."""
        size = -(-max(nbytes, 1) // self.alignment) * self.alignment
        starts = [0, *(at + n for at, n in self.taken)]
        stops = [*(at for at, _ in self.taken), _ENDLESS]
        gaps = zip(starts, stops, strict=True)
        _, offset = min((stop - at, at) for at, stop in gaps if stop - at >= size)
        bisect.insort(self.taken, (offset, size))
        self.peak = max(self.peak, offset + size)
        return offset

    def give(self, offset: int) -> None:
        del self.taken[bisect.bisect_left(self.taken, (offset, 0))]


@attrs.frozen(eq=False)
class Layout:
    """Where everything lies. What has no offset is on a device with separate memory."""

    made_on: dict[Tensor, Target]
    copies: list[list[Tensor]] = attrs.field(factory=list)  # before each split, to its device
    offsets: dict[Key, int] = attrs.field(factory=dict)
    arenas: dict[Target, FreeList] = attrs.field(factory=dict)

    def owner(self, target: Target, t: Tensor) -> Target:
        """In whose memory `target` uses the storage: where it was made, or its own copy."""
        source = self.made_on.get(t, target)  # the inputs of the step are written everywhere
        return source if target.reads(source) else target


def allocate(splits: Sequence[Split], wanted: Iterable[Tensor]) -> Layout:
    """Lays out the splits' storages; `wanted` live to the end."""
    layout = Layout({node: s.target for s in splits for node in s.nodes})
    lives = _lives(splits, wanted, layout)
    living: list[Key] = []  # those that have memory of their own
    for key in sorted(lives, key=lambda key: lives[key][0]):
        target, t = key
        kind = target.buffer_type
        if kind.separate:
            continue
        for dead in [k for k in living if lives[k][1] < lives[key][0]]:
            living.remove(dead)
            layout.arenas[dead[0]].give(layout.offsets[dead])
        heirloom = _heirloom(key, lives, layout)
        if heirloom is None:
            arena = layout.arenas.setdefault(target, FreeList(kind.alignment))
            layout.offsets[key] = arena.take(kind.alloc_size(t))
        else:
            living.remove(heirloom)
            layout.offsets[key] = layout.offsets[heirloom]
        living.append(key)
    return layout


def _lives(splits: Sequence[Split], wanted: Iterable[Tensor], layout: Layout) -> Lives:
    """When the storages live. What a device cannot read where it was made is copied."""
    lives: Lives = {}
    now, made_on = 0, layout.made_on

    def note(target: Target, t: Tensor) -> None:
        if t.role not in PERSISTENT:
            # the inputs of the step are written before its first split
            born = -1 if t.role is Role.INPUT else now
            key = layout.owner(target, t), t
            lives[key] = lives.get(key, (born, now))[0], now

    for split in splits:
        target = split.target
        copies = [
            t
            for t in split.inputs
            if t in made_on and not target.reads(made_on[t]) and (target, t) not in lives
        ]
        for t in copies:
            note(made_on[t], t)
            note(target, t)
        layout.copies.append(copies)
        for storages in split.storages():
            for t in storages:
                note(target, t)
            now += 1
    for t in wanted:
        note(made_on[t], t)
    return lives


def _heirloom(key: Key, lives: Lives, layout: Layout) -> Key | None:
    """An input that dies here, where operation and device allow to overwrite it."""
    target, node = key
    here = layout.made_on.get(node) is target  # and no copy
    if node.op is None or not (here and node.op.in_place and target.buffer_type.in_place):
        return None
    storages = [t.storage for t in node.inputs]
    for t in node.inputs:
        like = (t.shape, t.dtype, t.strides) == (node.shape, node.dtype, node.strides)
        dies = (target, t) in layout.offsets and lives[target, t][1] == lives[key][0]
        if like and dies and storages.count(t) == 1:
            return target, t
    return None
