"""Gives every storage of a plan its place: offsets in one arena per device, by liveness.

After ggml's allocator: the memory of what is dead is reused, best fit among the gaps, and
elementwise results take over an input that dies with them. An opaque device keeps only what
enters or leaves its splits.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

import attrs

from umbel.graph import Role, Tensor
from umbel.plan.memory import Target
from umbel.plan.split import Split

Key = tuple[str, Tensor]  # (device, storage)
PERSISTENT = (Role.WEIGHT, Role.STATE, Role.CONST)
_ENDLESS = 1 << 62


@attrs.frozen(eq=False)
class Copy:
    """Before a split: the storage `tensor` goes from one device's memory to another's."""

    tensor: Tensor
    source: Target
    destination: Target


@attrs.frozen(eq=False)
class Layout:
    """Where everything lies; nothing is in an arena on a device with separate memory."""

    offsets: dict[Key, int]
    sizes: dict[str, int]  # of the arenas, by device
    copies: tuple[tuple[Copy, ...], ...]  # before each split
    owners: dict[Key, Target]  # whose memory a split on that device uses for the storage
    made_on: dict[Tensor, Target]


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


def allocate(splits: Sequence[Split], wanted: Iterable[Tensor]) -> Layout:
    """Lays out the splits' storages; `wanted` live to the end."""
    return _Allocator(splits, wanted).layout()


class _Allocator:
    """Moments are counted by nodes; a storage lives from `born` to `last`, both included."""

    def __init__(self, splits: Sequence[Split], wanted: Iterable[Tensor]) -> None:
        self.targets = {s.target.name: s.target for s in splits}
        self.made_on: dict[Tensor, Target] = {}
        self.owners: dict[Key, Target] = {}
        self.born: dict[Key, int] = {}
        self.last: dict[Key, int] = {}
        self.offsets: dict[Key, int] = {}
        self.copies: list[tuple[Copy, ...]] = []
        now = 0
        for split in splits:
            self.copies.append(tuple(self._copies(split, now)))
            self._follow(split, now)
            now += len(split.placed)
        for t in wanted:
            self._lives(self.made_on[t], t, now)

    def _copies(self, split: Split, now: int) -> Iterable[Copy]:
        """Whose memory the split reads each storage from; a copy where it cannot be shared."""
        for t in split.inputs:
            key = (split.target.name, t)
            if key not in self.owners and t.role not in PERSISTENT:
                source = self.made_on.get(t, split.target)  # an input of the step is written
                shared = split.target.reads(source)
                self.owners[key] = source if shared else split.target
                if not shared:
                    self._lives(source, t, now)
                    self._lives(split.target, t, now)
                    yield Copy(t, source, split.target)

    def _follow(self, split: Split, now: int) -> None:
        target, nodes = split.target, split.nodes
        for node in nodes:
            self.made_on[node] = self.owners[target.name, node] = target
        uses = [[t.storage for t in (*node.inputs, node)] for node in nodes]
        if target.info.opaque:  # it may read and write whenever it likes
            uses = [[*split.inputs, *split.outputs]] * len(nodes)
        for moment, storages in enumerate(uses, now):
            for t in storages:
                self._lives(target, t, moment)

    def _lives(self, target: Target, t: Tensor, now: int) -> None:
        if t.role not in PERSISTENT and t.base is None:
            key = (self.owners[target.name, t].name, t)
            # the inputs of the step are written before its first split
            self.born.setdefault(key, -1 if t.role is Role.INPUT else now)
            self.last[key] = now

    def layout(self) -> Layout:
        arenas: dict[str, FreeList] = {}
        living: list[Key] = []  # those that have memory of their own
        for key in sorted(self.born, key=lambda key: self.born[key]):
            name, t = key
            kind = self.targets[name].buffer_type
            if kind.separate:
                continue
            for dead in [k for k in living if self.last[k] < self.born[key]]:
                living.remove(dead)
                arenas[dead[0]].give(self.offsets[dead])
            heritage = self._heritage(key)
            if heritage is None:
                arena = arenas.setdefault(name, FreeList(kind.alignment))
                self.offsets[key] = arena.take(kind.alloc_size(t))
            else:
                living.remove(heritage)
                self.offsets[key] = self.offsets[heritage]
            living.append(key)
        sizes = {name: arena.peak for name, arena in arenas.items()}
        return Layout(self.offsets, sizes, tuple(self.copies), self.owners, self.made_on)

    def _heritage(self, key: Key) -> Key | None:
        """An input that dies here, where operation and device allow to overwrite it."""
        name, node = key
        target = self.targets[name]
        if node.op is None or not node.op.in_place or not target.buffer_type.in_place:
            return None
        storages = [t.storage for t in node.inputs]
        for t in node.inputs if self.made_on[node] is target else ():
            same = (t.shape, t.dtype, t.strides) == (node.shape, node.dtype, node.strides)
            dies = (name, t) in self.offsets and self.last[name, t] == self.born[key]
            if same and dies and storages.count(t) == 1:
                return name, t
        return None
