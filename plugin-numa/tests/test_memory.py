"""What a loaded weight takes: the packed copy stands in the place of the file's pages."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
from umbel.gguf.types import BY_NAME, F32
from umbel.graph import Role, Tensor
from umbel_numa.engine import Engine
from umbel_numa.memory import NativeMemory


def resident(path: Path) -> int:
    """Bytes of the file that are in this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    found = (next(x for x in lines if x.startswith("Rss:")) for at in lines if str(path) in at)
    return sum(1024 * int(line.split()[1]) for line in found)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells only on Linux")
def test_pages_of_the_file_go(tmp_path: Path) -> None:
    """A matrix is packed and its pages are dropped; few values are copied, and no page kept."""
    kind, rows, cols = BY_NAME["q8_0"], 4096, 1024
    path, size = tmp_path / "weights", rows * kind.row_bytes(cols)
    path.write_bytes(bytes(size + 4 * cols))
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    engine = Engine(1)
    try:
        memory = NativeMemory(engine)
        matrix = Tensor((rows, cols), kind, Role.WEIGHT, "matrix")
        packed = memory.store(matrix, mapped[:size].reshape(rows, -1))
        norm = Tensor((cols,), F32, Role.WEIGHT, "norm")
        few = memory.store(norm, mapped[size:].view(np.float32))
        assert packed.packed()
        assert few.values()
        assert not few.map("r").any()
        assert resident(path) < size // 4
    finally:
        engine.close()
