"""Splits of a plan on the Neural Engine: each made once, then filled, evaluated and read.

A split is lowered, cut into programs and bound to surfaces. What one program leaves another
reads in the same surface; only what enters or leaves the split is copied.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakSet

import attrs
import numpy as np
from umbel.errors import CancelledError, DeviceError
from umbel.hookspecs import Buffer, SplitGraph

from umbel_ane.compiler.ir import Shape4
from umbel_ane.compiler.ports import Between, Port, Source, Watched, Whole
from umbel_ane.compiler.programs import Compiled
from umbel_ane.drivers import Request, Surface
from umbel_ane.memory import Changes
from umbel_ane.runtime.feeds import Feed, HeldFeed, Slots, Target, feed, nbytes, window
from umbel_ane.runtime.programs import Loaded, Programs
from umbel_ane.runtime.surfaces import Pool

log = logging.getLogger("umbel")

# compile(graph, held): programs for a split, with its weights as their inputs if `held`
Compile = Callable[[SplitGraph, bool], Sequence[Compiled]]


@attrs.frozen(eq=False)
class Outlet:
    """Where the values of an output surface go in the core's memory."""

    target: Target  # in the surface
    into: np.ndarray  # turned likewise

    def empty(self) -> bool:
        """Copies the values; whether all of them are finite."""
        with self.target.surface.lock(read_only=True) as memory:
            np.copyto(self.into, self.target.within(memory), casting="same_kind")
        return bool(np.isfinite(self.into).all())


@attrs.frozen(eq=False)
class Watch:
    """An output surface that is only looked at."""

    target: Target

    def empty(self) -> bool:
        """Whether its values are finite."""
        with self.target.surface.lock(read_only=True) as memory:
            return bool(np.isfinite(self.target.within(memory)).all())


@attrs.frozen(eq=False)
class Evaluation:
    """One program in a split: what fills its inputs, and what it is given."""

    loaded: Loaded
    request: Request
    feeds: tuple[Feed, ...]
    outlets: tuple[Outlet | Watch, ...]


@attrs.define(eq=False)
class Split:
    """A split that can run."""

    evaluations: tuple[Evaluation, ...]
    surfaces: tuple[Surface, ...]
    held: bool  # its weights are inputs
    changes: int = 0  # of weights that it has heeded

    @property
    def programs(self) -> list[Loaded]:
        return [e.loaded for e in self.evaluations]

    @property
    def weights(self) -> list[HeldFeed]:
        feeds = (each for e in self.evaluations for each in e.feeds)
        return [each for each in feeds if isinstance(each, HeldFeed)]


