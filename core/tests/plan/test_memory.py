"""Weights, arenas and states: what is loaded where, how often, and what happens when it is
full."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from umbel.backend import Memory
from umbel.errors import OutOfMemoryError
from umbel.gguf.types import BY_NAME
from umbel.graph import Role, Tensor
from umbel.plan import Arenas, States
from umbel.state import Sequence


def test_weights_are_loaded_where_they_are_used(kit, load):
    """Once for each device that uses them, and by nobody else."""
    fake = kit.Fake(refuse=kit.only("mul_mat"), is_host=True, reads_host=True)
    idle = kit.Fake("idle:0", refuse=kit.only())
    runner = load("gpt2", fake, idle)
    runner.forward(Sequence(), [1, 2, 3])
    assert idle.stored == {}
    on_host = {key[1] for key in runner.weights._slots if key[0] == "host:0"}
    products = {n for n in fake.stored if n.endswith(".weight") and "norm" not in n}
    assert products == set(fake.stored)
    assert "token_embd.weight" in on_host & set(fake.stored)  # rows here, the head there
    assert "blk.0.ffn_up.weight" not in on_host
    assert "blk.0.ffn_up.bias" not in fake.stored
    assert on_host | set(fake.stored) == runner.weights.used == set(runner.weights.file.tensors)
    size = sum(runner.weights.file.tensors[n].nbytes for n in fake.stored)
    assert (size, 0) == tuple(runner.weights.nbytes(t) for t in runner.targets[:2])


def test_a_second_plan_loads_nothing(kit, load):
    """Weights and constants are shared by all plans."""
    fake = kit.Fake()
    runner = load("llama", fake)
    runner.forward(Sequence(), [1, 2, 3])
    before = dict(runner.weights._slots)
    runner.forward(Sequence(), [1, 2])
    assert before == runner.weights._slots


def test_inputs_are_written_once_for_each_device(kit, load):
    """However many nodes and splits read them."""
    fake = kit.Fake(refuse=kit.without("silu", "swiglu", "sigmoid"))
    runner = load("llama", fake)
    sequence = Sequence()
    runner.forward(sequence, [1, 2, 3])
    fake.writes.clear()
    runner.forward(sequence, [4])
    plan = runner.made[-1]
    copies = sum(len(step.copies) for step in plan.steps if step.target.name == "fake:0")
    assert copies > 0
    names = [t.name for t, slot in plan.inputs if slot.buffer.usage == "compute"]
    assert len(set(names)) == len(names) > 4
    assert len(names) + copies == fake.writes.count("compute")


@pytest.mark.parametrize("how", ["both", "one way", "apart"])
def test_no_copies_of_what_can_be_read(kit, rng, how):
    """A device that sees another's memory reads it there; copies are made only where not."""
    fake = kit.Fake(refuse=kit.only("mul_mat"), asynchronous=True)
    fake.reads_host, fake.is_host = how != "apart", how == "both"
    small = kit.Small(fake)
    b, x = small.build, small.input("x", 3, 4)
    w = small.weight("w", rng.standard_normal((4, 4)))
    plan = small.plan(b.exp(b.mul_mat(w, b.exp(x))))
    moves = [slots[:2] for step in plan.steps for slots in step.copies]
    copies = [
        tuple(getattr(s.buffer, "owner", small.targets[-1]).name for s in m) for m in moves
    ]
    back, there = ("fake:0", "host:0"), ("host:0", "fake:0")
    assert {"both": [], "one way": [back], "apart": [there, back]}[how] == copies
    values = rng.standard_normal((3, 4)).astype(np.float32)
    (actual,) = plan.run({"x": values})
    weight = small.arrays["w"]
    np.testing.assert_allclose(np.exp(np.exp(values) @ weight.T), actual, rtol=1e-4)


def test_shared_memory_is_not_reused_too_early(kit, rng):
    """An asynchronous device may still read what the host would overwrite."""
    fake = kit.Fake(refuse=kit.only("sqrt"), reads_host=True, asynchronous=True)
    small = kit.Small(fake)
    b, x = small.build, small.input("x", 64)
    late = b.sqrt(b.mul(x, x))
    y = x
    for i in range(12):
        y = b.add(y, b.scale(y, s=float(i)))
    plan = small.plan(late, y)
    values = rng.random(64).astype(np.float32)
    actual, _ = plan.run({"x": values})
    np.testing.assert_allclose(values, actual, rtol=1e-6)


