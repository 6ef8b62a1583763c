"""From nodes to launches. What cannot be lowered is `Unsupported`, with the reason.

The same code answers whether a node is supported: there it has no memory, and its launches are
dropped. What a node needs beside its inputs and result lies in scratch memory.

A value may exist in several forms: as the plan lays it out, and in scratch memory as what made
it gave it, or as somebody wanted it. So a product of float16 becomes float32 only for whoever
wants that, and is cast once for all of them. One that would leave float16's range may lie
divided by a power of two (`divided.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import numpy as np
from umbel.graph import Role, Tensor
from umbel.hookspecs import Slot

from umbel_cann.chips import Chip
from umbel_cann.paging import Laid
from umbel_cann.program import Call, Launch
from umbel_cann.scratch import Scratch
from umbel_cann.states import rows_of
from umbel_cann.views import (
    BYTES,
    FLOAT,
    FLOAT16,
    INT32,
    NAMES,
    Argument,
    Ints,
    Scalar,
    Unsupported,
    View,
    Views,
    contiguous,
    like,
    type_of,
    window,
)

Missing = Callable[[str], str | None]
Keep = Callable[[Hashable, np.ndarray], int]  # constants, by a key: their address
_NUMPY = {FLOAT: np.float32, FLOAT16: np.float16, INT32: np.int32}


@attrs.define(eq=False)
class Lowering:
    """Makes the launches of nodes, one node after the other."""

    chip: Chip
    missing: Missing  # why an operator cannot be called
    slots: Mapping[Tensor, Slot] | None = None  # none: only asked
    # Which node reads a storage for the last time, of those that nobody reads after the split.
    last: Mapping[Tensor, int] = attrs.field(factory=dict)
    scratch: Scratch = attrs.field(factory=Scratch)
    launches: list[Launch] = attrs.field(factory=list)
    rounded: frozenset[Tensor] = frozenset()  # results that all readers round to float16
    kept: Keep | None = None
    laid: Laid | None = None  # how cells lie in blocks, if they do
    # What attends without gathered rows: its caches of keys and values.
    blocks: Mapping[Tensor, tuple[Tensor, Tensor]] = attrs.field(factory=dict)
    raw: bool = False  # this node takes operands as they lie, divided or not
    # The results that are to lie behind each other, by either of them.
    pairs: Mapping[Tensor, tuple[Tensor, Tensor]] = attrs.field(factory=dict)
    _forms: dict[Tensor, dict[int, View]] = attrs.field(factory=dict)
    _powers: dict[Tensor, tuple[int, int]] = attrs.field(factory=dict)
    _shared: dict[Hashable, View] = attrs.field(factory=dict)
    _node: Tensor | None = None
    _now: int = 0

    def begin(self, node: Tensor, now: int = 0) -> None:
        """What follows is for this node, the `now`th of the split."""
        self._node, self._now, self.raw = node, now, True
        self.scratch.begin()

    # memory

    def view(self, t: Tensor) -> View:
        """A tensor in its own dtype, wherever it is, and as it is meant."""
        if t.storage in self._forms:
            return self._meant(t, self._of(t, type_of(t.dtype)))
        lies = self._lies(t)
        return self._meant(t, self._allowed(lies) if self.slots is None else lies)

    def _lies(self, t: Tensor) -> View:
        """Where the plan has it."""
        view = window(t, self.address(t))
        if self.slots is None or t.storage.role is not Role.STATE:
            return view
        whole = t.storage.shape[0]
        rows = rows_of(t.storage, self.slots[t.storage].buffer.nbytes)  # that have memory
        elements = view.elements // whole * rows
        shape = (rows, *t.shape[1:]) if t.shape[0] == whole else t.shape
        return attrs.evolve(view, shape=shape, elements=elements)

    def address(self, t: Tensor) -> int:
        """Where the plan has the storage of a tensor."""
        if self.slots is None:
            return 0
        slot = self.slots[t.storage]
        return int(slot.buffer.handle) + slot.offset

    def _allowed(self, view: View) -> View:
        if view.type == FLOAT and not self.chip.float32:
            msg = f"a {self.chip.name} computes no f32"
            raise Unsupported(msg)
        return view

    def temporary(self, shape: Ints, number: int) -> View:
        """Scratch memory, to the end of this node."""
        return _dense(shape, number, self.scratch.for_node)

    @contextmanager
    def again(self) -> Iterator[None]:
        """What is temporary in here gives its memory back at the end."""
        with self.scratch.again():
            yield

    def once(
        self, key: Hashable, shape: Ints, number: int, fill: Callable[[View], None]
    ) -> View:
        """What several nodes of a split use: filled at the first, in memory of its own."""
        if key not in self._shared:
            self._shared[key] = made = _dense(shape, number, self.scratch.for_all)
            fill(made)
        return self._shared[key]

    def constant(self, key: Hashable, number: int, values: np.ndarray) -> View:
        """Values that are the same for all programs of a device."""
        ready = np.ascontiguousarray(values, _NUMPY[number])
        address = self.kept((key, number), ready) if self.kept else 0
        return _dense(values.shape, number, lambda _: address)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """What turns out to be `Unsupported` in here leaves nothing behind."""
        count, shared = len(self.launches), dict(self._shared)
        forms = {t: dict(views) for t, views in self._forms.items()}
        try:
            yield
        except Unsupported:
            del self.launches[count:]
            self._shared, self._forms = shared, forms
            raise

    # values that are divided

    def divide(self, node: Tensor, power: int, nbytes: int) -> None:
        """The first bytes of a result are divided by that power of two."""
        self._powers[node.storage] = power, nbytes

    def divided(self, t: Tensor) -> int:
        """By which power of two a tensor is divided where it lies."""
        power, nbytes = self._powers.get(t.storage, (0, 0))
        return power if t.offset < nbytes else 0

    def power(self, t: Tensor) -> int:
        """By which one what `view` gives to this node is."""
        return self.divided(t) if self.raw else 0

    def _meant(self, t: Tensor, view: View) -> View:
        power = self.divided(t)
        if self.raw or not power:
            return view
        meant = self.temporary(view.shape, view.type)
        self.emit("Muls", view, Scalar(2.0**power), meant)
        return meant

    # values in several forms

    def _of(self, t: Tensor, number: int) -> View:
        """A tensor, in that dtype, in whatever form there is or is made for all its readers."""
        storage = t.storage
        forms = self._forms.setdefault(storage, {})
        if number not in forms:
            own = type_of(storage.dtype)
            source = next(iter(forms.values())) if forms else self._lies(storage)
            forms.setdefault(source.type, source)
            made = self._lies(storage) if number == own else self._kept(storage, number)
            self.emit("Cast", source, number, made)
            forms[number] = made
        return like(t, forms[number])

    def _kept(self, storage: Tensor, number: int) -> View:
        """Memory for it until it is read for the last time."""
        until = self.last[storage]
        return _dense(
            storage.shape, number, lambda n: self.scratch.between(n, self._now, until)
        )

    def known(self, t: Tensor) -> View:
        """A tensor in the dtype in which it was made."""
        forms = self._forms.get(t.storage)
        return like(t, next(iter(forms.values()))) if forms else self.view(t)

    def result(self, node: Tensor, number: int) -> View:
        """Where a result of that dtype goes, until `finish`."""
        if node in self.pairs:
            return self._beside(node, number)
        if number == type_of(node.dtype):
            return self.view(node)
        if node not in self.last:
            return self.temporary(node.shape, number)
        self._forms[node] = {number: (made := self._kept(node, number))}
        return made

    def _beside(self, node: Tensor, number: int) -> View:
        """One of two results: together they are what an operator takes as one tensor."""
        one, two = self.pairs[node]
        if one not in self._forms:
            until = max(self.last[one], self.last[two])
            both = (2, *one.shape)
            made = _dense(both, number, lambda n: self.scratch.between(n, self._now, until))
            for i, t in enumerate((one, two)):
                self._forms[t] = {number: made.part(0, i, i + 1).reshaped(*t.shape)}
        return self._forms[node][number]

    def apart(self, node: Tensor, *inputs: View) -> View:
        """Where a result goes, until `finish`, that is written while these are still read: the
        plan may have laid it out over what it takes to be dead."""
        out = self.view(node)
        if not any(out.meets(view) for view in inputs):
            return out
        if node not in self.last:
            return self.temporary(node.shape, out.type)
        self._forms[node] = {out.type: (made := self._kept(node, out.type))}
        return made

    def finish(self, node: Tensor, result: View) -> None:
        """A result is complete: brings it to where others look for it."""
        if node in self._forms:
            return
        out = self.view(node)
        if out.type != result.type:
            self.emit("Cast", result, out.type, out)
        elif out.start != result.start:
            self.emit("InplaceCopy", out, result)

    # launches

    def emit(self, operator: str, *arguments: Argument) -> None:
        self.require(operator, first_type(arguments))
        assert self._node is not None
        self.launches.append(Call(operator, arguments, self._node))

    def require(self, operator: str, number: int | None = None) -> None:
        if (why := self.why_not(operator, number)) is not None:
            raise Unsupported(why)

    def why_not(self, operator: str, number: int | None = None) -> str | None:
        """Why it cannot be used: with its first tensor of that dtype, or with any."""
        dtype = None if number is None else NAMES.get(number)
        return self.missing(operator) or self.chip.why_not(operator, dtype)

    def launch(self, launch: Launch) -> None:
        self.launches.append(launch)

    # what many operations need

    def operand(self, t: Tensor, number: int) -> View:
        """A tensor in that dtype: itself, or cast."""
        if t.dtype.name == NAMES[number]:
            return self.view(t)
        if t.storage in self._forms or self._shares(t):
            return self._meant(t, self._of(t, number))
        return self.cast(self.stored(t), number)

    def _shares(self, t: Tensor) -> bool:
        """Whether a cast of it serves all its readers."""
        moving = t.storage.role in (Role.NODE, Role.INPUT)
        return moving and t.storage in self.last and t.size == t.storage.size

    def stored(self, t: Tensor) -> View:
        """A tensor that is only moved or cast, in whatever dtype."""
        return self._lies(t) if self.slots is None else self.view(t)

    def cast(self, view: View, number: int) -> View:
        if view.type == number:
            return view
        made = self.temporary(view.shape, number)
        self.emit("Cast", view, number, made)
        return made

    def dense(self, view: View) -> View:
        """Without gaps: many kernels refuse others, or fail on them."""
        if view.dense:
            return view
        made = self.temporary(view.shape, view.type)
        self.emit("InplaceCopy", made, view)
        return made

    def product_type(self, w: Tensor) -> int:
        """In which dtype products with these weights are computed."""
        whole = w.dtype.name == "f32" and self.chip.float32_products
        return FLOAT if whole else FLOAT16


def first_type(arguments: tuple[Argument, ...]) -> int | None:
    """The dtype of the first tensor, which an operator's kernels are told apart by."""
    for argument in arguments:
        if isinstance(argument, Views):
            return argument.views[0].type
        if isinstance(argument, View):
            return argument.type
    return None


def _dense(shape: Ints, number: int, take: Callable[[int], int]) -> View:
    """A window without gaps on what `take` gives for so many bytes."""
    size = math.prod(shape)
    return View(number, shape, contiguous(shape), take(size * BYTES[number]), elements=size)
