"""The contract between the core and its backends: the hooks, and the values that they exchange.

A backend is a module (or object) whose functions are marked with `hookimpl`, found through the
entry point group `umbel`; the entry's name is the backend's name. It declares `UMBEL_API = 1`.
A question about a device goes to the owner of that device only; every hook but `devices` may be
left out where a default is named. All hooks take keyword arguments and may accept fewer than
are listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs
import numpy as np
import pluggy

if TYPE_CHECKING:
    from umbel.gguf.types import DType
    from umbel.graph import Operation, Tensor

UMBEL_API = 1
GROUP = "umbel"

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@attrs.frozen
class Device:
    """One piece of hardware that could compute. `name` is `backend:index`."""

    name: str
    description: str
    priority: int  # host 0, Neural Engine 50, native CPU 100, NPU 200; `auto` takes the highest
    simulated: bool = False  # true for a development tool: `auto` never takes it
    reads_host: bool = False  # uses plain host memory without a copy: it can help others out

    @property
    def backend(self) -> str:
        return self.name.partition(":")[0]

    @property
    def title(self) -> str:
        """The name as users read it."""
        return f"{self.name} (simulated)" if self.simulated else self.name

    @property
    def index(self) -> int:
        return int(self.name.partition(":")[2] or 0)


@attrs.frozen
class DeviceInfo:
    """What an open device told of itself."""

    memory_total: int = 0  # bytes; 0 = unknown
    memory_free: int = 0  # of now; where `status` tells one that is asked later
    compute_dtype: str = "f32"  # intermediates live in this dtype
    token_buckets: tuple[int, ...] = ()  # the only token counts a step may have; () = any
    length_buckets: tuple[int, ...] = ()  # the only KV lengths; () = multiples of 256
    # KV caches take memory as cells are used, from the front, in blocks of so many (True: 1)
    grows: int = 0
    opaque: bool = False  # a compiler: memory only for a split's inputs, outputs and state
    details: Mapping[str, object] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.compute_dtype not in ("f32", "f16", "bf16"):
            msg = f"compute_dtype is {self.compute_dtype!r:.100}, expected f32, f16 or bf16"
            raise ValueError(msg)
        for name in ("token_buckets", "length_buckets"):
            sizes = getattr(self, name)
            if type(sizes) is not tuple or any(type(n) is not int or n < 1 for n in sizes):
                msg = f"{name} is {sizes!r:.100}, expected a tuple of positive whole numbers"
                raise ValueError(msg)


@attrs.frozen
class Option:
    """An option of a backend, given as `-O backend.name=value`."""

    name: str
    help: str
    default: object = None
    parse: Callable[[str], object] = str  # raises ValueError on a bad value
    choices: tuple[str, ...] = ()


@attrs.frozen
class Finding:
    """What a `doctor` found. An error is in the way; with a warning it works, but worse."""

    level: str = attrs.field(validator=attrs.validators.in_(("ok", "note", "warning", "error")))
    what: str
    do: str = ""  # what the user can do about it


class Buffer(Protocol):
    """A piece of a device's memory. Everything is ordered after the device's earlier work.

    `read`, `write` and `copy_from` come with the device's lock held, as `graph_compute` does. A
    buffer may be dropped on any thread, at any time.
    """

    @property
    def nbytes(self) -> int:
        """Its size."""

    @property
    def handle(self) -> Any:
        """An address, or the backend's own object."""

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        """A copy of those bytes (uint8)."""

    def write(self, offset: int, data: np.ndarray) -> None:
        """Puts the bytes of `data` (C order) at `offset`."""

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        """Copies from another device's buffer; False: the core stages through the host."""

    def map(self, mode: str) -> np.ndarray:
        """The memory itself as uint8, for `r` or `rw`; only where the type is `is_host`."""


@runtime_checkable
class BufferType(Protocol):
    """How memory lives on a device.

    `allocate` and `store` come with the device's lock held; everything else is a question that
    any thread may ask at any time.
    """

    @property
    def alignment(self) -> int:
        """Bytes: every tensor begins at a multiple."""

    @property
    def max_size(self) -> int:
        """Bytes of one buffer at most."""

    @property
    def is_host(self) -> bool:
        """The host can touch it (`Buffer.map`)."""

    @property
    def separate(self) -> bool:
        """One allocation per tensor instead of a shared arena."""

    @property
    def in_place(self) -> bool:
        """Outputs may take the memory of inputs."""

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that `tensor` needs, with whatever padding the device wants."""

    def readable_by(self, device: Device) -> bool:
        """Whether `device` can use this memory without a copy."""

    def accepts(self, tensor: Tensor) -> DType:
        """In which dtype `tensor` is kept here: its own, or another.

        Asked of weights, as the file has them (a part of one bears its rows behind its name),
        and of states that nobody chose a dtype for, as float32: those can be f32 or f16, and
        are f32 after any other answer.
        """

    def allocate(self, nbytes: int, usage: str) -> Buffer:
        """Memory for `usage` "state", "input" or "compute"; `OutOfMemoryError` when full."""

    def store(self, tensor: Tensor, array: np.ndarray) -> Buffer:
        """Weight memory that holds `array` (as the file maps it), in the dtype that `accepts`
        named; may keep, repack or upload. The `base` of what the file maps leads to a
        `umbel.gguf.Part`, which tells of the whole model.

        Where the type has a true attribute `tells_progress`, a third argument may follow: a
        function to call now and then with how many bytes of `array` have been taken.

        A value that no longer fits is refused, as `umbel.gguf.types.convert` does. Each call
        makes a buffer of its own, and nobody changes what is in it.
        """


@attrs.frozen(eq=False)
class Slot:
    """Where a tensor's storage lies."""

    buffer: Buffer
    offset: int = 0


