"""From nodes to launches. What cannot be lowered is `Unsupported`, with the reason.

The same code answers whether a node is supported: there it has no memory, and its launches are
dropped. What a node needs beside its inputs and result lies in scratch memory, which the next
node uses again: the stream runs them one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import attrs
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
    NAMES,
    Argument,
    Ints,
    Unsupported,
    View,
    Views,
    contiguous,
    window,
)

Missing = Callable[[str], str | None]


@attrs.define(eq=False)
class Lowering:
    """Makes the launches of nodes, one node after the other."""

    chip: Chip
    missing: Missing  # why an operator cannot be called
    slots: Mapping[Tensor, Slot] | None = None  # none: only asked
    place: int = 0  # of the scratch memory
    launches: list[Launch] = attrs.field(factory=list)
    above: int = 0  # bytes of scratch memory that nodes need; what lasts lies above them
    peak: int = 0  # what they turned out to need
    lasting: int = 0  # bytes that last to the end of the split
    _used: int = 0
    _shared: dict[Hashable, View] = attrs.field(factory=dict)
    _node: Tensor | None = None

    def begin(self, node: Tensor) -> None:
        """What follows is for this node, and what was before needs no scratch memory more."""
        self._node, self._used = node, 0

    # memory

    def view(self, t: Tensor) -> View:
        """A tensor where it lies."""
        if self.slots is None:
            return self._allowed(window(t, 0))
        slot = self.slots[t.storage]
        view = window(t, slot.buffer.handle + slot.offset)
        if t.storage.role is not Role.STATE:
            return view
        whole = t.storage.shape[0]
        rows = rows_of(t.storage, slot.buffer.nbytes)  # that have memory
        elements = view.elements // whole * rows
        shape = (rows, *t.shape[1:]) if t.shape[0] == whole else t.shape
        return attrs.evolve(view, shape=shape, elements=elements)

    def _allowed(self, view: View) -> View:
        if view.type == FLOAT and not self.chip.float32:
            msg = f"a {self.chip.name} computes no f32"
            raise Unsupported(msg)
        return view

    def temporary(self, shape: Ints, number: int) -> View:
        """Scratch memory, to the end of this node."""
        view = View(number, shape, contiguous(shape), self.place + self._used)
        self._used += _room(view)
        self.peak = max(self.peak, self._used)
        return attrs.evolve(view, elements=view.size)

    def once(
        self, key: Hashable, shape: Ints, number: int, fill: Callable[[View], None]
    ) -> View:
        """What several nodes of a split use: filled at the first, in memory of its own."""
        if key not in self._shared:
            place = self.place + self.above + self.lasting
            made = View(number, shape, contiguous(shape), place)
            made = self._shared[key] = attrs.evolve(made, elements=made.size)
            self.lasting += _room(made)
            fill(made)
        return self._shared[key]

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
        return (
            self.view(t) if t.dtype.name == NAMES[number] else self.cast(self.stored(t), number)
        )

    def stored(self, t: Tensor) -> View:
        """A tensor that is only moved or cast, in whatever dtype."""
        return window(t, 0) if self.slots is None else self.view(t)

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
