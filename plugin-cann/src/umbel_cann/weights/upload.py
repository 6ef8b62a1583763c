"""Weights on their way to the device: cut into pieces, converted side by side, and sent
through memory that the device can fetch from by itself.

There are two such lanes, each with a stream: while what is in the one is on its way, the other
is filled. What is sent has arrived when `send` returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial

import attrs
import numpy as np
from umbel.errors import DeviceError, UmbelError
from umbel.gguf.types import DType, dequantise
from umbel.graph import Tensor
from umbel.host import cpus
from umbel.host.order import in_order

from umbel_cann.runtime import TO_DEVICE, Npu
from umbel_cann.weights.packing import packed
from umbel_cann.weights.quantised import Layout

VALUES = 1 << 18  # of a piece: what is made of them stays near the processor
LANE = 4 * VALUES  # bytes: a piece in whatever dtype
_THREADS = 4  # more would wait for memory

Parts = Sequence[tuple[int, np.ndarray]]  # where they go, from the start of a weight
Tell = Callable[[int], None]
Piece = tuple[Parts, int]  # and how many bytes of the file they and all before are made of


def pieces(
    tensor: Tensor, array: np.ndarray, kept: DType, layout: Layout | None
) -> Generator[Piece, None, None]:
    """What a device keeps of a weight as the file has it, a piece at a time, in order."""
    dtype = tensor.dtype
    flat = np.ascontiguousarray(array).reshape(-1)
    block = 1 if dtype.numpy is not None else dtype.block_bytes  # elements of `flat`

    def piece(first: int) -> Piece:
        start, count = first // dtype.block * block, VALUES // dtype.block * block
        raw = flat[start : start + count]
        read = start * flat.itemsize + raw.nbytes
        if layout is not None:
            parts = packed(raw, dtype, kept, layout.form)
            return list(zip(layout.places(first), parts, strict=True)), read
        return [(first * kept.block_bytes, _plain(raw, dtype, kept))], read

    size = flat.size // block * dtype.block
    jobs = [partial(piece, first) for first in range(0, size, VALUES)]
    threads = min(cpus(), _THREADS, len(jobs))
    if threads < 2 or (dtype is kept and layout is None):
        return (job() for job in jobs)
    return in_order(jobs, threads, ahead=threads)


def _plain(raw: np.ndarray, dtype: DType, kept: DType) -> np.ndarray:
    if dtype is kept:
        return raw
    values = dequantise(raw, dtype)
    with np.errstate(over="ignore"):
        made = values.astype(kept.numpy)
    lost = np.isinf(made)
    if lost.any() and (lost & np.isfinite(values)).any():
        lost &= np.isfinite(values)
        msg, most = f"a value is too large for {kept}", np.abs(values[lost]).max()
        raise DeviceError(msg, got=float(most), do="choose another device")
    return made


@attrs.define(eq=False)
class Lane:
    """Some of the host's memory that the device reads by itself, and the stream for it."""

    npu: Npu
    address: int
    stream: int
    busy: bool = False
    broken: bool = False

    @classmethod
    def new(cls, npu: Npu) -> Lane:
        address = npu.pin(LANE)
        try:
            return cls(npu, address, npu.new_stream())
        except UmbelError:
            npu.unpin(address)
            raise

    def send(self, to: int, parts: Parts) -> None:
        """Puts a piece of the weight at `to` on its way, once the last one has arrived."""
        self.wait()
        self.busy, at = True, self.address
        for start, part in parts:
            ctypes.memmove(at, part.ctypes.data, part.nbytes)
            self.npu.send(to + start, at, part.nbytes, self.stream)
            at += part.nbytes

    def wait(self) -> None:
        if self.busy:
            self.busy, self.broken = False, True
            self.npu.settle(self.stream, "an upload to the NPU")
            self.broken = False

    def close(self) -> None:
        """What is under way arrives before, or is left behind."""
        with contextlib.suppress(UmbelError):
            self.wait()
        with contextlib.suppress(UmbelError):
            self.npu.end_stream(self.stream, by_force=self.broken)
        with contextlib.suppress(UmbelError):
            self.npu.unpin(self.address)


@attrs.define(eq=False)
class Uploads:
    """Those to one device. `send` comes with the device's lock held."""

    npu: Npu
    _lanes: list[Lane] | None = attrs.field(default=None, init=False)  # None: not tried yet

    def send(
        self, to: int, nbytes: int, weight: Generator[Piece, None, None], tell: Tell
    ) -> None:
        """Writes a weight at `to`, and tells of each piece. After an error nothing is under way
        any more.

        A small one goes by itself: there is nothing to do in the meantime.
        """
        self.npu.wait()  # what was there before may still be in use
        with contextlib.closing(weight):
            if nbytes > LANE and (lanes := self._ready()):
                self._by_lanes(lanes, to, weight, tell)
                return
            for parts, read in weight:
                for start, part in parts:
                    self.npu.copy(to + start, part.ctypes.data, part.nbytes, TO_DEVICE)
                tell(read)

    def _by_lanes(
        self, lanes: list[Lane], to: int, weight: Iterable[Piece], tell: Tell
    ) -> None:
        try:
            for lane, (parts, read) in zip(itertools.cycle(lanes), weight, strict=False):
                lane.send(to, parts)
                tell(read)
            for lane in lanes:
                lane.wait()
        except BaseException:
            self.close()  # a stream may hang: there are new ones next time
            raise

    def _ready(self) -> list[Lane]:
        """The lanes; none where such memory is not to be had."""
        if self._lanes is None:
            self._lanes = []
            with contextlib.suppress(UmbelError):
                for _ in range(2):
                    self._lanes.append(Lane.new(self.npu))
        return self._lanes

    def close(self) -> None:
        lanes, self._lanes = self._lanes or [], None
        for lane in lanes:
            lane.close()