def test_devices_apart_do_not_wait(kit):
    """Two devices that share nothing work at the same time."""
    one = kit.Fake("one:0", refuse=kit.only("exp"), asynchronous=True)
    two = kit.Fake("two:0", refuse=kit.only("sqrt"), asynchronous=True)
    small = kit.Small(one, two)
    b, x = small.build, small.input("x", 4)
    plan = small.plan(b.exp(x), b.sqrt(x))
    assert [step.waits for step in plan.steps] == [(), ()]
    first, second = plan.run({"x": np.ones(4, np.float32)})
    assert [np.exp(np.float32(1)), 1] == [first[0], second[0]]


def test_copies_wait_for_their_source(kit):
    """A device that copies by itself finds what the other has finished."""
    how = {"asynchronous": True, "copies_itself": True}
    one = kit.Fake("one:0", refuse=kit.only("exp"), **how)
    two = kit.Fake("two:0", refuse=kit.only("sqrt"), **how)
    small = kit.Small(one, two)
    plan = small.plan(small.build.sqrt(small.build.exp(small.input("x", 4))))
    assert [[t.name for t in step.waits] for step in plan.steps] == [[], ["one:0"]]
    (actual,) = plan.run({"x": np.zeros(4, np.float32)})
    assert actual.tolist() == [1, 1, 1, 1]
    assert two.copies == 1


def test_separate_memory(kit, load):
    """A device with an allocation for each tensor gets no arena."""
    fake = kit.Fake(separate=True, opaque=True)
    runner = load("llama", fake)
    runner.forward(Sequence(), [1, 2])
    assert runner.arenas._buffers == {}
    plan = runner.made[-1]
    (step,) = plan.steps
    roles = (Role.INPUT, Role.NODE)
    slots = {t: slot for t, slot in step.graph.slots.items() if t.role in roles}
    assert len(slots) == len({id(slot.buffer) for slot in slots.values()})
    assert {0} == {slot.offset for slot in slots.values()}
    assert {"input", "compute"} == {slot.buffer.usage for slot in slots.values()}
    assert len(slots) == len(plan.inputs) + len(plan.outputs)


def test_plans_share_an_arena_that_grows(kit, load, ids):
    """A larger plan gets a new arena, and all others go through the hook first."""
    fake = kit.Fake()
    runner = load("llama", fake)
    sequence = Sequence()
    first = runner.forward(sequence, ids("llama")[:4])
    buffers = {id(s.buffer) for p in runner.made for _, s in p.inputs}
    assert len(buffers) == 1
    uids = {step.graph.uid for p in runner.made for step in p.steps}
    size = runner.arenas.nbytes(runner.targets[0])
    other = Sequence()
    runner.forward(other, ids("llama")[:16], every=True)
    assert size < runner.arenas.nbytes(runner.targets[0])
    assert uids <= fake.forgotten
    again = Sequence()
    assert np.array_equal(first, runner.forward(again, ids("llama")[:4]))


def test_a_plan_outlives_its_arena(kit):
    """A plan that somebody kept still works in the memory it was made for."""
    small = kit.Small(kit.Fake())
    b, x = small.build, small.input("x", 4)
    grown = []
    small.arenas.grown = lambda: grown.append(1)
    old = small.plan(b.exp(x))
    y = small.input("y", 400)
    new = small.plan(b.exp(y))
    assert grown == [1]
    (actual,) = new.run({"y": np.zeros(400, np.float32)})
    assert actual[0] == 1
    (actual,) = old.run({"x": np.zeros(4, np.float32)})
    assert actual.tolist() == [1, 1, 1, 1]


def test_all_plans_are_forgotten(kit, load):
    """Every split that a device was given is forgotten when the model closes."""
    fake = kit.Fake(refuse=kit.without("mul_mat"))
    runner = load("llama", fake)
    runner.forward(Sequence(), [1, 2])
    runner.forward(Sequence(), [1, 2, 3])
    assert fake.compiled
    runner.close()
    assert set() == fake.compiled
    assert {graph.uid for graph in fake.computed} <= fake.forgotten


