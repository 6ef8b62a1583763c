"""Which neighbours in a split become one step: a norm, the products that read it, an addition.

A fused step runs where the last of its nodes stood. Memory was laid out for the nodes one by
one, so two things that never lived together may share addresses: whoever writes where another
part of the step still reads stays apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

import attrs
from umbel.gguf.types import F32
from umbel.graph import Tensor

Range = tuple[int, int]  # addresses [from, to)
GLU = ("reglu", "swiglu", "geglu", "geglu_erf", "geglu_quick")
MOST = 3  # products of one step


@attrs.frozen(eq=False)
class Product:
    """x W^T, and what is added to it."""

    node: Tensor  # the mul_mat
    out: Tensor
    add: Tensor | None = None


@attrs.frozen(eq=False)
class Linear:
    """Products with the same x, which may be normed first; two may be gate and up of a unit."""

    x: Tensor
    products: tuple[Product, ...]
    norm: Tensor | None = None  # the rms_norm node, whose input is x then
    glu: Tensor | None = None

    @property
    def outs(self) -> tuple[Tensor, ...]:
        return (self.glu,) if self.glu is not None else tuple(p.out for p in self.products)


@attrs.frozen(eq=False)
class Turned:
    """A kv_attention whose keys are turned as they are stored."""

    attention: Tensor
    rope: Tensor


@attrs.frozen(eq=False)
class Fuser:
    """Finds them in the computed nodes of a split, in order."""

    nodes: Sequence[Tensor]
    wanted: Collection[Tensor]  # storages that others read
    form: Callable[[Tensor], int | None]  # of a packed weight; None: it is none
    place: Callable[[Tensor], Range]  # of a tensor's storage
    users: Counter[Tensor] = attrs.field(init=False)

    @users.default
    def _count(self) -> Counter[Tensor]:
        return Counter(s for n in self.nodes for s in {t.storage for t in n.inputs})

    def items(self) -> Iterator[Tensor | Linear | Turned]:
        i = 0
        while i < len(self.nodes):
            if self._turns_keys(i):
                yield Turned(self.nodes[i + 1], self.nodes[i])
                i += 2
                continue
            linear, taken = self._linear(i)
            yield linear or self.nodes[i]
            i += taken

    def _turns_keys(self, i: int) -> bool:
        """Whether node i is a rope of nothing but the keys that the next node stores."""
        rope, *others = self.nodes[i : i + 2]
        names = [node.op.name for node in (rope, *others) if node.op is not None]
        if names != ["rope", "kv_attention"]:
            return False
        key = others[0].inputs[1]
        whole = key.storage is rope and key.size == rope.size and key.is_contiguous
        alone = sum(t.storage is rope for t in others[0].inputs) == 1
        return whole and alone and self._only(rope, 1)

    def _linear(self, i: int) -> tuple[Linear | None, int]:
        """The fused step that begins at node i, and how many nodes it takes."""
        norm = self.nodes[i] if _is_norm(self.nodes[i]) else None
        products, taken = self._products(i + 1 if norm else i, norm)
        if not products:
            return None, 1
        if norm is None:
            linear = Linear(products[0].node.inputs[1], products)
        elif self._only(norm, sum(norm in p.node.inputs for p in products)):
            linear, taken = Linear(norm.inputs[0], products, norm), taken + 1
        else:
            return None, 1
        return self._with_glu(linear, i, taken)

    def _products(self, i: int, x: Tensor | None) -> tuple[tuple[Product, ...], int]:
        """Products with one x, from node i on."""
        found: list[Product] = []
        start = i
        while i < len(self.nodes) and len(found) < MOST:
            node = self.nodes[i]
            if node.op is None or node.op.name != "mul_mat" or not self._fits(node, x, found):
                break
            product, taken = self._product(i)
            if any(self._in_the_way(product, other) for other in found):
                break
            found.append(product)
            x, i = node.inputs[1], i + taken
        return tuple(found), i - start

    def _fits(self, node: Tensor, x: Tensor | None, found: Sequence[Product]) -> bool:
        w, given = node.inputs
        form = self.form(w)
        same = not found or form == self.form(found[0].node.inputs[0])
        return form is not None and same and (x is None or given is x)

    def _product(self, i: int) -> tuple[Product, int]:
        """The product at node i, with what the next node adds to it."""
        node = self.nodes[i]
        after = self.nodes[i + 1] if i + 1 < len(self.nodes) else node
        if after.op is None or after.op.name != "add" or not self._only(node, 1):
            return Product(node, node), 1
        one, two = after.inputs
        other = two if one is node else one
        fits = node in (one, two) and other.storage is not node and _addable(other, node)
        fits = fits and after.shape == node.shape and after.is_contiguous
        return (Product(node, after, other), 2) if fits else (Product(node, node), 1)

    def _with_glu(self, linear: Linear, i: int, taken: int) -> tuple[Linear, int]:
        after = self.nodes[i + taken] if i + taken < len(self.nodes) else None
        if after is None or after.op is None or after.op.name not in GLU:
            return linear, taken
        outs = tuple(p.out for p in linear.products)
        plain = not any(p.add for p in linear.products) and after.is_contiguous
        if after.inputs == outs and plain and all(self._only(out, 1) for out in outs):
            return attrs.evolve(linear, glu=after), taken + 1
        return linear, taken

    def _only(self, t: Tensor, users: int) -> bool:
        """Whether nobody else reads it."""
        return self.users[t.storage] == users and t.storage not in self.wanted

    def _in_the_way(self, one: Product, other: Product) -> bool:
        """Whether one of them writes where the other reads or writes."""
        return overlap([self.place(one.out)], self._touched(other)) or overlap(
            [self.place(other.out)], self._touched(one)
        )

    def _touched(self, p: Product) -> list[Range]:
        return [self.place(t) for t in (p.out, p.add) if t is not None]


def _is_norm(node: Tensor) -> bool:
    """An rms_norm of whole rows, with a weight for each value."""
    if node.op is None or node.op.name != "rms_norm" or len(node.inputs) != 2:
        return False
    x, weight = node.inputs
    return x.is_contiguous and weight.shape == x.shape[-1:]


def _addable(t: Tensor, node: Tensor) -> bool:
    """A bias for each column, or as many rows."""
    return t.dtype is F32 and t.is_contiguous and t.shape in (node.shape, node.shape[-1:])


def overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)
