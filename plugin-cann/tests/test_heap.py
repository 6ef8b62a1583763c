"""Memory from few large pieces: how many, how much is wasted, and that it comes back."""

from __future__ import annotations

import gc
import sys
import threading
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pytest
from stand_in import npu
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import BY_NAME, F16, F32, I32
from umbel.graph import Role, Tensor
from umbel_cann.chips import chip
from umbel_cann.heap import ALIGNMENT, CHUNK, Heap, padded
from umbel_cann.memory import BLOCK, NpuMemory


def heap_of(device: object) -> Heap:
    return Heap(device.allocate, device.free, device.wait)  # type: ignore[attr-defined]


def test_padding() -> None:
    """Up to 32 and 32 more; places at multiples of 64."""
    assert [padded(n) for n in (0, 1, 32, 33)] == [32, 64, 64, 96]
    heap = heap_of(npu(real=False))
    regions = [heap.take(n) for n in (1, 64, 65, 1000)]
    assert all(r.address % ALIGNMENT == 0 for r in regions)
    places = sorted((r.address, r.nbytes) for r in regions)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(places))


def test_one_chunk_serves_many_and_the_best_gap_is_taken() -> None:
    device = npu(real=False)
    heap = heap_of(device)
    kept = [heap.take(1 << 16) for _ in range(32)]
    assert device.sizes == [CHUNK]
    wide, narrow = kept[3].address, kept[8].address
    kept[3] = kept[4] = kept[8] = None  # type: ignore[call-overload]
    gc.collect()
    assert heap.take(1 << 16).address == narrow
    assert heap.take(1 << 17).address == wide
    assert device.sizes == [CHUNK]


def test_everything_joins_again_whatever_the_order() -> None:
    rng, heap = np.random.default_rng(0), heap_of(npu(real=False))
    for _ in range(20):
        regions = [heap.take(int(n)) for n in rng.integers(1, 1 << 18, 60)]
        while regions:
            regions.pop(int(rng.integers(len(regions))))
    assert heap.living == 0
    assert all(chunk.empty for chunk in heap.chunks)


def test_dropped_on_other_threads() -> None:
    heap = heap_of(npu(real=False))
    kept = [[heap.take(4096) for _ in range(50)] for _ in range(4)]
    threads = [threading.Thread(target=part.clear) for part in kept]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heap.living == 0


def test_empty_chunks_go_back_only_when_they_do_not_fit_and_after_a_wait() -> None:
    device = npu(real=False)
    heap = heap_of(device)
    heap.take(CHUNK)
    heap.take(CHUNK)
    assert (len(device.sizes), device.waits) == (1, 0)  # the same one, twice
    heap.take(8 * CHUNK)
    assert (device.waits, len(heap.chunks)) == (1, 1)
    heap.release()
    assert device.blocks == {}


def test_a_full_device() -> None:
    """Less than was hoped for will do; else the error says how much is missing."""
    device = npu(size=40 << 20, real=False)
    memory = NpuMemory(device, chip("Ascend310B4"), F16)
    kept = memory.heap.take(10 << 20, ahead=256 << 20)
    assert kept.nbytes == 10 << 20
    assert device.sizes == [32 << 20]
    with pytest.raises(OutOfMemoryError, match=r"(?s)25165824 bytes \(state.*are missing"):
        memory.allocate(24 << 20, "state")


