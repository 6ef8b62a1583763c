"""From nodes to launches. What cannot be lowered is `Unsupported`, with the reason.

The same code answers whether a node is supported: there it has no memory, and its launches are
dropped. What a node needs beside its inputs and result lies in scratch memory, which the next
node uses again: the stream runs them one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import numpy as np
from umbel.graph import Role, Tensor
from umbel.hookspecs import Slot

from umbel_cann.chips import Chip
from umbel_cann.heap import ALIGNMENT, padded
from umbel_cann.program import Call, Launch
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
    window,
)

_NUMPY = {FLOAT: np.float32, FLOAT16: np.float16, INT32: np.int32}

Missing = Callable[[str], str | None]


@attrs.define(eq=False)
class Lowering:
    """Makes the launches of nodes, one node after the other."""

    chip: Chip
    missing: Missing  # why an operator cannot be called
    slots: Mapping[Tensor, Slot] | None = None  # none: only asked
    exact: frozenset[Tensor] = frozenset()  # storages that others read: see `divided`
    kept: Callable[[Hashable, np.ndarray], int] | None = None  # where constants are
    place: int = 0  # of the scratch memory
    launches: list[Launch] = attrs.field(factory=list)
    above: int = 0  # bytes of scratch memory that nodes need; what lasts lies above them
    peak: int = 0  # what they turned out to need
    lasting: int = 0  # bytes that last to the end of the split
    raw: bool = False  # this node takes operands as they lie, divided or not
    wide: tuple[Tensor, View] | None = None  # a result in float32, before it was rounded
    _powers: dict[Tensor, tuple[int, int]] = attrs.field(factory=dict)
    _used: int = 0
    _shared: dict[Hashable, View] = attrs.field(factory=dict)
    _node: Tensor | None = None

    def begin(self, node: Tensor) -> None:
        """What follows is for this node, and what was before needs no scratch memory more."""
        self._node, self._used, self.raw = node, 0, True

    # memory

    def view(self, t: Tensor) -> View:
        """A tensor where it lies; or, where that is divided, as it is meant."""
        lies, power = self._lies(t), self.divided(t)
        if self.raw or not power:
            return self._allowed(lies) if self.slots is None else lies
        meant = self.temporary(t.shape, lies.type)
        self.emit("Muls", lies, Scalar(2.0**power), meant)
        return meant

    def _lies(self, t: Tensor) -> View:
        view = window(t, self.address(t))
        if self.slots is None or t.storage.role is not Role.STATE:
            return view
        whole = t.storage.shape[0]
        rows = rows_of(t.storage, self.slots[t.storage].buffer.nbytes)  # that have memory
        elements = view.elements // whole * rows
        shape = (rows, *t.shape[1:]) if t.shape[0] == whole else t.shape
        return attrs.evolve(view, shape=shape, elements=elements)

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

    def address(self, t: Tensor) -> int:
        """Where the storage of a tensor begins."""
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
        made = self._at(self.place + self._used, shape, number)
        self._used += _room(made)
        self.peak = max(self.peak, self._used)
        return made

    @contextmanager
    def again(self) -> Iterator[None]:
        """What is temporary in here gives its memory back at the end."""
        used = self._used
        yield
        self._used = used

    def once(
        self, key: Hashable, shape: Ints, number: int, fill: Callable[[View], None]
    ) -> View:
        """What several nodes of a split use: filled at the first, in memory of its own."""
        if key not in self._shared:
            made = self._shared[key] = self._at(
                self.place + self.above + self.lasting, shape, number
            )
            self.lasting += _room(made)
            fill(made)
        return self._shared[key]

    def constant(self, key: Hashable, number: int, values: np.ndarray) -> View:
        """Values that are the same for all programs of a device."""
        ready = np.ascontiguousarray(values, _NUMPY[number])
        address = self.kept((key, number), ready) if self.kept else 0
        return self._at(address, values.shape, number)

    @staticmethod
    def _at(place: int, shape: Ints, number: int) -> View:
        made = View(number, shape, contiguous(shape), place)
        return attrs.evolve(made, elements=made.size)

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
        return self._before_rounding(t, number) or self.cast(self.stored(t), number)

    def _before_rounding(self, t: Tensor, number: int) -> View | None:
        """What is still there of a result in float32, whose tensor is narrower."""
        if self.wide is None or number != FLOAT or t.storage is not self.wide[0]:
            return None
        if self.divided(t):
            return None
        size = t.dtype.block_bytes
        strides, offset = tuple(n // size for n in t.strides), t.offset // size
        return attrs.evolve(self.wide[1], shape=t.shape, strides=strides, offset=offset)

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

    def result(self, node: Tensor, number: int) -> View:
        """Where a result of that dtype goes: into the node, or beside it until `finish`."""
        out = self.view(node)
        return out if out.type == number else self.temporary(out.shape, number)

    def finish(self, node: Tensor, result: View) -> None:
        out = self.view(node)
        if out.type != result.type:
            self.emit("Cast", result, out.type, out)

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


def _room(view: View) -> int:
    """Bytes that a dense window takes, with all its padding."""
    return -(-padded(view.size * BYTES[view.type]) // ALIGNMENT) * ALIGNMENT