def test_no_room_for_state(kit, load):
    """The error of the device comes through, with its numbers."""
    with pytest.raises(OutOfMemoryError, match="the fake is full") as caught:
        load("llama", kit.Fake(room=1000))
    assert caught.value.expected == 1000
    assert caught.value.got > 1000


def test_no_room_for_a_plan(kit):
    """One piece larger than the device gives is refused with both numbers."""
    small = kit.Small(kit.Fake(max_size=1 << 10))
    x = small.input("x", 1 << 10)
    with pytest.raises(OutOfMemoryError, match="fake:0") as caught:
        small.plan(small.build.exp(x))
    assert caught.value.expected == "at most 1024 bytes"
    assert caught.value.got >= 4096


def test_growth_that_fails(kit):
    """When there is no room for a larger arena, smaller plans can be made again."""
    small = kit.Small(kit.Fake(room=1 << 12))
    b = small.build
    small.plan(b.exp(small.input("x", 8)))
    with pytest.raises(OutOfMemoryError):
        small.plan(b.exp(small.input("y", 1 << 12)))
    (actual,) = small.plan(b.sqrt(small.input("x", 8))).run({"x": np.ones(8, np.float32)})
    assert actual.tolist() == [1] * 8


def test_the_first_arena_is_no_growth():
    """Nobody is told to go when there was nothing before."""

    class Kind:
        max_size = 1 << 20

        def allocate(self, nbytes, usage):
            return type("Buffer", (), {"nbytes": nbytes})

    target = type("Target", (), {"name": "a:0", "buffer_type": Kind()})()
    told = []
    arenas = Arenas(lambda: told.append(1))
    first = arenas.buffer(target, 100)
    assert (first, []) == (arenas.buffer(target, 50), told)
    assert (arenas.buffer(target, 200).nbytes, told) == (200, [1])
    assert arenas.nbytes(target) == 200


