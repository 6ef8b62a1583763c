"""Run as a program, with a simulated 910B: what is not finite in a cache, and memory that ends.

It prints what it found, as JSON. The caches here are float16, and read in blocks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import stepping
from umbel import plugins
from umbel.errors import DeviceError, OutOfMemoryError
from umbel.runner import Runner
from umbel.state import Sequence
from umbel_cann import _open
from umbel_cann.runtime import TO_DEVICE

TEXT = [1, 5, 9, 7]


def opened(**settings: Any) -> Runner:
    found = {"ctx": 512, "parallel": 2, "ubatch": 256} | settings
    return stepping.open_model(sys.argv[1], dtype="f16", **found)


def row_of(runner: Runner, cell: int) -> tuple[str, int, np.ndarray]:
    """A cache of values, where a row of it lies there, and a row that is not finite."""
    name = next(name for name in runner.states.tensors if name.startswith("v_cache"))
    t = runner.states.tensors[name]
    size = t.nbytes // t.shape[0]
    return name, cell * size, np.full(size // 2, np.nan, np.float16)


def what_is_not_finite(by_whom: str) -> dict[str, object]:
    """A text, then the same in cells of which another left one that is not finite."""
    runner, sequence = opened(), Sequence()
    npu = _open["cann:0"].npu
    expected = runner.forward(sequence, TEXT)
    cells = sequence.cells
    name, offset, row = row_of(runner, int(cells[1] if by_whom == "a step" else cells[0] + 50))
    buffer = runner.states.slots[name].buffer
    if by_whom == "a step":  # as one leaves them whose values overflow
        npu.copy(int(buffer.handle) + offset, row.ctypes.data, row.nbytes, TO_DEVICE)
        assert not npu.doubtful
        runner.forward(sequence, [3])
        sequence.cells = cells = sequence.cells.copy()
        npu.copy(
            int(buffer.handle) + offset // int(cells[1]) * (int(cells[0]) + 50),
            row.ctypes.data,
            row.nbytes,
            TO_DEVICE,
        )
    else:  # as a session that is read from a file
        buffer.write(offset, row)
    doubtful = bool(npu.doubtful)
    runner.cache.close(sequence)
    again = Sequence()
    same = np.array_equal(runner.forward(again, TEXT), expected)
    placed = again.cells.tolist() == cells[: len(TEXT)].tolist()
    runner.close()
    return {"doubtful": doubtful, "same": same, "placed": placed}


def no_more(nbytes: int) -> int:
    msg = "the chip is full"
    raise OutOfMemoryError(msg, got=nbytes)


def memory_that_ends() -> dict[str, object]:
    """With as much as there is after loading, all of the context can be used; and what nobody
    uses any more is found."""
    runner = opened(ctx=1024, parallel=1)
    one = _open["cann:0"]
    for name, t in runner.states.tensors.items():
        buffer: Any = runner.states.slots[name].buffer
        buffer.grow(buffer, t.nbytes)
    taken = one.programs.scratch.nbytes
    real, one.memory.heap.allocate = one.memory.heap.allocate, no_more
    rest = []
    for size in (1 << n for n in range(20, 11, -1)):
        try:
            while True:
                rest.append(one.memory.heap.take(size))
        except OutOfMemoryError:
            continue
    rest.pop()  # tables of blocks, and executors' own
    runner.forward(Sequence(), [3 + i % 50 for i in range(1000)])
    ran = one.programs.scratch.nbytes == taken
    try:
        one.programs.scratch.at_least(taken * 2)
        kept = 0
    except OutOfMemoryError:
        kept = one.programs.scratch.nbytes
    rest.clear()
    runner.close()
    del runner, buffer
    found = one.memory.take(taken - 4096, 0, "another's").nbytes >= taken - 4096
    one.memory.heap.allocate = real
    return {"ran": ran, "kept": kept == taken, "found": found}


def a_cache_that_cannot_be_copied() -> dict[str, object]:
    """It stays what it is."""
    runner = opened()
    sequence, npu = Sequence(), _open["cann:0"].npu
    runner.forward(sequence, TEXT)
    buffer: Any = next(iter(runner.states.slots.values())).buffer
    before, copy = (buffer.handle, buffer.nbytes), npu.copy

    def fails(*_: object) -> None:
        msg = "it failed"
        raise DeviceError(msg)

    npu.copy = fails  # type: ignore[method-assign]
    try:
        buffer.grow(buffer, buffer.nbytes * 2)
        same = False
    except DeviceError:
        same = (buffer.handle, buffer.nbytes) == before
    npu.copy = copy  # type: ignore[method-assign]
    runner.close()
    return {"same": same}


if __name__ == "__main__":
    ways = {
        "memory": memory_that_ends,
        "copy": a_cache_that_cannot_be_copied,
        "a step": lambda: what_is_not_finite("a step"),
        "a file": lambda: what_is_not_finite("a file"),
    }
    print(json.dumps(ways[sys.argv[2]]()))
    plugins.get().close()
