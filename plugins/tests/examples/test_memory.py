"""The contract, clause by clause: memory, what is kept in it, and where it ends."""

import itertools

import numpy as np
import pytest
import umbel
from umbel.errors import DeviceError, OutOfMemoryError
from umbel.gguf.types import BY_NAME, dequantise, quantise
from umbel.graph import Role, Tensor
from umbel_kit import models as kit_models


def test_the_host_sees_nothing(found, toy):
    """No mapping, no sharing, no copy by itself; fresh memory is junk."""
    kind, host = toy.buffer_type, found.open(found.find("host"))
    buffer = kind.allocate(300, "compute")
    assert not kind.is_host
    assert not host.reads(toy)
    with pytest.raises(RuntimeError, match="cannot see"):
        buffer.map("r")
    assert not buffer.copy_from(0, host.buffer_type.allocate(300, "compute"), 0, 300)
    assert set(buffer.read(0, 300)) == {0xFF}
    buffer.write(7, np.arange(3, dtype=np.int32))
    assert buffer.read(7, 12).view(np.int32).tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", [(2, 32), (64,)])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "i32"])
def test_weights_as_they_are_accepted(toy, name, shape):
    """`store` keeps what `accepts` says, of vectors and of matrices; `read` gives it back."""
    dtype, kind = BY_NAME[name], toy.buffer_type
    values = np.arange(64, dtype=np.float32).reshape(shape)
    array = values.astype(np.int32) if name == "i32" else quantise(values, dtype)
    weight = Tensor(shape, dtype, Role.WEIGHT, "w")
    stored, accepted = kind.store(weight, array), kind.accepts(weight)
    assert accepted.name == ("i32" if name == "i32" else "f16" if len(shape) > 1 else "f32")
    got = stored.read(0, stored.nbytes).view(accepted.numpy).reshape(shape)
    whole = array if name == "i32" else dequantise(array, dtype).astype(accepted.numpy)
    np.testing.assert_array_equal(whole, got)


def test_weights_that_do_not_fit(toy, load, file, monkeypatch, free, memory):
    """What would become infinite is refused, with the names of weight and device; a vector is
    float32 there, and fits."""
    values = kit_models._values

    def large(name, shape, rng):
        return values(name, shape, rng) * (1e6 if name == chosen else 1)

    monkeypatch.setattr(kit_models, "_values", large)
    chosen = "blk.0.ffn_norm.weight"
    umbel.load(file("llama", large=1), "toy", ctx=64).close()
    chosen = "blk.1.ffn_down.weight"
    with pytest.raises(DeviceError, match="too large for f16") as caught:
        umbel.load(file("llama", large=2), "toy", ctx=64)
    assert caught.value.where == f"{chosen} on toy:0"
    assert free() == memory


def test_layout(load, graphs, alike, ids):
    """An opaque split has slots for what enters, leaves or stays, with padding and alignment;
    the machine spoils the padding, and no value suffers."""
    model = load("llama", kv="f32")  # attention is the host's: several splits
    alike(load("llama", "host").logits(ids), model.logits(ids))
    kind = model.runner.targets[0].buffer_type
    assert len(graphs) > 2
    for graph in graphs:
        at_the_edge = {t.storage for t in (*graph.inputs, *graph.outputs)}
        assert set(graph.slots) == at_the_edge
        assert any(node not in graph.slots for node in graph.nodes)
        spans = {
            (id(s.buffer), s.offset, s.offset + kind.alloc_size(t), s.buffer.nbytes)
            for t, s in graph.slots.items()
            if t.role in (Role.INPUT, Role.NODE)
        }
        assert all(not at % kind.alignment and end <= size for _, at, end, size in spans)
        for (one, _, end, _), (other, at, _, _) in itertools.pairwise(sorted(spans)):
            assert one != other or end <= at
    assert kind.alignment == 128
    model.logits(ids[:1])
    logits, slot = graphs[-1].outputs[-1], graphs[-1].slots[graphs[-1].outputs[-1]]
    padding = slot.offset + logits.nbytes, kind.alloc_size(logits) - logits.nbytes
    slot.buffer.write(padding[0], np.zeros(padding[1], np.uint8))
    model.logits(ids[:1])
    assert set(slot.buffer.read(*padding)) == {0xFF}


def test_float16_and_copies(found, toy, planned):
    """Results are rounded once stored; what two devices share goes through the host."""
    x = np.full((2, 5), 2048, np.float32)
    one = np.ones((2, 5), np.float32)
    for name, last in (("toy", 2048), ("host", 2049)):
        plan = planned([found.open(found.find(name))], "add", 2)
        (got,) = plan.run({"x0": x, "x1": one})
        assert set(got.flat) == {last}


@pytest.mark.parametrize(
    ("size", "ctx", "what"),
    [(150_000, 8, "the model does not fit"), (1 << 24, 2000, "context")],
)
def test_no_room(file, free, size, ctx, what):
    """A typed error while loading; what was taken by then is given back."""
    given = {"ctx": ctx, "kv": "f16", "options": {"toy": {"memory": size}}}
    given["parallel"] = ctx // 8
    with pytest.raises(OutOfMemoryError, match=what) as caught:
        umbel.load(file("llama", context_length=1 << 20), "toy", **given)
    assert free(collect=False) == size, caught  # who keeps the error keeps no more


def test_no_room_beside_another(found, load, file, memory):
    """What is free is asked when it matters: what one model takes the next one has not."""
    load("llama")
    left = found.backends["toy"].status(found.find("toy"))["memory_free"]
    with pytest.raises(OutOfMemoryError, match="the context does not fit") as caught:
        umbel.load(file("llama", context_length=1 << 20), "toy", ctx=1000, parallel=65)
    missing = caught.value.got - left
    assert caught.value.expected == f"at most {left} bytes: {missing} are missing"
    assert caught.value.got < memory


def test_a_strict_load_that_fails(toy, file, free, memory):
    """It gives everything back, too."""
    with pytest.raises(DeviceError, match="converted") as caught:
        umbel.load(file("llama"), "toy", ctx=64, strict=True)
    assert free(collect=False) == memory, caught