@attrs.frozen(eq=False)
class SplitGraph:
    """What one device computes in one go. Immutable, so that it can be compiled once by `uid`.

    Every tensor of `nodes` and their inputs has its storage in `slots` (an opaque device: only
    `inputs`, `outputs` and state).
    """

    uid: int
    nodes: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]  # leaves, and results of other splits
    outputs: tuple[Tensor, ...]  # what other splits or the host read, and writes to state
    slots: Mapping[Tensor, Slot]


@attrs.frozen
class Kernel:
    """A kernel that one plugin brings for another's device; `run` is of that owner's kernel
    type."""

    operation: str
    supported: Callable[[Tensor], str | None]
    run: object


@hookspec
def devices() -> Sequence[Device]:  # type: ignore[empty-body]
    """What is here? Cheap: touches no vendor library."""


@hookspec
def open(  # type: ignore[empty-body]
    device: Device, options: Mapping[str, object], kernels: Sequence[Kernel]
) -> DeviceInfo:
    """Makes the device usable; may load libraries and probe. `DeviceError` says why not."""


@hookspec
def close(device: Device) -> None:
    """Gives everything back. Default: nothing."""


@hookspec
def buffer_type(device: Device) -> BufferType:  # type: ignore[empty-body]
    """How memory lives on the open device. Asked once."""


@hookspec
def op_supported(device: Device, node: Tensor) -> str | None:
    """None: the device runs this node, with these dtypes and shapes; else the reason why
    not."""


@hookspec
def graph_compute(device: Device, graph: SplitGraph) -> None:
    """Runs the whole split; may return before it is done.

    It comes with the device's lock held, as do `prepare`, `sync`, `forget`, `close`,
    `allocate`, `store`, `read`, `write` and `copy_from`: never two of them at once on one
    device. The thread is that of whichever model computes, loads or closes: what a library ties
    to a thread is to be set in every call.
    """


@hookspec
def prepare(device: Device, graph: SplitGraph) -> None:
    """Takes what memory a split needs beside its slots', without running it.

    Asked at load of the splits of the largest steps, so that what does not fit is refused then
    (`OutOfMemoryError`); others are not announced. The memory is to be there for as long as the
    model, whose weights the slots hold. Default: nothing.
    """


@hookspec
def sync(device: Device) -> None:
    """Waits for the device; raises what went wrong since the last time, once. It also ends a
    `cancel`. Default: nothing to wait for."""


@hookspec
def forget(device: Device, uid: int) -> None:
    """Drops what was compiled for that split. Default: nothing."""


@hookspec
def cancel(device: Device) -> None:
    """Stops what was begun since the last `sync`, between two of its steps; `graph_compute` or
    `sync` then raises `CancelledError`.

    From another thread than the step's, and only while that step holds the device's lock, so
    that it can hit nobody else; a `sync` follows before others get the lock. Default: nothing.
    """


@hookspec
def options() -> Sequence[Option]:  # type: ignore[empty-body]
    """The options that this backend's `open` understands. Default: none."""


@hookspec
def status(device: Device) -> Mapping[str, object]:  # type: ignore[empty-body]
    """Health of the device, for `umbel devices`; from any thread, at any time.

    `memory_free` (bytes) in it is asked before a context is allocated. Default: empty."""


@hookspec
def doctor() -> Sequence[Finding]:  # type: ignore[empty-body]
    """What there is to say of this machine, for `umbel doctor`; quick, and needing no device.
    Default: nothing."""


@hookspec
def commands(cli: Any) -> None:
    """Adds `umbel <backend> ...` to the argparse sub-parsers `cli`: one parser, named like the
    backend, that sets `run=callable(args) -> int`, which gives the exit code. Default: none."""


@hookspec
def ops() -> Sequence[Operation]:  # type: ignore[empty-body]
    """New operations. Default: none."""


@hookspec
def architectures() -> Sequence[object]:  # type: ignore[empty-body]
    """New model architectures (`umbel.models.Architecture`). Default: none."""


@hookspec
def kernels(device: Device) -> Sequence[Kernel]:  # type: ignore[empty-body]
    """Kernels for somebody else's device, handed to its owner's `open`. Default: none."""