@pytest.mark.parametrize("guarded", [False, True])
def test_progress_within_a_weight(kit, guarded):
    """Of devices that tell of it; others are given what they always were, as are constants."""

    class Telling(kit.Fake):
        tells_progress = True

        def store(self, tensor, array, tell=None):
            for share in (1, 2, 4) if tell else ():
                tell(array.nbytes * share // 4)
            return super().store(tensor, array)

    told = []
    for fake in (Telling(), kit.Fake()):
        small, target = kit.Small(), fake.target()
        if guarded:
            guard = Memory(fake, target.device, target.lock)
            target = attrs.evolve(target, buffer_type=guard)
        small.weights.progress = lambda *sizes: told.append(sizes)
        small.weights.total = 100
        small.weights.slot(small.build.const(np.zeros(3, np.float32)), target)
        for name, n in (("a", 8), ("b", 16)):
            small.weights.slot(small.weight(name, np.zeros(n)), target)
    within = [8, 16, 32, 32, 48, 64, 96, 96]
    assert told == [(n, 100) for n in (*within, 32, 96)]
    told.clear()

    def enough(*sizes):
        told.append(sizes)
        raise LookupError(sizes)

    # what a caller raises is his, and not a fault of the device, which was at work
    fake = Telling()
    small, target = kit.Small(), fake.target()
    small.weights.progress = enough
    if guarded:
        target = attrs.evolve(target, buffer_type=Memory(fake, target.device, target.lock))
    with pytest.raises(LookupError):
        small.weights.slot(small.weight("a", np.zeros(8)), target)
    assert len(told) == 1


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_rows_of_a_state(kit, dtype):
    """Rows are read and written in any order, also across gaps; the first two begin at 0."""
    states = States()
    tensor = Tensor((10, 64), BY_NAME[dtype], Role.STATE, "s")
    states.add(tensor, kit.Fake(padding=100).target())
    size = states.row_bytes("s")
    assert np.zeros((2, size)).tolist() == states.read_rows("s", np.arange(2)).tolist()
    states.write_rows("s", np.arange(10), np.zeros((10, size), np.uint8))
    rows = np.array([7, 8, 2, 3, 4, 0], np.int32)
    data = np.arange(6 * size).reshape(6, size).astype(np.uint8)
    states.write_rows("s", rows, data)
    assert data.tolist() == states.read_rows("s", rows).tolist()
    assert data[::-1].tolist() == states.read_rows("s", rows[::-1]).tolist()
    assert states.read_rows("s", np.array([1, 5, 6, 9])).max() == 0
    assert (0, size) == states.read_rows("s", rows[:0]).shape


@pytest.mark.parametrize("told", [{"memory_free": 9000}, {"memory_free": "much"}, {}])
def test_room_is_asked_for_at_load(kit, load, told):
    """Of `status`, as others may have taken some since the device was opened."""
    fake = kit.Fake(told=told)
    if told.get("memory_free") == 9000:
        with pytest.raises(OutOfMemoryError, match="the context does not fit") as caught:
            load("llama", fake)
        missing = caught.value.got - 9000
        assert caught.value.expected == f"at most 9000 bytes: {missing} are missing"
        assert fake.room == 1 << 40
    else:
        load("llama", fake)


@pytest.mark.parametrize(("name", "parallel"), [("llama", 3), ("llama", 1), ("bert", 3)])
def test_the_largest_steps_are_prepared_at_load(kit, load, name, parallel):
    """The worst prefill, and the worst decode where several sequences decode: what comes after
    them needs no more compute memory. Of an encoder it is the longest text."""
    fake = kit.Fake(refuse=kit.only_simple)  # it gathers the rows of each sequence
    runner = load(name, fake, parallel=parallel, ubatch=2)
    inputs = [{t.name: t for t in graph.inputs} for graph in fake.prepared]
    tokens = [given["tokens"].shape for given in inputs]
    assert tokens == ([(64,)] if name == "bert" else [(2,), (3,)][: min(parallel, 2)])
    assert not fake.computed
    arena = runner.arenas.nbytes(runner.targets[0])
    if name == "llama":
        sequences = [Sequence() for _ in range(parallel)]
        for sequence in sequences:
            runner.forward(sequence, [*range(60)])
        runner.decode(sequences, [1] * parallel)
    assert runner.arenas.nbytes(runner.targets[0]) == arena
    assert len(fake.prepared) == len(tokens)  # nothing else is


def test_a_device_that_cannot_prepare(kit, load):
    """It is refused at load, and everything goes back."""

    def full(what, *of):
        if what == "prepare":
            raise OutOfMemoryError("the fake is full", expected="at most 9 bytes", got=10)

    with pytest.raises(OutOfMemoryError, match="the fake is full"):
        load("llama", fake := kit.Fake(fault=full))
    assert fake.compiled == set()


def test_a_context_that_grows(kit, load, caplog):
    """It may end before it is full: that is said, and cells are handed out from the front."""
    fake = kit.Fake(told={"memory_free": 9000}, is_host=True, reads_host=True, grows=8)
    runner = load("llama", fake)
    assert "all of the context does not fit into the memory of fake:0" in caplog.text
    assert runner.cache.cells.block == 8
    assert len(runner.cache.cells) % 8 == 0
    assert not load("llama", kit.Fake()).cache.cells.block


def keeps(dtype):
    """States as that, weights as they are."""
    return lambda tensor: dtype if tensor.role is Role.STATE else tensor.dtype.name


def no_cache(node):
    return "no cache" if "cache" in str(node.inputs) else None


@pytest.mark.parametrize(
    ("given", "kv", "conv", "cache"),
    [
        ({"accepted": keeps("f16")}, "auto", "f16", "f16"),
        ({"accepted": keeps("f16")}, "f32", "f16", "f32"),
        ({"accepted": keeps("f16")}, "q8_0", "f16", "q8_0"),
        ({"accepted": keeps("f16"), "refuse": no_cache}, "auto", "f16", "f32"),
        ({"accepted": keeps("bf16")}, "auto", "f32", "f32"),  # no row of a state can be that
        ({}, "auto", "f32", "f32"),
    ],
)
def test_states_are_kept_as_their_home_likes(kit, load, ids, given, kv, conv, cache):
    """Each by itself, where nobody chose: on the host as float32."""
    runner = load("lfm2", kit.Fake(**given), kv=kv)
    kinds = {(t.name.partition(".")[0], t.dtype.name) for t in runner.states.tensors.values()}
    assert kinds == {("conv", conv), ("k_cache", cache), ("v_cache", cache)}
    expected, actual = (kit.spoken(r, ids("lfm2")) for r in (load("lfm2", kv="f32"), runner))
    assert np.abs(expected - actual).max() < (0.1 if kv == "q8_0" else 4e-3)
