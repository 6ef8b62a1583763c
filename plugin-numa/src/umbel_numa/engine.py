"""One open engine: its threads, its kernels, and the programs that it was given."""

from __future__ import annotations

import logging
import math
import mmap
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
from umbel.errors import CancelledError, DeviceError, OutOfMemoryError
from umbel.gguf import Part, Whole
from umbel.gguf.types import DType
from umbel.hookspecs import SplitGraph
from umbel.host import memory as machine_memory

from umbel_numa import cut
from umbel_numa.compile import compile_split
from umbel_numa.effect import without_effect
from umbel_numa.library import Format, library, no_threads, variant
from umbel_numa.pages import Binder
from umbel_numa.placement import Placement, available
from umbel_numa.program import Program
from umbel_numa.resident import Segment, misplaced, resident
from umbel_numa.slabs import Slabs
from umbel_numa.weights import NativeWeight, tell

log = logging.getLogger("umbel")

_CANCELLED, _NO_MEMORY = 1, 2
ACT_F32 = 0
FEW = 16  # rows of a step that waits for memory: as many threads as decode best
Counts = tuple[int, int]  # threads that decode, and that read prompts
Use = Mapping[str, Sequence[int]]  # by weight how often each of its experts was chosen


@attrs.define(eq=False)
class Met:
    """What is so of one model."""

    nbytes: int = 0  # of all its files
    copies: bool = False  # each node has one of all packed weights
    use: dict[str, Sequence[int]] = attrs.field(factory=dict)  # of its experts, where known
    told: bool = False  # which options have no effect on it


