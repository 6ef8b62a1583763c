"""The programs of a split: as few as the profile's limits allow, cut where little crosses.

Dispatches cost time and compiles are counted (constraints 5, 15), so that a whole model is one
program where weights, files and operations allow it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.cutting import cut
from umbel_ane.compiler.emit import Emitted, emit, port_name
from umbel_ane.compiler.estimate import Counts, counts
from umbel_ane.compiler.ir import Graph, Node
from umbel_ane.compiler.lowered import Lowered
from umbel_ane.compiler.palettes import palettised
from umbel_ane.compiler.passes import run
from umbel_ane.compiler.ports import Between, Port, Source, Watched
from umbel_ane.compiler.watch import watched
from umbel_ane.compiler.weights import KINDS
from umbel_ane.mil.text import write
from umbel_ane.profile import Profile


@attrs.define(eq=False)
class Compiled:
    """One program: everything that a driver and whoever fills its surfaces need of it.

    Its text is made when it is first asked for. Weights are handed over and not kept: asked
    for again they are read again.
    """

    name: str
    where: str  # what of the model it computes, for messages
    graph: Graph  # inputs and outputs under the ports' names: what a canary compares with
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    profile: Profile
    version: str | None = None
    warnings: tuple[str, ...] = ()
    _emitted: Emitted | None = attrs.field(default=None, init=False, repr=False)
    _text: bytes = attrs.field(default=b"", init=False, repr=False)
    _counts: Counts | None = attrs.field(default=None, init=False, repr=False)

    @property
    def emitted(self) -> Emitted:
        if self._emitted is None:
            names = [p.name for p in self.inputs], [p.name for p in self.outputs]
            self._emitted = emit(self.graph, *names, self.profile, self.version)
        return self._emitted

    @property
    def text(self) -> bytes:
        self._text = self._text or write(self.emitted.program).encode()
        return self._text

    @property
    def weights(self) -> Mapping[str, bytes]:
        """The contents of each weight file by its path in the text."""
        return {path: file.read() for path, file in self.emitted.weights.items()}

    @property
    def key(self) -> str:
        """The same in every process for the same program with the same weights."""
        return hashlib.blake2b(self.text, digest_size=16).hexdigest()

    @property
    def input_bytes(self) -> int:
        """Of every surface that it reads (constraints 4, 18)."""
        return self._surface(self.inputs)

    @property
    def output_bytes(self) -> int:
        """Of every surface that it writes (constraints 2, 4)."""
        return self._surface(self.outputs)

    @property
    def counts(self) -> Counts:
        if self._counts is None:
            self._counts = counts(self.graph, self.profile)
        return self._counts

    def _surface(self, ports: Sequence[Port]) -> int:
        return max([self.profile.min_surface, *map(port_bytes, ports)])


def port_bytes(port: Port) -> int:
    """What its values take, packed."""
    return math.prod(port.shape) * np.dtype(KINDS[port.dtype]).itemsize


def compile_split(
    lowered: Lowered, profile: Profile, *, weights: str = "fp16", version: str | None = None
) -> list[Compiled]:
    """The programs of a split, in the order in which they run.

    `weights` is one of `palettes.CHOICES`. `version` names the weights: with it none is read to
    name files (`emit`).
    """
    passed = run(lowered.graph, profile)
    if weights != "fp16" and profile.palettes:
        passed = attrs.evolve(passed, graph=palettised(passed.graph, weights))
    elif weights != "fp16":
        refused = f"profile {profile.name} takes no palettes: weights stay fp16"
        passed = attrs.evolve(passed, warnings=(*passed.warnings, refused))
    pieces = cut(passed.graph, profile)
    cutter = _Cutter(passed.graph, lowered, profile, pieces)
    made = []
    for number, nodes in enumerate(pieces):
        graph, inputs, outputs = cutter.piece(number, nodes)
        labels = [n.name for n in nodes if n.name] or [""]
        where = labels[0] if labels[0] == labels[-1] else f"{labels[0]} to {labels[-1]}"
        name = f"program {number + 1} of {len(pieces)}"
        warned = passed.warnings if not number else ()
        made.append(Compiled(name, where, graph, inputs, outputs, profile, version, warned))
    return made


@attrs.define(eq=False)
class _Cutter:
    """Makes graphs of their own out of stretches of one."""

    graph: Graph
    lowered: Lowered
    profile: Profile
    pieces: Sequence[Sequence[Node]]
    _home: dict[Node, int] = attrs.field(factory=dict, init=False)  # the piece of a node
    _crossing: dict[Node, int] = attrs.field(factory=dict, init=False)  # its number

    def __attrs_post_init__(self) -> None:
        for number, nodes in enumerate(self.pieces):
            for node in nodes:
                self._home[node] = number
                for x in node.inputs:
                    if self._home.get(x, number) != number:
                        self._crossing.setdefault(x, len(self._crossing))

    def piece(
        self, number: int, nodes: Sequence[Node]
    ) -> tuple[Graph, tuple[Port, ...], tuple[Port, ...]]:
        build = IRBuilder()
        inside = set(nodes)
        wanted = self._outputs(number, nodes)
        read = [x for node in nodes for x in node.inputs] + [node for node, _ in wanted]
        outer = list(dict.fromkeys(x for x in read if x not in inside and x.op != "const"))
        inputs, made = [], dict[Node, Node]()
        for i, node in enumerate(outer):
            name = port_name("a", i, len(outer))
            leaf = build.input(name, self._padded(node), node.dtype)
            inputs.append(Port(name, leaf.shape, self._source(node), node.dtype))
            made[node] = build.slice(leaf, (0, 0, 0, 0), node.shape)
        for node in nodes:
            given = tuple(made.get(x, x) for x in node.inputs)
            made[node] = attrs.evolve(node, inputs=given)
        if self.profile.drops_nan and (end := watched(build, [made[n] for n in nodes])):
            made[end] = end
            wanted = [*wanted, (end, Watched())]
        outputs, ends = [], {}
        for i, (node, source) in enumerate(wanted):
            name = port_name("z", i, len(wanted))
            shape = self._padded(node)
            after = [m - n for m, n in zip(shape, node.shape, strict=True)]
            ends[name] = build.pad(made.get(node, node), (0, 0, 0, 0), after)
            outputs.append(Port(name, shape, source, node.dtype))
        return Graph(ends), tuple(inputs), tuple(outputs)

    def _outputs(self, number: int, nodes: Sequence[Node]) -> list[tuple[Node, Source]]:
        """Outputs of the split that this piece computes, then what later ones read. Outputs
        that are inputs of the split go with the last piece."""
        last = len(self.pieces) - 1
        found: list[tuple[Node, Source]] = [
            (node, self.lowered.outputs[name])
            for name, node in self.graph.outputs.items()
            if self._home.get(node, last) == number
        ]
        found += [(n, Between(self._crossing[n])) for n in nodes if n in self._crossing]
        return found

    def _source(self, node: Node) -> Source:
        if node.op == "input":
            return self.lowered.inputs[node.name]
        return Between(self._crossing[node])

    def _padded(self, node: Node) -> tuple[int, int, int, int]:
        """The shape of a port for it: the last axis a multiple of what the profile says."""
        b, c, h, s = node.shape
        step = self.profile.spatial_multiple
        return b, c, h, -(-s // step) * step
