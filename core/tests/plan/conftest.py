"""Fake devices: they run splits with the references, on exactly the memory they were given.

What a fake cannot see it refuses to touch; memory is full of NaN before each step, so that a
value that was never written shows; an asynchronous fake works as late as it may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
from umbel import gguf, host
from umbel.backend import Source, bind
from umbel.errors import CancelledError, DeviceError, OutOfMemoryError
from umbel.gguf.types import BY_NAME, convert, dequantise, quantise
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Device, DeviceInfo
from umbel.models import ModelDefinition, architecture
from umbel.ops import OPS
from umbel.plan import Arenas, Placer, Plan, States, Target, Weights, make
from umbel.runner import Runner, Settings
from umbel.state import Sequence

ORACLES = Path(__file__).parents[1] / "data" / "oracles"
JUNK = 0xFF  # as float16 and float32 a NaN, as int32 a row that is nowhere
SCRATCH = 0xAB  # what a fake leaves in the padding that it asked for


def nothing(*what: object) -> None:
    """The faults of a good device."""


@attrs.define(eq=False)
class Memory:
    """A buffer of a fake device."""

    owner: Fake
    nbytes: int
    usage: str
    bytes: np.ndarray = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.bytes = np.full(self.nbytes, JUNK, np.uint8)

    @property
    def handle(self) -> Memory:
        return self

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        self.owner.work()
        assert offset + nbytes <= self.nbytes
        return self.bytes[offset : offset + nbytes].copy()

    def write(self, offset: int, data: np.ndarray) -> None:
        self.owner.work()
        self.owner.fault("write", self.usage)
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        assert offset + raw.size <= self.nbytes
        self.owner.writes.append(self.usage)
        self.bytes[offset : offset + raw.size] = raw

    def copy_from(self, offset: int, source: Any, source_offset: int, nbytes: int) -> bool:
        self.owner.fault("copy")
        self.owner.copies += 1
        if self.owner.copies_itself and isinstance(source, Memory):
            self.owner.work()  # but not the source: the core has to wait for that
            moved = source.bytes[source_offset : source_offset + nbytes]
            self.bytes[offset : offset + nbytes] = moved
        return self.owner.copies_itself and isinstance(source, Memory)

    def map(self, mode: str) -> np.ndarray:
        assert self.owner.is_host, "the host touches memory that it cannot see"
        return self.bytes


@attrs.define(eq=False)
class Fake:
    """A device, its memory (it is its own buffer type) and what is special about it."""

    name: str = "fake:0"
    compute: str = "f32"
    refuse: Callable[[Tensor], str | None] = lambda node: None
    takes: Callable[[str], str] = lambda dtype: dtype  # a weight's dtype becomes
    accepted: Callable[[Tensor], str] | None = None  # a weight or state becomes
    is_host: bool = False
    reads_host: bool = False
    readers: tuple[str, ...] = ()  # other devices that see this memory
    asynchronous: bool = False
    copies_itself: bool = False
    opaque: bool = False
    grows: int = 0
    separate: bool = False
    in_place: bool = True
    alignment: int = 16
    padding: int = 0
    token_buckets: tuple[int, ...] = ()
    length_buckets: tuple[int, ...] = ()
    room: int = 1 << 40
    max_size: int = 1 << 40
    told: dict[str, object] = attrs.field(factory=dict)  # as status
    fault: Callable[..., None] = nothing
    # what happened
    queue: list[Any] = attrs.field(factory=list)
    failed: list[BaseException] = attrs.field(factory=list)
    computed: list[Any] = attrs.field(factory=list)
    prepared: list[Any] = attrs.field(factory=list)
    compiled: set[int] = attrs.field(factory=set)
    forgotten: set[int] = attrs.field(factory=set)
    stored: dict[str, str] = attrs.field(factory=dict)
    asked: list[Tensor] = attrs.field(factory=list)
    writes: list[str] = attrs.field(factory=list)
    copies: int = 0
    stopped: bool = False

    def target(self) -> Target:
        info = DeviceInfo(
            compute_dtype=self.compute,
            token_buckets=self.token_buckets,
            length_buckets=self.length_buckets,
            opaque=self.opaque,
            grows=self.grows,
        )
        device = Device(self.name, "a fake", 10, reads_host=self.reads_host)
        return Target(device, info, self, self)

    # memory

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes + self.padding

    def readable_by(self, device: Device) -> bool:
        return device.name in self.readers

    def accepts(self, tensor: Tensor) -> Any:
        name = self.accepted(tensor) if self.accepted else self.takes(tensor.dtype.name)
        return BY_NAME[name]

    def allocate(self, nbytes: int, usage: str) -> Memory:
        assert usage in ("state", "input", "compute")
        if nbytes > self.room:
            msg = "the fake is full"
            raise OutOfMemoryError(msg, where=self.name, expected=self.room, got=nbytes)
        self.room -= nbytes
        return Memory(self, nbytes, usage)

    def store(self, tensor: Tensor, array: np.ndarray) -> Memory:
        dtype = self.accepts(tensor)
        self.stored[tensor.name] = f"{tensor.dtype} to {dtype}"
        array = convert(array, tensor.dtype, dtype)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory = Memory(self, raw.size, "weight")
        memory.bytes[:] = raw
        return memory

    # hooks

    def op_supported(self, device: Device, node: Tensor) -> str | None:
        self.asked.append(node)
        return self.refuse(node)

    def graph_compute(self, device: Device, graph: Any) -> None:
        self.compiled.add(graph.uid)
        self.queue.append(graph)
        if not self.asynchronous:
            self.work()
            self._raise()

    def prepare(self, device: Device, graph: Any) -> None:
        self.fault("prepare", graph)
        self.prepared.append(graph)

    def sync(self, device: Device) -> None:
        self.fault("sync")
        self.work()
        self.stopped = False
        self._raise()

    def status(self, device: Device) -> dict[str, object]:
        return self.told

    def cancel(self, device: Device) -> None:
        self.fault("cancel")
        self.stopped = True

    def forget(self, device: Device, uid: int) -> None:
        self.compiled.discard(uid)
        self.forgotten.add(uid)

    def _raise(self) -> None:
        if self.failed:
            failed, self.failed = self.failed, []
            raise failed[0]

    def work(self) -> None:
        """Does what was asked for; an error waits for `sync`."""
        while self.queue:
            graph = self.queue.pop(0)
            try:
                if not self.failed:
                    self._compute(graph)
            except (DeviceError, CancelledError) as error:
                self.failed.append(error)

    def _compute(self, graph: Any) -> None:
        self.computed.append(graph)
        inside: dict[Tensor, np.ndarray] = {}  # of a compiler, whose memory nobody knows
        for node in graph.nodes:
            assert node.op is not None
            assert not node.op.view
            self.fault("node", node.label, node.op.name)
            if self.stopped:
                msg = "stopped"
                raise CancelledError(msg, where=self.name)
            memory = [self._memory(graph, t, inside) for t in node.inputs]
            arguments = [
                strided(t, m) if i in node.op.mutates else values(t, m)
                for i, (t, m) in enumerate(zip(node.inputs, memory, strict=True))
            ]
            with np.errstate(all="ignore"):
                result = node.op.reference(*arguments, **node.attrs)
            if not node.op.writes:
                place = self._memory(graph, node, inside)
                stored = result
                if node.dtype.numpy is None:
                    stored = quantise(result, node.dtype)
                with np.errstate(over="ignore"):
                    np.copyto(strided(node, place), stored, casting="unsafe")
                place[node.nbytes :] = SCRATCH

    def _memory(self, graph: Any, t: Tensor, inside: dict[Tensor, np.ndarray]) -> np.ndarray:
        storage = t.storage
        slot = graph.slots.get(storage)
        if slot is None:
            assert self.opaque, f"there is no memory for {storage}"
            size = self.alloc_size(storage)
            return inside.setdefault(storage, np.full(size, JUNK, np.uint8))
        size = storage.nbytes
        if isinstance(slot.buffer, Memory):
            memory = slot.buffer.bytes
            owner = slot.buffer.owner
            assert owner is self or self._sees(owner), f"{owner.name} is not in sight"
            if slot.buffer.usage != "weight":
                size = owner.alloc_size(storage)
            assert slot.offset % owner.alignment == 0
        else:
            assert self.reads_host, "this device cannot read the host's memory"
            memory = slot.buffer.map("r")
        assert slot.offset + size <= memory.size
        return memory[slot.offset : slot.offset + size]

    def _sees(self, owner: Fake) -> bool:
        return self.name in owner.readers or (owner.is_host and self.reads_host)


def strided(t: Tensor, memory: np.ndarray) -> np.ndarray:
    """The array that lies in this memory, as it is stored."""
    shape, strides, dtype = t.shape, t.strides, t.dtype.numpy
    if dtype is None:
        shape = (*shape[:-1], t.dtype.row_bytes(shape[-1]))
        strides, dtype = (*strides[:-1], 1), np.dtype(np.uint8)
    return np.ndarray(shape, dtype, memory, t.offset, strides)


def values(t: Tensor, memory: np.ndarray) -> np.ndarray:
    """A copy as float32, or of integers."""
    raw = np.ascontiguousarray(strided(t, memory))
    return raw.copy() if raw.dtype.kind == "i" else dequantise(raw, t.dtype).copy()


def without(*names: str, why: str = "no kernel") -> Callable[[Tensor], str | None]:
    return lambda node: f"{why} for {node.op.name}" if node.op.name in names else None


def only(*names: str) -> Callable[[Tensor], str | None]:
    return lambda node: None if node.op.name in names else f"no kernel for {node.op.name}"


def only_simple(node: Tensor) -> str | None:
    """What has a decomposition is refused."""
    return f"{node.op.name} is too much" if node.op.decompose else None


def host_target(**options: object) -> Target:
    info = host.open(host.DEVICE, options, [])
    hooks = bind(Source("host", "built in"), host, nothing)
    return Target(host.DEVICE, info, host.buffer_type(host.DEVICE), hooks)


def poisoned(plan: Plan) -> None:
    """Fills the compute memory of a plan with NaN."""
    for step in plan.steps:
        for t, slot in step.graph.slots.items():
            if t.role in (Role.NODE, Role.INPUT):
                buffer = slot.buffer
                memory = buffer.bytes if isinstance(buffer, Memory) else buffer.map("rw")
                memory[:] = JUNK


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Plan._run

    def poison_and_run(plan: Plan, *args: Any) -> list[np.ndarray]:
        poisoned(plan)
        return run(plan, *args)

    monkeypatch.setattr(Plan, "_run", poison_and_run)


class Recorder(Runner):
    """A runner that remembers its plans."""

    def __init__(self, *args: Any) -> None:
        self.made: list[Plan] = []
        self.graphs: list[Any] = []
        super().__init__(*args)

    def make(self, graph: Any, **how: Any) -> Plan:
        self.graphs.append(graph)
        self.made.append(super().make(graph, **how))
        return self.made[-1]


@pytest.fixture
def load() -> Iterator[Callable[..., Recorder]]:
    """load(model, *fakes, **settings): a runner on these fakes and the host; prompts are
    computed on those of `prefill` first, if there are any."""
    files: list[Any] = []

    def loaded(
        name: str, *fakes: Fake, prefill: tuple[Fake, ...] = (), **settings: Any
    ) -> Recorder:
        files.append(gguf.open(ORACLES / f"{name}.gguf"))
        found = architecture(files[-1].get("general.architecture", str))
        definition = ModelDefinition(files[-1], found, OPS)
        targets = [*(fake.target() for fake in fakes), host_target()]
        how = {"ctx": 64, "ubatch": 16, "parallel": 3} | settings
        others = [*(fake.target() for fake in prefill), targets[-1]] if prefill else []
        return Recorder(definition, targets, Settings(**how), None, others)

    yield loaded
    for file in files:
        file.close()


def tokens(name: str) -> list[int]:
    with np.load(ORACLES / f"{name}.npz") as arrays:
        return arrays["ids"].tolist()


@pytest.fixture
def ids() -> Callable[[str], list[int]]:
    """The token ids of a model of the oracle folder."""
    return tokens


def spoken(runner: Runner, given: list[int]) -> np.ndarray:
    """Logits of a prefill, of single steps, and of two sequences that share steps."""
    one, two = Sequence(), Sequence()
    parts = [runner.forward(one, given[:9], every=True)]
    parts += [runner.forward(one, [i]) for i in given[9:11]]
    parts += [runner.forward(two, given[3:10])]
    parts += [runner.decode([one, two], [given[i], given[i - 1]]) for i in (11, 12)]
    return np.concatenate(parts)


class Small:
    """A graph of some operations on fakes and the host, without a model."""

    def __init__(self, *fakes: Fake) -> None:
        self.build = Builder(OPS)
        self.targets = [*(fake.target() for fake in fakes), host_target()]
        self.placer = Placer(self.targets, OPS)
        self.arrays: dict[str, np.ndarray] = {}
        self.states = States()
        self.arenas = Arenas()
        self.weights = Weights(SimpleNamespace(array=self.arrays.__getitem__, tensors={}))
        self.plans: list[Plan] = []

    def input(self, name: str, *shape: int, dtype: str = "f32") -> Tensor:
        return self.build.leaf(Role.INPUT, name, shape, BY_NAME[dtype])

    def weight(self, name: str, array: np.ndarray, dtype: str = "f32") -> Tensor:
        self.arrays[name] = quantise(array.astype(np.float32), BY_NAME[dtype])
        made = self.build.leaf(Role.WEIGHT, name, array.shape, BY_NAME[dtype])
        self.weights.file.tensors[name] = made
        return made

    def state(self, name: str, *shape: int, dtype: str = "f32") -> Tensor:
        return self.build.leaf(Role.STATE, name, shape, BY_NAME[dtype])

    def plan(self, *outputs: Tensor, check: bool = False) -> Plan:
        graph = self.build.graph(outputs)
        for name, home in self.placer.homes([graph], self.states.homes).items():
            if name not in self.states.homes:
                state = next(t for t in graph.leaves(Role.STATE) if t.name == name)
                self.states.add(state, home)
        memory = (self.weights, self.states, self.arenas)
        made = make(graph, self.placer, *memory, check=check)
        self.plans.append(made)
        return made

    def places(self, plan: Plan) -> list[tuple[str, str]]:
        """(operation, device) of each node."""
        return [(p.node.op.name, p.target.name) for p in plan.placement.nodes]


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """The pieces that tests are made of."""
    return SimpleNamespace(
        Fake=Fake,
        Small=Small,
        host=host_target,
        nothing=nothing,
        only=only,
        only_simple=only_simple,
        spoken=spoken,
        without=without,
    )


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)
