"""Which nodes of a split become one launch or few, and in which order nodes are lowered.

Patterns are looked for from each node on. Nodes that are fused are neighbours, so nothing runs
between them; what lies between their ends is read by none but them. The plan may have given a
result the memory of what died within: then the result goes elsewhere (`Lowering.apart`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
from umbel.graph import Role, Tensor
from umbel.hookspecs import SplitGraph

from umbel_cann.lowering import Lowering
from umbel_cann.ops.norms import plain, wide
from umbel_cann.ops.products import factors, rows_of
from umbel_cann.ops.rope import rope
from umbel_cann.views import FLOAT, FLOAT16, KEEP, ONE, type_of

Lower = Callable[[Lowering], None]


@attrs.frozen(eq=False)
class Reads:
    """Who reads what, among the nodes of a split that compute."""

    nodes: tuple[Tensor, ...]
    last: Mapping[Tensor, int]  # of a storage that nobody reads after the split, by which node
    readers: Mapping[Tensor, set[Tensor]]

    @classmethod
    def of(cls, graph: SplitGraph) -> Reads:
        nodes = tuple(n for n in graph.nodes if n.op and not n.op.view and n.size)
        last: dict[Tensor, int] = {}
        readers: dict[Tensor, set[Tensor]] = {}
        for i, node in enumerate(nodes):
            for t in (node, *node.inputs):
                last[t.storage] = i
            for t in node.inputs:
                readers.setdefault(t.storage, set()).add(node)
        for t in graph.outputs:
            last.pop(t.storage, None)
        return cls(nodes, last, readers)

    def within(self, ended: Sequence[Tensor], group: Sequence[Tensor]) -> bool:
        """Whether nobody but the group reads these."""
        return all(t in self.last and self.readers.get(t, set()) <= {*group} for t in ended)


def pairs(reads: Reads, to: Lowering) -> dict[Tensor, tuple[Tensor, Tensor]]:
    """Products that a gated unit takes, by either: they are laid out beside each other."""
    found: dict[Tensor, tuple[Tensor, Tensor]] = {}
    for node in reads.nodes:
        if node.op and node.op.name in ("swiglu", "geglu"):
            one, two = (t.storage for t in node.inputs)
            both = all(t.op and t.op.name == "mul_mat" and t in reads.last for t in (one, two))
            fresh = one is not two and not {one, two} & found.keys()
            alike = both and one.shape == two.shape
            if fresh and alike and _product_type(one, to) == _product_type(two, to):
                found[one] = found[two] = one, two
    return found


def _product_type(made: Tensor, to: Lowering) -> int:
    return to.product_type(made.inputs[0])


def rounded(reads: Reads, to: Lowering) -> frozenset[Tensor]:
    """Results that nobody reads but products of float16."""

    def halves(reader: Tensor, t: Tensor) -> bool:
        if reader.op is None or reader.op.name != "mul_mat":
            return False
        return reader.inputs[0].storage is not t and _product_type(reader, to) == FLOAT16

    read = [t for t in reads.nodes if t in reads.last and t in reads.readers]
    return frozenset(t for t in read if all(halves(r, t) for r in reads.readers[t]))


def steps(reads: Reads, to: Lowering) -> Iterator[tuple[int, tuple[Tensor, ...], Lower | None]]:
    """What is lowered in turn: some nodes, which one comes first, and their launches all at
    once where they can be fused."""
    i = 0
    while i < len(reads.nodes):
        found = _fused(reads, i, to)
        count, lower = found or (1, None)
        yield i, reads.nodes[i : i + count], lower
        i += count


def _fused(reads: Reads, i: int, to: Lowering) -> tuple[int, Lower] | None:
    for pattern in (_add_rms_norm, _biased, _rope):
        if found := pattern(reads, i, to):
            return found
    return None


def _named(reads: Reads, i: int, *names: str) -> tuple[Tensor, ...]:
    """The nodes from there on, if they are of these operations."""
    nodes = reads.nodes[i : i + len(names)]
    return nodes if tuple(n.op.name for n in nodes if n.op) == names else ()


def _add_rms_norm(reads: Reads, i: int, to: Lowering) -> tuple[int, Lower] | None:
    """A sum and its norm; others may read the sum too."""
    nodes = _named(reads, i, "add", "rms_norm")
    if not nodes or to.why_not("AddRmsNorm", type_of(nodes[1].dtype)):
        return None
    both, normed = nodes
    x, *weight = normed.inputs
    same = both.inputs[0].shape == both.inputs[1].shape and both.dtype is normed.dtype
    whole = x.storage is both and x.shape[-1] == both.shape[-1] and x.size == both.size
    whole = whole and x.is_contiguous and not any(map(to.divided, both.inputs))
    if not (same and whole and weight and plain(x, weight[0]) and wide(to, normed)):
        return None

    def lower(to: Lowering) -> None:
        number = type_of(both.dtype)
        a, b = (to.dense(to.operand(t, number)) for t in both.inputs)
        gamma = to.operand(weight[0], number)
        root = to.temporary((*both.shape[:-1], 1), FLOAT)
        total = to.apart(both, a, b)
        out = to.apart(normed, a, b)
        y = out.reshaped(*both.shape)
        to.emit("AddRmsNorm", a, b, gamma, normed.attrs["eps"], y, root, total)
        to.finish(both, total)
        to.finish(normed, out)

    return 2, lower


def _biased(reads: Reads, i: int, to: Lowering) -> tuple[int, Lower] | None:
    """A product and a bias, where that is added in the dtype of the product."""
    nodes = _named(reads, i, "mul_mat", "add")
    if not nodes or to.why_not("Addmm"):
        return None
    made, total = nodes
    (w, x), (y, bias) = made.inputs, total.inputs
    long = 0 < to.chip.columns("Mm", x.size // x.shape[-1]) < x.shape[-1]  # the same kernel
    fits = y is made and plain(y, bias) and not long
    known = bias.storage.role is Role.WEIGHT and len(w.shape) == 2 and not w.dtype.quantised
    number = to.product_type(w)
    if not (fits and known and type_of(total.dtype) == number and made not in to.pairs):
        return None
    if to.divided(x):
        return None
    if not reads.within((made,), nodes):
        return None

    def lower(to: Lowering) -> None:
        rows = rows_of(to, x, number)
        turned, added = factors(to, to.operand(w, number)), to.operand(bias, number)
        out = to.apart(total, rows)
        flat = out.reshaped(rows.shape[0], turned.shape[-1])
        to.emit("Addmm", added, rows, turned, ONE, ONE, flat, KEEP)
        to.finish(total, out)

    return 2, lower


def _rope(reads: Reads, i: int, to: Lowering) -> tuple[int, Lower] | None:
    found = rope(reads.nodes[i : i + 9], to)
    if found is None or to.divided(found.x):
        return None
    if not reads.within(found.nodes[:-1], found.nodes):
        return None
    return len(found.nodes), found.lower
