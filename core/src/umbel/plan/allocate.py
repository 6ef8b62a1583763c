"""Gives every storage of a plan its place: offsets in one arena per device, by liveness.

After ggml's allocator: best fit among the holes, memory of dead tensors is reused, elementwise
results take over an input that dies with them. An opaque device keeps only what enters or
leaves its splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from umbel.graph import Role, Tensor
from umbel.plan.split import Split
from umbel.plan.target import Target

Key = tuple[str, Tensor]  # (device, storage)
PERSISTENT = (Role.WEIGHT, Role.STATE, Role.CONST)


@attrs.frozen(eq=False)
class Copy:
    """Before a split: the storage `tensor` goes from one device's memory to another's."""

    tensor: Tensor
    source: Target
    destination: Target


@attrs.frozen(eq=False)
class Layout:
    """Offsets of all storages in their device's arena, its size, and the copies of each
    split."""

    offsets: dict[Key, int]
    sizes: dict[str, int]  # of the arenas, by device
    copies: tuple[tuple[Copy, ...], ...]
    owners: dict[Key, Target]  # whose memory a split on that device uses for the storage


class FreeList:
    """Simulated addresses: holes sorted by offset, and an end that grows."""

    def __init__(self, alignment: int) -> None:
        self.alignment = max(alignment, 1)
        self.holes: list[tuple[int, int]] = []  # (offset, size)
        self.end = 0
        self.peak = 0

    def take(self, nbytes: int) -> int:
        size = self._round(nbytes)
        fits = [(n, at) for at, n in self.holes if n >= size]
        if not fits:
            last = self.holes[-1] if self.holes else None
            if last and last[0] + last[1] == self.end:  # the last hole reaches the end: grow it
                self.holes.pop()
                self.end = last[0]
            offset, self.end = self.end, self.end + size
            self.peak = max(self.peak, self.end)
            return offset
        n, offset = min(fits)
        i = self.holes.index((offset, n))
        self.holes[i : i + 1] = [(offset + size, n - size)] if n > size else []
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        size = self._round(nbytes)
        if not size:
            return
        self.holes = sorted([*self.holes, (offset, size)])
        merged: list[tuple[int, int]] = []
        for at, n in self.holes:
            if merged and sum(merged[-1]) == at:
                merged[-1] = (merged[-1][0], merged[-1][1] + n)
            else:
                merged.append((at, n))
        self.holes = merged

    def _round(self, nbytes: int) -> int:
        return -(-max(nbytes, 1) // self.alignment) * self.alignment


def allocate(splits: Sequence[Split], wanted: Iterable[Tensor]) -> Layout:
    """Lays out the splits' storages; `wanted` live to the end."""
    return _Allocator(splits, wanted).run()


class _Allocator:
    def __init__(self, splits: Sequence[Split], wanted: Iterable[Tensor]) -> None:
        self.splits = splits
        self.arenas: dict[str, FreeList] = {}
        self.offsets: dict[Key, int] = {}
        self.owners: dict[Key, Target] = {}
        self.inherited: set[Key] = set()  # memory that lives on under another tensor
        self.copies: list[list[Copy]] = []
        self.made_on: dict[Tensor, Target] = {}
        self.end = sum(len(s.placed) for s in splits)
        self.last: dict[Key, int] = {}  # the last moment at which a memory is read
        self._find_owners()
        self._find_lives(wanted)

    def _find_owners(self) -> None:
        """Whose memory each split reads each storage from; a copy where it cannot be shared."""
        for split in self.splits:
            copies = []
            for t in split.inputs:
                key = (split.target.name, t)
                if key in self.owners or t.role in PERSISTENT:
                    continue
                source = self.made_on.get(t)
                shared = source is not None and split.target.reads(source)
                if source is None or shared:
                    self.owners[key] = source or split.target
                else:
                    self.owners[key] = split.target
                    copies.append(Copy(t, source, split.target))
            for t in split.outputs + split.nodes:
                self.made_on[t.storage] = split.target
                self.owners.setdefault((split.target.name, t.storage), split.target)
            self.copies.append(copies)

    def _find_lives(self, wanted: Iterable[Tensor]) -> None:
        now = 0
        for split, copies in zip(self.splits, self.copies, strict=True):
            for copy in copies:
                self._reads(copy.source, copy.tensor, now)
            for node in split.nodes:
                for t in (*node.inputs, node):
                    self._reads(split.target, t.storage, now)
                now += 1
            if split.target.info.opaque:  # a compiler may read its inputs until it has finished
                for t in split.inputs + split.outputs:
                    self._reads(split.target, t.storage, now - 1)
        for t in wanted:
            if t in self.made_on:
                self._reads(self.made_on[t], t, self.end)

    def _reads(self, target: Target, t: Tensor, now: int) -> None:
        if t.role not in PERSISTENT:
            owner = self.owners[target.name, t]
            self.last[owner.name, t] = max(now, self.last.get((owner.name, t), -1))

    def run(self) -> Layout:
        dying: dict[int, list[Key]] = {}
        for key, moment in self.last.items():
            dying.setdefault(moment, []).append(key)
        leaves = [k for k in self.last if k[1].op is None]
        targets = {s.target.name: s.target for s in self.splits}
        for name, t in leaves:  # inputs are written before the first split
            self._take(targets[name], t)
        now = 0
        for split, copies in zip(self.splits, self.copies, strict=True):
            for copy in copies:
                self._take(copy.destination, copy.tensor)
            if split.target.info.opaque:
                for t in split.outputs:
                    self._take(split.target, t.storage)
            for node in split.nodes:
                if not split.target.info.opaque and node.base is None:
                    self._place(split.target, node, now)
                for key in dying.get(now, ()):
                    self._free(targets[key[0]], key)
                now += 1
        sizes = {name: arena.peak for name, arena in self.arenas.items()}
        return Layout(self.offsets, sizes, tuple(map(tuple, self.copies)), self.owners)

    def _place(self, target: Target, node: Tensor, now: int) -> None:
        """In the memory of an input that dies here, where operation and device allow; or
        new."""
        if node.op is not None and node.op.in_place and target.buffer_type.in_place:
            storages = [t.storage for t in node.inputs]
            for t in node.inputs:
                key = (target.name, t)
                same = (t.shape, t.dtype, t.strides) == (node.shape, node.dtype, node.strides)
                dies = t.op is not None and self.last.get(key) == now
                if same and dies and key in self.offsets and storages.count(t) == 1:
                    self.offsets[target.name, node] = self.offsets[key]
                    self.inherited.add(key)
                    return
        self._take(target, node)

    def _take(self, target: Target, t: Tensor) -> None:
        key = (target.name, t)
        if key not in self.offsets and key in self.last:
            arena = self.arenas.setdefault(target.name, FreeList(target.buffer_type.alignment))
            self.offsets[key] = arena.take(target.buffer_type.alloc_size(t))

    def _free(self, target: Target, key: Key) -> None:
        if key in self.offsets and key not in self.inherited:
            size = target.buffer_type.alloc_size(key[1])
            self.arenas[target.name].give(self.offsets[key], size)
