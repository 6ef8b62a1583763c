"""How much memory weights take, and whose it is."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from umbel import gguf, host
from umbel.errors import DeviceError, OutOfMemoryError, UmbelError
from umbel.gguf.types import BY_NAME
from umbel.graph import Role, Tensor
from umbel.host.memory import HostBufferType


def large(run, rows=2048, width=2048):
    """A q8_0 weight of 4 million values, without the cost of encoding it."""
    blocks = np.empty((rows, width // 32, 34), np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    blocks[..., 2:] = run.rng.integers(0, 255, (rows, width // 32, 32))
    t = run.build.leaf(Role.WEIGHT, "large", (rows, width), BY_NAME["q8_0"])
    run.feeds[t] = blocks.reshape(rows, -1)
    return t


def test_blocks_need_little_memory(run, close_to):
    """In blocks mode no more than a few pieces are ever dequantised."""
    peaks, results = {}, []
    w, x = large(run), run.input(3, 2048)
    for mode in ("blocks", "once"):
        run.open(dequantise=mode)
        graph = run.graph(run.build.mul_mat(w, x))
        tracemalloc.start()
        for _ in range(2):
            host.graph_compute(host.DEVICE, graph)
        peaks[mode] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        results.append(graph.slots[graph.nodes[0]].buffer.read(0, 3 * 2048 * 4).view("<f4"))
    dense = 4 * 2048 * 2048
    assert peaks["blocks"] < dense / 2 < dense < peaks["once"] < 1.5 * dense
    close_to(results[:1], results[1:])


def test_budget(run, close_to):
    """Copies are kept while they fit; the others are dequantised at each use."""
    weights = [run.weight("q8_0", 10) for _ in range(4)]
    run.open(memory=2 * 4 * 10 * 256)
    outputs = [run.build.mul_mat(w, run.input(2, 256)) for w in weights]
    graph = run.graph(*outputs)
    host.graph_compute(host.DEVICE, graph)
    kept = [graph.slots[w].buffer._dense is not None for w in weights]
    assert kept == [True, True, False, False]
    assert host.status(host.DEVICE)["dequantised"] == 2 * 4 * 10 * 256
    actual = [graph.slots[t].buffer.read(0, t.nbytes).view("<f4") for t in outputs]
    close_to([e.reshape(-1) for e in run.expected(*outputs)], actual)


def test_the_budget_comes_back(run):
    """When a model is closed, the next one gets the room of its copies."""
    run.open(memory=1 << 20)
    graph = run.graph(run.build.mul_mat(run.weight("q8_0", 10), run.input(1, 256)))
    host.graph_compute(host.DEVICE, graph)
    memory = host.buffer_type(host.DEVICE)
    assert memory.used == 4 * 2560
    host.forget(host.DEVICE, graph.uid)
    del graph
    gc.collect()
    assert memory.used == 0


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"dequantise": "once"}, 1 << 62),
        ({"dequantise": "blocks"}, 0),
        ({"dequantise": "blocks", "memory": 99}, 0),
        ({"dequantise": "once", "memory": 99}, 99),
        ({"dequantise": "auto", "memory": 0}, 0),
    ],
)
def test_limits(run, options, limit):
    """What the options mean."""
    run.open(**options)
    assert limit == host.buffer_type(host.DEVICE).limit


def test_half_of_what_is_free(run, monkeypatch):
    """The default follows the machine."""
    monkeypatch.setattr(host, "memory", lambda: (1000, 600))
    info = run.open()
    assert (info.memory_total, info.memory_free) == (1000, 600)
    assert host.buffer_type(host.DEVICE).limit == 300


def test_small_vectors_are_always_kept(run):
    """Norms are read at every step, however tight the budget."""
    run.open(dequantise="blocks")
    w = run.leaf(Role.WEIGHT, run.normal(8), "f16")
    graph = run.graph(run.build.mul(run.input(2, 8), w))
    host.graph_compute(host.DEVICE, graph)
    assert graph.slots[w].buffer._dense is not None
    assert host.buffer_type(host.DEVICE).used == 0


def test_weights_stay_mapped(run, kit):
    """Nothing is copied at load, and a closed file stays readable for whoever holds it."""
    file = gguf.open(kit.oracles / "llama-e256-Q8_0.gguf")
    info = file.tensors["blk.0.ffn_up.weight"]
    w = run.build.leaf(Role.WEIGHT, info.name, info.shape, info.dtype)
    run.feeds[w] = file.array(info.name)
    weight = host.buffer_type(host.DEVICE).store(w, run.feeds[w])
    assert np.shares_memory(weight.map("r"), run.feeds[w])
    assert info.nbytes == weight.nbytes
    assert run.feeds[w].tobytes() == weight.read(0, weight.nbytes).tobytes()
    output = run.build.mul_mat(w, run.input(2, 256))
    expected = run.expected(output)[0]
    file.close()
    assert np.abs(expected - run.compute(output)[0]).max() < 1e-4
    with pytest.raises(UmbelError, match="closed"):
        file.array(info.name)


def test_a_weight_cannot_be_overwritten(run):
    """The file of a model is never changed."""
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    t = Tensor((4,), BY_NAME["f32"], Role.WEIGHT, "w")
    weight = host.buffer_type(host.DEVICE).store(t, array)
    with pytest.raises(TypeError, match="read-only"):
        weight.write(0, np.ones(4, np.float32))


def test_no_room():
    """More than there can be is an error with the number."""
    kind = HostBufferType(0)
    with pytest.raises(OutOfMemoryError, match="state") as caught:
        kind.allocate(1 << 61, "state")
    assert caught.value.got == 1 << 61


def test_buffers():
    """Memory is aligned, and is read and written by bytes."""
    kind = HostBufferType(0)
    buffer = kind.allocate(100, "compute")
    assert (buffer.handle % kind.alignment, buffer.nbytes) == (0, 100)
    buffer.write(8, np.array([1.5, -2.0], np.float32))
    assert buffer.read(8, 8).view("<f4").tolist() == [1.5, -2.0]
    copy = buffer.read(8, 4)
    buffer.write(8, np.zeros(1, np.float32))
    assert copy.view("<f4")[0] == 1.5
    assert np.shares_memory(buffer.map("rw"), buffer.memory)
    assert not buffer.copy_from(0, buffer, 8, 4)


def test_no_room_to_compute(run, monkeypatch):
    """Python's own MemoryError names the node and what to do."""

    def fails(*arrays, **attributes):
        raise MemoryError

    op = run.build.ops["exp"]
    graph = run.graph(run.build.exp(run.input(2, 2), name="large"))
    monkeypatch.setattr(type(op), "__setattr__", object.__setattr__)
    monkeypatch.setattr(op, "reference", fails)
    with pytest.raises(OutOfMemoryError, match="large") as caught:
        host.graph_compute(host.DEVICE, graph)
    assert "blocks" in caught.value.do
    assert isinstance(caught.value, DeviceError)