@attrs.define(eq=False)
class Splits:
    """Those of one device, by the split's uid; the ones used last are kept."""

    compile: Compile
    programs: Programs
    pool: Pool
    changes: Changes
    cancelled: bool = attrs.field(default=False, init=False)  # set from any thread
    planning: bool = attrs.field(default=False, init=False)  # nothing is compiled ahead
    made: OrderedDict[int, Split] = attrs.field(factory=OrderedDict, init=False)
    _told: set[str] = attrs.field(factory=set, init=False)  # warnings
    _lossy: WeakSet[Buffer] = attrs.field(factory=WeakSet, init=False)

    def ready(self, graph: SplitGraph, *, held: bool | None = None) -> Split:
        """The split, made if it is not there; what was used last is dropped last."""
        split = self.made.pop(graph.uid, None)
        if split is None:
            split = self._make(graph, self._shared(graph) if held is None else held)
        self.made[graph.uid] = split
        return split

    def prepare(self, graph: SplitGraph) -> None:
        """Makes it at load, unless somebody only wants to know what it would be."""
        if not self.planning:
            self.ready(graph)

    def run(self, graph: SplitGraph) -> None:
        split = self.ready(graph)
        for one in split.evaluations:
            if self.cancelled:
                msg = "the step was cancelled"
                raise CancelledError(msg)
            for each in one.feeds:
                each.fill()
            one.loaded.dispatches += 1
            one.loaded.evaluate(one.request)
            finite = [outlet.empty() for outlet in one.outlets]
            if not all(finite):
                self._lost(one.loaded, graph)

    def _lost(self, loaded: Loaded, graph: SplitGraph) -> None:
        """A model whose values leave float16's range would write nonsense; told once for each
        model, which is known by the memory that its steps share."""
        memory = graph.slots[graph.outputs[0]].buffer
        if memory not in self._lossy:
            self._lossy.add(memory)
            told = "%s gave values that are not finite, in %s: float16 cannot hold this model"
            log.warning(told, self.programs.device, loaded.program.where)

    def forget(self, uid: int) -> None:
        if (split := self.made.pop(uid, None)) is not None:
            self.programs.give(split.programs)
            self.pool.give(split.surfaces)
            if not self.made:  # another model is told of its own
                self._told.clear()
            if self.pool.idle > self.pool.taken:  # of a model that is closed, perhaps
                self.pool.trim()

    def clear(self) -> None:
        while self.made:
            self.forget(next(iter(self.made)))

    def _shared(self, graph: SplitGraph) -> bool:
        """With --check each node is a split: more programs than a process may compile, unless
        nodes that are alike share one, and get their weights as inputs."""
        driver, single = self.programs.driver, len(graph.nodes) == 1
        return single and driver.compiles >= (driver.profile.compile_limit or 1 << 30) // 3

    def _make(self, graph: SplitGraph, held: bool) -> Split:
        changes = self.changes.n
        compiled = self.compile(graph, held)
        for warning in (w for c in compiled for w in c.warnings):
            if warning not in self._told:
                log.warning("of the programs for %s: %s", self.programs.device, warning)
                self._told.add(warning)
        while self.made and self.programs.room < len(compiled):
            self.forget(next(iter(self.made)))
        if self.programs.room < len({c.text for c in compiled} - self.programs.loaded.keys()):
            msg = "a step needs more programs than a process may compile"
            do = "take a smaller --ubatch, -O ane.weights=palette8 where the chip takes it, or "
            do += "another device"
            expected, where = f"at most {self.programs.room}", compiled[-1].where
            raise DeviceError(msg, where=where, expected=expected, got=len(compiled), do=do)
        programs = self.programs.take(compiled)
        binder = Binder(self.pool, graph.slots, compiled)
        try:
            evaluations = [binder.bound(*pair) for pair in zip(compiled, programs, strict=True)]
        except BaseException:
            self.programs.give(programs)
            self.pool.give(binder.surfaces.values())
            raise
        return Split(tuple(evaluations), tuple(binder.surfaces.values()), held, changes)


Key = tuple[Source, Shape4, str]  # what a surface holds, and in which form


@attrs.define(eq=False)
class Binder:
    """Gives each value that the programs of a split exchange a surface."""

    pool: Pool
    slots: Slots
    compiled: Sequence[Compiled]
    surfaces: dict[Key, Surface] = attrs.field(factory=dict, init=False)
    _filled: set[Key] = attrs.field(factory=set, init=False)

    def bound(self, compiled: Compiled, loaded: Loaded) -> Evaluation:
        """By the ports of this split: the program may have been loaded for another whose text
        and weights are the same."""
        inputs = {port.name: self._surface(port) for port in compiled.inputs}
        outputs = {port.name: self._surface(port) for port in compiled.outputs}
        feeds = [self._feed(port) for port in compiled.inputs]
        outlets: list[Outlet | Watch] = []
        for port in compiled.outputs:
            if isinstance(port.source, Whole):
                outlets.append(self._outlet(port, port.source))
            elif isinstance(port.source, Watched):
                target = Target.of(self._surface(port), port, port.shape)
                outlets.append(Watch(target))
        request = Request(
            [inputs[name] for name in loaded.order.inputs],
            [outputs[name] for name in loaded.order.outputs],
        )
        return Evaluation(loaded, request, tuple(filter(None, feeds)), tuple(outlets))

    def _surface(self, port: Port) -> Surface:
        key = _key(port)
        if key not in self.surfaces:
            self.surfaces[key] = self.pool.take(max(map(nbytes, self._ports())))
        return self.surfaces[key]

    def _ports(self) -> Iterator[Port]:
        return (p for c in self.compiled for p in (*c.inputs, *c.outputs))

    def _feed(self, port: Port) -> Feed | None:
        """What fills it; None where that was done for a program before."""
        if (key := _key(port)) in self._filled:
            return None
        self._filled.add(key)
        return feed(port.source, port, self.surfaces[key], self.slots)

    def _outlet(self, port: Port, source: Whole) -> Outlet:
        shape = [source.tensor.shape[a] for a in source.axes]
        target = Target.of(self._surface(port), port, shape)
        return Outlet(target, window(source.tensor, self.slots).transpose(source.axes))


def _key(port: Port) -> Key:
    if isinstance(port.source, Between):
        return port.source, (0, 0, 0, 0), port.dtype  # whatever shape its reader gives it
    return port.source, port.shape, port.dtype
