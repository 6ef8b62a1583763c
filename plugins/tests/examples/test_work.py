"""The contract, clause by clause: work that is asked for, that fails, and that is stopped."""

import threading

import numpy as np
import pytest
from umbel.errors import DeviceError


def test_asynchronous(found, meddle, graphs, planned):
    """`graph_compute` comes back at once; a read waits for what was asked before it."""
    gate, done = threading.Event(), []
    meddle("neg", lambda: gate.wait(10))
    toy = found.open(found.find("toy"))
    plan = planned([toy], "neg")
    ((_, slot),) = plan.inputs
    slot.buffer.write(slot.offset, np.ones((2, 5), np.float16))
    toy.hooks.graph_compute(toy.device, plan.steps[0].graph)
    ((node, out),) = plan.outputs

    def read():
        done.append(out.buffer.read(out.offset, node.nbytes).view(np.float16))

    reader = threading.Thread(target=read)
    reader.start()
    reader.join(0.05)
    assert not done
    gate.set()
    reader.join()
    assert set(done[0]) == {-1}
    toy.hooks.sync(toy.device)


def test_errors_come_late(found, meddle, planned):
    """With `sync`, once, and they name the split; nothing is computed from what failed."""
    calls = []
    meddle("neg", lambda: calls.append(1) or 1 // 0)
    toy = found.open(found.find("toy"))
    graph = planned([toy], "neg").steps[0].graph
    for _ in range(2):
        toy.hooks.graph_compute(toy.device, graph)
    with pytest.raises(DeviceError, match="the toy failed") as caught:
        toy.hooks.sync(toy.device)
    assert "by zero" in str(caught.value)
    assert len(calls) == 1
    toy.hooks.sync(toy.device)


@pytest.mark.parametrize(
    ("check", "named"), [(False, r"to output \(mul_mat\) on toy"), (True, r"^swiglu .* on toy")]
)
def test_a_failing_step(load, meddle, check, named, ids):
    """It names its split, with `check` its node; the session is as before, the next step
    right."""
    faults = []
    meddle("swiglu", lambda: int(faults.pop()) if faults else None)
    model = load("llama", check=check)
    with model.open() as session:
        session.feed(ids[:6])
        faults.append("no number")
        with pytest.raises(DeviceError, match=named):
            session.feed(ids[6:9])
        assert session.tokens == ids[:6]
        again = session.feed(ids[6:9])
    with model.open() as session:
        session.feed(ids[:6])
        np.testing.assert_array_equal(again, session.feed(ids[6:9]))


def test_cancel_in_the_middle(found, load, meddle, alike, ids):
    """From another thread, between two operations of one split; the session goes on."""
    running, gate, calls = threading.Event(), threading.Event(), []
    found.load()
    toy = found.backends["toy"]
    cancel, cancelled = toy.cancel, threading.Event()
    toy.cancel = lambda device: (cancel(device), cancelled.set())

    def first():
        calls.append(1)
        running.set()
        assert gate.wait(30)

    meddle("swiglu", first)
    model = load("llama")
    session = model.open()
    generation = session.generate(ids[:9], max_tokens=4, temperature=0)
    assert running.wait(30)
    closing = threading.Thread(target=generation.close)
    closing.start()
    assert cancelled.wait(30)
    gate.set()
    closing.join()
    assert generation.finish_reason == "cancelled"
    assert len(calls) == 1  # of the two layers
    assert session.tokens == []
    alike(load("llama", "host").logits(ids[:9])[-1:], session.feed(ids[:9])[None])
    session.close()


def test_forgotten(found, load, free, ids, memory):
    """A closed model leaves no program and no memory taken."""
    model = load("llama")
    model.logits(ids)
    programs = found.backends["toy"].status(found.find("toy"))["programs"]
    assert programs == len(model.runner._plans) > 0
    model.close()
    assert free() == memory
