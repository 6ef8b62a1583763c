"""The machine: a queue of splits, a thread that computes them, and failures that wait."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import Queue

import numpy as np
from umbel.errors import CancelledError, DeviceError
from umbel.gguf.types import I32, dequantise
from umbel.graph import Tensor
from umbel.hookspecs import Kernel, SplitGraph

from umbel_toy.memory import Memory

Program = Callable[[], None]


class Machine:
    """One open toy.

    `kernels` come from other distributions: `run(node, *arrays)` gets the inputs as a reference
    does, float32 (or integers), for the time of the call only, and returns the result, which
    the machine rounds and stores.
    """

    def __init__(self, size: int, kernels: Mapping[str, Kernel]) -> None:
        self.memory = Memory(size, self._settle)
        self.kernels = kernels
        self.programs: dict[int, Program] = {}
        self._queue: Queue[SplitGraph | None] = Queue()
        self._failure: Exception | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="toy", daemon=True)
        self._thread.start()

    def start(self, graph: SplitGraph) -> None:
        self._stopped = False
        self._queue.put(graph)

    def stop(self) -> None:
        self._stopped = True

    def wait(self) -> None:
        """Until all is done; raises the first failure since the last time."""
        self._queue.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _settle(self) -> None:
        if threading.current_thread() is not self._thread:
            self._queue.join()

    def _work(self) -> None:
        while (graph := self._queue.get()) is not None:
            try:
                if self._failure is None:  # nothing is computed from what failed
                    self._run(graph)
            except Exception as error:
                self._failure = error
            finally:
                del graph
                self._queue.task_done()
        self._queue.task_done()

    def _run(self, graph: SplitGraph) -> None:
        if graph.uid not in self.programs:
            self.programs[graph.uid] = self._compile(graph)
        with np.errstate(all="ignore"):
            self.programs[graph.uid]()

    def _compile(self, graph: SplitGraph) -> Program:
        """Everything is decided here: where each value lies, and which function computes it."""
        places = {t: slot.buffer.handle.bytes[slot.offset :] for t, slot in graph.slots.items()}
        for node in graph.nodes:
            for t in (*node.inputs, node):
                if t.storage not in places:  # inside the split: the compiler's own
                    places[t.storage] = np.full(t.storage.nbytes, 0xFF, np.uint8)
        steps = [self._step(node, places) for node in graph.nodes]

        def program() -> None:
            for node, step in zip(graph.nodes, steps, strict=True):
                if self._stopped:
                    msg = "the toy was stopped"
                    raise CancelledError(msg)
                try:
                    step()
                except Exception as error:
                    msg = f"{node.label} failed on the toy"
                    raise DeviceError(msg, got=error) from error

        return program

    def _step(self, node: Tensor, places: Mapping[Tensor, np.ndarray]) -> Program:
        assert node.op is not None
        kernel = self.kernels.get(node.op.name)
        run = partial(kernel.run, node) if kernel else partial(node.op.reference, **node.attrs)
        sources = [(_array(t, places), t.dtype) for t in node.inputs]
        target = _array(node, places)

        def step() -> None:
            target[...] = run(*(a if d is I32 else dequantise(a, d) for a, d in sources))

        return step


def _array(t: Tensor, places: Mapping[Tensor, np.ndarray]) -> np.ndarray:
    """The tensor's own window on its memory."""
    return np.ndarray(t.shape, t.dtype.numpy, places[t.storage], t.offset, t.strides)