def weights_3b() -> list[Tensor]:
    """Those of a model of Qwen2.5-3B's shape."""
    wide, inner, kv, layers, vocabulary = 2048, 11008, 256, 36, 151936
    q4, f32 = BY_NAME["q4_k"], F32
    shapes = [("token_embd", (vocabulary, wide), q4), ("output_norm", (wide,), f32)]
    for i in range(layers):
        shapes += [(f"{i}.{n}", (wide,), f32) for n in ("norm1", "norm2", "q_bias")]
        shapes += [(f"{i}.{n}", (kv,), f32) for n in ("k_bias", "v_bias")]
        shapes += [(f"{i}.{n}", (wide, wide), q4) for n in ("q", "o")]
        shapes += [(f"{i}.{n}", (kv, wide), q4) for n in ("k", "v")]
        shapes += [(f"{i}.{n}", (inner, wide), q4) for n in ("gate", "up")]
        shapes.append((f"{i}.down", (wide, inner), BY_NAME["q6_k"]))  # type: ignore[list-item]
    shapes[-1] = (f"{layers - 1}.down", (wide, 11008 // 256 * 256), q4)
    return [Tensor(shape, dtype, Role.WEIGHT, name) for name, shape, dtype in shapes]


def load(memory: NpuMemory, weights: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> list:
    """Stores them, without their bytes: those are not what is counted."""
    monkeypatch.setattr("umbel_cann.memory.pieces", lambda *_: None)
    monkeypatch.setattr("umbel_cann.weights.upload.Uploads.send", lambda *_: None)
    kept = []
    for t in weights:
        kept.append(memory.store(t, np.empty(0)))
    return kept


def test_a_model_of_3b_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 12 allocations with state and compute, and 2 % of waste; loads do not add up."""
    device = npu(real=False)
    memory, weights = NpuMemory(device, chip("Ascend310B4"), F16), weights_3b()
    for t in weights:
        assert memory.accepts(t) is F16
    kept = load(memory, weights, monkeypatch)
    states = [Tensor((4097, 256), F16, Role.STATE, f"k{i}") for i in range(72)]
    for t in states:
        memory.alloc_size(t)
    kept += [memory.allocate(memory.alloc_size(t), "state") for t in states]
    kept.append(memory.allocate(60 << 20, "compute"))
    first = sum(2 * 256 * 2 * BLOCK for _ in states)  # of each so many rows have memory
    needed = sum(2 * t.size for t in weights) + first + (60 << 20)
    assert len(device.sizes) <= 12
    assert memory.heap.reserved < 1.02 * needed
    assert memory.heap.living >= needed
    reserved = memory.heap.reserved
    for _ in range(3):
        kept.clear()
        kept = load(memory, weights, monkeypatch)
    assert memory.heap.reserved <= reserved
    assert memory.heap.calls <= 12


def test_a_second_model_beside_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody announces its weights again: it takes larger pieces as it grows."""
    device = npu(real=False)
    memory, weights = NpuMemory(device, chip("Ascend910B3"), F32), weights_3b()
    for t in weights:
        memory.accepts(t)
    both = [load(memory, weights, monkeypatch) for _ in range(2)]
    assert len(both[0]) == len(both[1])
    assert len(device.sizes) < 30


def test_what_is_accepted() -> None:
    small = NpuMemory(npu(), chip("Ascend310B4"), F16)
    large = NpuMemory(npu(), chip("Ascend910B3"), F32)
    cases = [("f32", 1), ("f32", 2), ("f16", 2), ("bf16", 1), ("bf16", 2), ("q4_k", 2)]
    made = [Tensor((256,) * n, BY_NAME[name], Role.WEIGHT, "w") for name, n in cases]
    assert [small.accepts(t).name for t in made] == ["f16"] * 6
    assert [large.accepts(t).name for t in made] == ["f32", "f32", "f16", "f32", "f16", "q4_k"]
    cache = Tensor((8, 64), F32, Role.STATE, "k_cache.0")
    recurrent = Tensor((8, 64), F32, Role.STATE, "ssm.0")
    assert (large.accepts(cache), large.accepts(recurrent)) == (F16, F32)
    assert small.accepts(Tensor((8,), I32, Role.WEIGHT, "ids")) is I32


def test_read_write_copy() -> None:
    memory = NpuMemory(npu(), chip("Ascend310B4"), F16)
    one, two = (memory.allocate(1000, "compute") for _ in range(2))
    data = np.arange(100, dtype=np.int32)
    one.write(64, data[::2])
    np.testing.assert_array_equal(one.read(64, 200).view(np.int32), data[::2])
    np.testing.assert_array_equal(one.integers[64], data[::2])
    assert two.copy_from(0, one, 64, 200)
    np.testing.assert_array_equal(two.read(0, 200).view(np.int32), data[::2])
    assert not two.copy_from(0, NpuMemory(npu(), chip(""), F16).allocate(8, "state"), 0, 8)
    assert one.handle % 64 == 0
    with pytest.raises(RuntimeError):
        one.map("r")


def test_stored_as_accepted() -> None:
    memory = NpuMemory(npu(), chip("Ascend310B4"), F16)
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    stored = memory.store(Tensor((2, 32), F32, Role.WEIGHT, "w"), values)
    back = stored.read(0, 128).view(np.float16)
    np.testing.assert_array_equal(back, values.astype(np.float16).reshape(-1))