@attrs.define(eq=False)
class Engine:
    """Threads and kernels; everything but `cancel`, `pinned` and `bound`, which may be asked
    from any thread at any time, comes with the device's lock held."""

    threads: int = 0  # 0: those of the placement
    kernels: str = attrs.field(factory=variant)
    precise: bool = False  # activations stay float32
    placement: Placement = attrs.field()
    tuned: Callable[[int], Counts | None] = lambda _: None  # of so many bytes of weights
    handle: int = 0
    table: int = 0
    binder: Binder = attrs.field(factory=Binder)
    slabs: Slabs = attrs.field()
    met: Met = attrs.field(factory=Met)  # the model whose weights were stored last
    models: weakref.WeakKeyDictionary[Whole | mmap.mmap, Met] = attrs.field(
        factory=weakref.WeakKeyDictionary
    )
    known: Callable[[mmap.mmap], Use] = lambda _: {}  # of the experts of a file
    formats: dict[DType, Format] = attrs.field(factory=dict)
    programs: dict[int, Program] = attrs.field(factory=dict)
    weights: weakref.WeakSet[NativeWeight] = attrs.field(factory=weakref.WeakSet)
    _files: weakref.WeakSet[mmap.mmap] = attrs.field(factory=weakref.WeakSet)  # of the models
    _usual: Counts = (0, 0)
    # Who holds it keeps the handle alive. The garbage collector may cancel, at any point.
    _kept: threading.RLock = attrs.field(factory=threading.RLock)

    @placement.default
    def _anywhere(self) -> Placement:
        return Placement.free(self.threads)

    @slabs.default
    def _slabs(self) -> Slabs:
        return Slabs(self.binder)

    def __attrs_post_init__(self) -> None:
        lib, where = library(), self.placement
        self.table = lib.un_variant(self.kernels.encode())
        self.threads, self._usual = where.count(where.decode), (where.decode, where.prefill)
        lists = [np.array(n, np.int32) for n in (where.cpus, where.nodes, where.numbers)]
        self.handle = lib.un_engine_new(
            self.table, len(where.cpus), *(n.ctypes.data for n in lists)
        )
        if not self.handle:
            msg = f"the engine cannot start {len(where.cpus)} threads"
            raise DeviceError(msg, do="take fewer: --threads")

    def format(self, dtype: DType) -> Format:
        if dtype not in self.formats:
            self.formats[dtype] = library().un_format_of(self.table, dtype.number).contents
        return self.formats[dtype]

    def packs(self, dtype: DType) -> bool:
        """Whether weights of this type are packed for products. F16 and BF16 lose a little in
        it: to be precise they stay as they are."""
        exact = self.precise and not dtype.quantised
        return not exact and bool(library().un_format_of(self.table, dtype.number))

    def form(self, dtype: DType) -> int:
        """How a product with a packed weight of this type wants its activations."""
        return ACT_F32 if self.precise else self.format(dtype).act

    # threads and nodes

    @property
    def pinned(self) -> int:
        """How many threads sit on the CPU that was meant for them."""
        with self._kept:
            return int(library().un_engine_pinned(self.handle)) if self.handle else 0

    def count(self, rows: int) -> int:
        """How many threads take part in a step of so many rows."""
        where = self.placement
        return where.count(where.decode if rows <= FEW else where.prefill)

    def set_counts(self, decode: int, prefill: int) -> None:
        """Other numbers of threads, for steps of few and of many rows, from now on."""
        self.placement = attrs.evolve(self.placement, decode=decode, prefill=prefill)
        self.threads = self.placement.count(decode)
        for uid in list(self.programs):
            self.forget(uid)

    def shares(self, threads: int = 0) -> list[int]:
        """How many of so many threads (0: of those that decode) are on each node."""
        sizes = np.zeros(len(self.placement.numbers), np.int32)
        library().un_engine_shares(self.handle, threads or self.threads, sizes.ctypes.data)
        return [int(size) for size in sizes]

    # models

    def cut(self, count: int, groups: int, weight: NativeWeight) -> cut.Cut:
        """How nodes share a packed weight."""
        met, whole = self.met_of(weight.file), self.placement.experts == "whole"
        use = met.use.get(weight.tensor.name)
        return cut.cut(self.shares(), count, groups, copies=met.copies, whole=whole, use=use)

    def met_of(self, file: mmap.mmap | None) -> Met:
        """The model that a file belongs to; of no file the last one."""
        return self.met if file is None else self.models.get(_whole(file), self.met)

    def meet(self, file: mmap.mmap) -> None:
        """A weight of this file is about to be stored."""
        whole = _whole(file)
        if whole not in self.models:
            nbytes = whole.size if isinstance(whole, Whole) else len(whole)
            self.binder.room.ask_again()
            self.models[whole] = Met(nbytes, self._has_room_for_copies(nbytes))
            self._tune()
        self.met = self.models[whole]
        if file not in self._files:
            self._files.add(file)
            self._recall(file, self.met)

    def _tune(self) -> None:
        """Threads that are best for the largest of the models, which takes most of the time."""
        if self.placement.chosen:
            return
        found = self.tuned(max(met.nbytes for met in self.models.values()))
        counts = found or self._usual
        if counts != (self.placement.decode, self.placement.prefill):
            how = "as `umbel numa tune` found them" if found else "as by default"
            log.warning("threads %s: %d, for prompts %d", how, *counts)
            self.set_counts(*counts)

    def _recall(self, file: mmap.mmap, met: Met) -> None:
        """What is known of the use of experts, where they are dealt as a whole."""
        whole = self.placement.experts == "whole" and len(self.placement.numbers) > 1
        found = self.known(file) if whole and not met.copies else {}
        if found and not met.use:
            log.warning("experts are dealt by their use, as `umbel numa tune` counted it")
        met.use |= found

    def _has_room_for_copies(self, nbytes: int) -> bool:
        numbers = self.placement.numbers
        if self.placement.mode != "mirror" or len(numbers) == 1:
            return False
        room, mb = min(map(available, numbers)), math.ceil(nbytes / 1e6)
        if granted := machine_memory()[1]:  # a container may have less than its nodes
            room = min(room, granted // len(numbers))
        if 1.1 * nbytes < room:
            told = "a copy of the weights on each node takes up to %d MB more"
            log.warning(told, mb * (len(numbers) - 1))
            return True
        told = "weights are distributed: a copy takes %d MB, and a node has %d MB free"
        log.warning(told, mb, room // 10**6)
        return False

    def _tell_without_effect(self, program: Program) -> None:
        """Once for each model, when it is about to run for the first time."""
        met = next((self.met_of(w.file) for w in program.factors if w.file is not None), None)
        if met is None or met.told:
            return
        met.told = True
        weights = [
            w for w in list(self.weights) if w.file is not None and self.met_of(w.file) is met
        ]
        for line in without_effect(self.placement, met.copies, weights):
            log.warning(line)

    # where weights lie

    @property
    def segments(self) -> list[Segment]:
        return [segment for weight in list(self.weights) for segment in weight.segments]

    def resident(self) -> list[int]:
        """Bytes of weights on each node, in the order of the placement's numbers, by the
        kernel's own answer; empty where it gives none, or memory may lie anywhere."""
        lies, numbers = resident(self.segments), self.placement.numbers
        return [lies.get(number, 0) for number in numbers] if lies and numbers[0] >= 0 else []

    def misplaced(self) -> int:
        """Bytes of weights that are not on the node whose threads read them."""
        return misplaced(self.segments)

    @property
    def bound(self) -> str:
        """Whether memory lies on the nodes that it is meant for."""
        if self.binder.refused:
            return f"not bound: {self.binder.refused}"
        if full := self.binder.full:
            return f"bound to nodes but {', '.join(map(str, full))}: full"
        return "bound to nodes" if len(self.placement.numbers) > 1 else "anywhere"

    # steps

    def compute(self, graph: SplitGraph) -> None:
        program = self.programs.get(graph.uid)
        if program is None:
            program = Program(self.handle, compile_split(graph, self))
            self.programs[graph.uid] = program
            tell(self.weights)
            self._tell_without_effect(program)
        code = library().un_run(self.handle, program.handle, program.threads)
        if code < 0:
            raise no_threads(program.threads, code)
        if code == _CANCELLED:
            msg = "the step was cancelled"
            raise CancelledError(msg)
        if code == _NO_MEMORY:
            msg = "there is no room to compute the step"
            raise OutOfMemoryError(msg, do="use a smaller --ubatch")

    def cancel(self, wanted: bool) -> None:
        with self._kept:
            if self.handle:
                library().un_cancel(self.handle, wanted)

    def forget(self, uid: int) -> None:
        program = self.programs.pop(uid, None)
        if program is not None:
            program.free()

    def close(self) -> None:
        for uid in list(self.programs):
            self.forget(uid)
        with self._kept:
            handle, self.handle = self.handle, 0
        library().un_engine_free(handle)


def _whole(file: mmap.mmap) -> Whole | mmap.mmap:
    """What all files of a model have in common."""
    return file.whole if isinstance(file, Part) else file
