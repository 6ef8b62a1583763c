"""Cuts the rows of large matrices over several devices of one backend.

Where the user has named such devices first, each holds and multiplies a share of the rows; the
first of them joins the results.
"""

from __future__ import annotations

import itertools

import attrs

from umbel.graph import Builder, Role, Tensor
from umbel.plan.place import Placer
from umbel.plan.target import Target

LEAST = 1 << 20  # values of a matrix that is worth a copy of its input and its results


def shares(node: Tensor, placer: Placer) -> list[tuple[Target, Tensor]]:
    """The parts of a matrix product and who computes them; none where it stays whole."""
    backend = placer.targets[0].device.backend
    together = itertools.takewhile(lambda t: t.device.backend == backend, placer.targets[:-1])
    targets, w = list(together), node.inputs[0]
    large = w.role is Role.WEIGHT and len(w.shape) == 2 and w.size >= LEAST
    if len(targets) < 2 or not large or node.op is not placer.ops["mul_mat"]:
        return []
    cuts = [w.shape[0] * i // len(targets) for i in range(len(targets) + 1)]
    parts = [_part(node, *span) for span in itertools.pairwise(cuts)]
    claims = [placer.judge(p, t).form for p, t in zip(parts, targets, strict=True)]
    return [] if any(claim != "" for claim in claims) else [*zip(targets, parts, strict=True)]


def _part(node: Tensor, start: int, stop: int) -> Tensor:
    w, x = node.inputs
    where = {"of": w.name, "rows": slice(start, stop)}
    rows = Tensor(
        (stop - start, w.shape[1]), w.dtype, w.role, f"{w.name}[{start}:{stop}]", attrs=where
    )
    shape = (*node.shape[:-1], stop - start)
    return attrs.evolve(node, shape=shape, inputs=(rows, x), strides=())


def join(parts: list[Tensor], placer: Placer) -> tuple[list[Tensor], Target]:
    """The nodes that put the parts together, and who computes them."""
    builder = Builder(placer.ops)
    axis = len(parts[0].shape) - 1
    for part in parts[1:]:
        builder.concat(builder.nodes[-1] if builder.nodes else parts[0], part, axis=axis)
    first, last = placer.targets[0], placer.targets[-1]
    claims = [placer.judge(node, first).form for node in builder.nodes]
    return builder.nodes, last if None in claims else first
