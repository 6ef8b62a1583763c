"""The machine: a queue of programs, a thread that runs them, and failures that wait.

Kernels from other distributions: `run(node, *arrays)` gets the inputs as a reference does,
float32 (or integers), for the time of the call only, on the machine's thread, and returns the
result, which the machine rounds and stores.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Queue
from typing import Any

import numpy as np
from umbel.errors import CancelledError, DeviceError
from umbel.gguf.types import I32, dequantise
from umbel.graph import Tensor
from umbel.hookspecs import Kernel, SplitGraph

from umbel_toy.memory import JUNK, Memory


class Machine:
    """One open toy."""

    def __init__(self, size: int, kernels: Mapping[str, Kernel]) -> None:
        self.programs: dict[int, Callable[[], None]] = {}  # the compiled splits
        self.kernels = kernels
        self._queue: Queue[int | None] = Queue()
        self.memory = Memory(size, settle=self._queue.join)
        self._failure: Exception | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="toy", daemon=True)
        self._thread.start()

    def start(self, graph: SplitGraph) -> None:
        if graph.uid not in self.programs:
            self.programs[graph.uid] = self._compile(graph)
        self._queue.put(graph.uid)

    def stop(self) -> None:
        self._stopped = True

    def wait(self) -> None:
        """Until all is done; raises the first failure since the last time."""
        self._queue.join()
        failure, self._failure, self._stopped = self._failure, None, False
        if failure is not None:
            raise failure

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        for uid in iter(self._queue.get, None):
            try:
                if self._failure is None:  # nothing is computed from what failed
                    self.programs[uid]()
            except Exception as error:
                self._failure = error
            self._queue.task_done()

    def _run(self, steps: Sequence[Callable[[], None]]) -> None:
        for step in steps:
            if self._stopped:
                msg = "the toy was stopped"
                raise CancelledError(msg)
            try:
                step()
            except Exception as error:
                msg = (
                    "the toy failed"  # in what, the core says: it knows no more than the split
                )
                raise DeviceError(msg, got=repr(error)) from error

    def _compile(self, graph: SplitGraph) -> Callable[[], None]:
        """Everything is decided here: where each value lies, and which function computes it."""
        size = self.memory.alloc_size
        places = {t: s.buffer.handle[s.offset :][: size(t)] for t, s in graph.slots.items()}
        for t in (t.storage for node in graph.nodes for t in (*node.inputs, node)):
            if t not in places:  # inside the split: the compiler's own
                places[t] = np.full(size(t), JUNK, np.uint8)
        return partial(self._run, [self._step(node, places) for node in graph.nodes])

    def _step(self, node: Tensor, places: Mapping[Tensor, np.ndarray]) -> Callable[[], None]:
        assert node.op is not None
        kernel: Any = self.kernels.get(node.op.name)
        run = partial(kernel.run, node) if kernel else partial(node.op.reference, **node.attrs)
        sources = [(_window(t, places), t.dtype) for t in node.inputs]
        tiles, target = places[node], _window(node, places)

        def step() -> None:
            with np.errstate(all="ignore"):
                result = run(*(a if d is I32 else dequantise(a, d) for a, d in sources))
                tiles.fill(JUNK)  # it writes whole ones: the padding, too
                target[...] = result

        return step


def _window(t: Tensor, places: Mapping[Tensor, np.ndarray]) -> np.ndarray:
    """The tensor's own window on its memory."""
    memory = places[t.storage]
    window: np.ndarray = np.ndarray(t.shape, t.dtype.numpy, memory, t.offset, t.strides)
    return window
