"""The profile's rules: what can be repaired is, what cannot is named.

Repairs: `rsqrt` and `neg` where they are refused; convolutions of more channels than allowed,
cut in pieces (16); a matmul whose summed axis is no multiple of what the profile says, padded
with zeros; float32 inputs and outputs where there are none. What is joined again is padded and
added: `concat` is refused (1). Sums of pieces have another order than before, so results agree
to rounding. The last axis of surfaces is padded where programs are cut (`programs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import numpy as np
from umbel.errors import DeviceError

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.ir import FP16, FP32, Graph, Node, Weight, rebuilt
from umbel_ane.compiler.passes.dead import window
from umbel_ane.profile import Profile

MIL_NAMES = {"conv1x1": "conv", "slice": "slice_by_size", "neg": "mul"}


def constraints(graph: Graph, profile: Profile) -> Graph:
    build = IRBuilder()

    def change(node: Node) -> Node:
        build.name = node.name
        repair = _REPAIRS.get(node.op)
        return node if repair is None else repair(build, node, profile)

    changed = rebuilt(graph, change)
    return Graph({name: _output(build, n, profile) for name, n in changed.outputs.items()})


def check(graph: Graph, profile: Profile) -> None:
    """DeviceError for the first node that breaks a rule and could not be repaired."""
    for node in graph.nodes():
        if reason := broken(node, profile):
            label = f" ({node.name})" if node.name else ""
            msg = f"the Neural Engine cannot run an operation of this model{label}"
            do = "run this part on another device"
            where = f"{node!r}, profile {profile.name}"
            raise DeviceError(msg, where=where, got=reason, do=do)


def broken(node: Node, profile: Profile) -> str | None:
    """Which rule a node breaks."""
    name = MIL_NAMES.get(node.op, node.op)
    if name in profile.refused:
        return f"the operation {name} is refused"
    if max(node.shape) > profile.max_dim:
        return f"an axis of {max(node.shape)}, at most {profile.max_dim}"
    if node.op == "conv1x1":
        channels = max(node.inputs[1].shape[:2])
        if channels > profile.max_channels:
            return f"a convolution of {channels} channels, at most {profile.max_channels}"
    if node.op == "matmul" and _inner(node) % profile.inner_multiple:
        return f"a summed axis of {_inner(node)}, no multiple of {profile.inner_multiple}"
    if node.op == "const" and node.weight and node.weight.palette and not profile.palettes:
        return "a weight with a palette"
    if node.op == "input" and node.dtype == FP32 and not profile.fp32_io:
        return "a float32 input"
    return None


# repairs


def _input(build: IRBuilder, node: Node, profile: Profile) -> Node:
    if node.dtype != FP32 or profile.fp32_io:
        return node
    return build.cast(build.input(node.name, node.shape, FP16), FP32)


def _output(build: IRBuilder, node: Node, profile: Profile) -> Node:
    if node.dtype != FP32 or profile.fp32_io:
        return node
    return build.cast(node, FP16)


def _rsqrt(build: IRBuilder, node: Node, profile: Profile) -> Node:
    return build.pow(node.inputs[0], -0.5) if "rsqrt" in profile.refused else node


def _neg(build: IRBuilder, node: Node, profile: Profile) -> Node:
    return build.mul(node.inputs[0], -1.0) if "neg" in profile.refused else node


def _conv(build: IRBuilder, node: Node, profile: Profile) -> Node:
    x, w = node.inputs
    most = min(profile.max_channels, profile.max_dim)
    outer, inner = w.shape[:2]
    if inner > most:
        total: Node | None = None
        for begin, n in pieces(inner, most):
            size = [x.shape[0], n, *x.shape[2:]]
            some = build.slice(x, (0, begin, 0, 0), size)
            part = _conv(build, build.conv1x1(some, part_of(build, w, 1, begin, n)), profile)
            total = part if total is None else build.add(total, part)
        assert total is not None
        return total
    if outer > most and outer <= profile.max_dim:
        parts = [
            build.conv1x1(x, part_of(build, w, 0, begin, n)) for begin, n in pieces(outer, most)
        ]
        return build.joined(parts, 1)
    return node


def _channels(build: IRBuilder, node: Node, profile: Profile) -> Node:
    """Some channels of a convolution whose result has more than any axis may have: only these
    are computed."""
    x = node.inputs[0]
    if x.op != "conv1x1" or x.shape[1] <= profile.max_dim:
        return node
    begin, size = window(node)
    some = part_of(build, x.inputs[1], 0, begin[1], size[1])
    made = build.conv1x1(x.inputs[0], some)
    begin = (begin[0], 0, *begin[2:])
    return build.slice(_conv(build, made, profile), begin, size)


def _matmul(build: IRBuilder, node: Node, profile: Profile) -> Node:
    more = -_inner(node) % profile.inner_multiple
    if not more:
        return node
    (x, y), flags = node.inputs, dict(node.attrs)
    x = _longer(build, x, 2 if flags["transpose_x"] else 3, more)
    y = _longer(build, y, 3 if flags["transpose_y"] else 2, more)
    return build.matmul(x, y, **flags)


def _longer(build: IRBuilder, x: Node, axis: int, more: int) -> Node:
    return build.pad(x, (0, 0, 0, 0), [more if a == axis else 0 for a in range(4)])


def _inner(node: Node) -> int:
    """The length of the axis that a matmul sums over."""
    return node.inputs[0].shape[2 if node.attrs["transpose_x"] else 3]


def pieces(total: int, most: int) -> list[tuple[int, int]]:
    """(begin, length) of as few pieces as possible, of nearly equal length, multiples of 16
    where that makes no more of them."""
    count = -(-total // most)
    step = -(-total // count)
    step = min(-(-step // 16) * 16, most)
    return [(begin, min(step, total - begin)) for begin in range(0, total, step)]


def part_of(build: IRBuilder, w: Node, axis: int, begin: int, n: int) -> Node:
    """Rows or columns of a weight [out, in, 1, 1]: a weight of its own, read when needed."""
    if n == w.shape[axis] or w.weight is None:
        where = [slice(None)] * 4
        size = [n if a == axis else m for a, m in enumerate(w.shape)]
        return build.slice(w, [begin if a == axis else 0 for a in range(4)], size)
    whole, shape = w.weight, w.shape
    where = [slice(None)] * 4
    where[axis] = slice(begin, begin + n)

    def read() -> np.ndarray:
        values: np.ndarray = np.asarray(whole.read()).reshape(shape)[tuple(where)]
        return values

    size = [n if a == axis else m for a, m in enumerate(shape)]
    part = Weight(("part", whole.key, axis, begin, n), read)
    node = build.weight(part, tuple(size), w.dtype)  # type: ignore[arg-type]
    return attrs.evolve(node, name=w.name)


Repair = Callable[[IRBuilder, Node, Profile], Node]
_REPAIRS: Mapping[str, Repair] = {
    "input": _input,
    "rsqrt": _rsqrt,
    "neg": _neg,
    "conv1x1": _conv,
    "slice": _channels,
    "split": _channels,
    "matmul": _matmul,
}
