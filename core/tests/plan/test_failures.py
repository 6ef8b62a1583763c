"""A step that fails or is cancelled changes nothing, and the error says where it failed."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from umbel.errors import CancelledError, DeviceError, GraphError
from umbel.plan import Stop
from umbel.state import Sequence

HOW = {
    "at once": {},
    "later": {"asynchronous": True},
    "decomposed": {"asynchronous": True, "refuse": "only_simple"},
    "rows later": {"refuse": ("without", "set_rows", "kv_attention")},
    "half": {"refuse": ("without", "mul_mat"), "asynchronous": True, "copies_itself": True},
}


def make_fake(kit, how):
    how = dict(how)
    refuse = how.get("refuse")
    if isinstance(refuse, tuple):
        how["refuse"] = getattr(kit, refuse[0])(*refuse[1:])
    elif refuse:
        how["refuse"] = getattr(kit, refuse)
    return kit.Fake(**how)


class Fault:
    """Fails at the n-th call of a kind."""

    def __init__(self, kind, n, error=None):
        self.kind, self.n = kind, n
        self.error = error or DeviceError("it broke", where="fake:0")
        self.seen = 0

    def __call__(self, kind, *what):
        if kind == self.kind:
            self.seen += 1
            if self.seen == self.n:
                raise self.error


def places(runner):
    cache = runner.cache
    return [p.references.tolist() for p in (cache.cells, cache.slots) if p is not None]


def rows_of(runner, sequence):
    """All that a sequence owns in the states."""
    kept = []
    for name in runner.states.tensors:
        rows = sequence.cells if "_cache" in name else np.array([sequence.slot])
        kept.append(runner.states.read_rows(name, rows).tolist())
    return kept


def describe(runner, sequence):
    own = (list(sequence.tokens), sequence.cells.tolist(), sequence.slot, sequence.snapshots)
    return own, places(runner), rows_of(runner, sequence)


FAULTS = [("node", 1), ("node", 9), ("sync", 1), ("sync", 2), ("copy", 1), ("write", 1)]


@pytest.mark.parametrize("name", ["llama", "mamba2", "lfm2"])
@pytest.mark.parametrize("how", HOW)
def test_a_failed_step(kit, load, ids, name, how):
    """Sequences, pools and states are what they were, wherever the step fails; it can be tried
    again, and later results are the same."""
    given = ids(name)
    fake = make_fake(kit, HOW[how])
    runner = load(name, fake)
    good, bad = Sequence(), Sequence()
    runner.forward(good, given[:5])
    expected = runner.forward(good, given[5:8], every=True)
    runner.forward(bad, given[:5])
    before, failures = describe(runner, bad), 0
    for kind, n in FAULTS:
        trial = runner.cache.fork(bad)
        start = describe(runner, trial)
        fake.fault = Fault(kind, n)
        try:
            runner.forward(trial, given[5:8])
        except DeviceError:
            failures += 1
            fake.fault = kit.nothing
            assert start == describe(runner, trial)
        fake.fault = kit.nothing
        assert fake.queue == []
        runner.cache.close(trial)
        assert before == describe(runner, bad)
    assert failures >= 3
    assert np.abs(expected - runner.forward(bad, given[5:8], every=True)).max() < 1e-5


def test_a_prompt_that_fails_half_way(kit, load, ids):
    """What the first pieces have done is undone too."""
    for name in ("llama", "mamba2"):
        fake = kit.Fake()
        runner = load(name, fake, ubatch=4)
        sequence = Sequence()
        runner.forward(sequence, ids(name)[:3])
        before = describe(runner, sequence)
        count = len(fake.computed)
        fake.fault = Fault("sync", 3)
        with pytest.raises(DeviceError, match="it broke"):
            runner.forward(sequence, ids(name)[3:15])
        assert len(fake.computed) - count > 2
        assert before == describe(runner, sequence)


def test_two_sequences_that_fail_together(kit, load, ids):
    """A failed step of several sequences leaves all of them as they were."""
    fake = kit.Fake(asynchronous=True)
    runner = load("lfm2", fake)
    pair = [Sequence(), Sequence()]
    for sequence in pair:
        runner.forward(sequence, ids("lfm2")[:4])
    before = [describe(runner, s) for s in pair]
    fake.fault = Fault("node", 20)
    with pytest.raises(DeviceError, match="it broke"):
        runner.decode(pair, [3, 4])
    assert before == [describe(runner, s) for s in pair]


def test_cancel_on_the_device(kit, load, ids):
    """Stopped between two nodes by another thread."""
    fake = kit.Fake()
    runner = load("llama", fake)
    sequence = Sequence()
    runner.forward(sequence, ids("llama")[:5])
    before = describe(runner, sequence)
    seen = []

    def cancel(kind, *what):
        seen.append(kind)
        if kind == "node" and seen.count("node") == 5:
            thread = threading.Thread(target=runner.stop.ask)
            thread.start()
            thread.join()

    fake.fault = cancel
    with pytest.raises(CancelledError):
        runner.forward(sequence, [7, 8])
    assert seen.count("node") == 5
    runner.stop.asked = False
    assert before == describe(runner, sequence)


def test_cancel_on_the_host(kit, load, ids, monkeypatch):
    """The host too stops between two nodes."""
    runner = load("llama")
    sequence = Sequence()
    runner.forward(sequence, ids("llama")[:5])
    before = describe(runner, sequence)
    operation = runner.definition.ops["rms_norm"]
    calls = []

    def reference(*arrays, **attributes):
        calls.append(1)
        runner.stop.ask()
        return norm(*arrays, **attributes)

    norm = operation.reference
    object.__setattr__(operation, "reference", reference)
    try:
        with pytest.raises(CancelledError):
            runner.forward(sequence, [7, 8])
    finally:
        object.__setattr__(operation, "reference", norm)
    assert calls == [1]
    assert before == describe(runner, sequence)


def test_stop_between_splits(kit):
    """Whoever runs a plan can stop it where no device listens."""
    fake, stop = kit.Fake(refuse=kit.only("mul_mat")), Stop()
    small = kit.Small(fake)
    b, x = small.build, small.input("x", 2, 4)
    w = small.weight("w", np.eye(4))
    plan = small.plan(b.exp(b.mul_mat(w, b.exp(x))))

    def deaf(kind, *what):
        if kind == "cancel":
            raise DeviceError("no ears")
        if kind == "node":
            stop.ask()

    fake.fault = deaf
    with pytest.raises(CancelledError):
        plan.run({"x": np.zeros((2, 4), np.float32)}, stop)
    assert len(fake.computed) == 1
    fake.fault = kit.nothing
    (actual,) = plan.run({"x": np.zeros((2, 4), np.float32)})
    assert np.allclose(np.exp(1), actual)


def test_a_cancel_hits_nobody_else(kit):
    """A device hears of it only while the step holds it, and is waited for before others."""
    fake, stop = kit.Fake(), Stop()
    small = kit.Small(fake)
    plan = small.plan(small.build.exp(small.build.sqr(small.input("x", 2))))
    given, told = {"x": np.ones(2, np.float32)}, []

    def late(kind, *what):
        told.append(kind)
        if told.count("sync") == 1 == told.count("cancel") + 1:
            stop.ask()  # too late for this step, and not to be kept for the next

    stop.ask()
    with pytest.raises(CancelledError):
        plan.run(given, stop)
    assert not fake.stopped
    stop.asked, fake.fault = False, late
    plan.run(given, stop)
    assert told[-2:] == ["cancel", "sync"]
    stop.ask()
    assert told.count("cancel") == 1
    (actual,) = plan.run(given)
    np.testing.assert_allclose(actual, np.e, rtol=1e-6)


def test_a_device_that_cannot_be_told_to_stop(kit):
    """The others are; who asks is not bothered."""
    deaf, hearing = kit.Fake("deaf:0"), kit.Fake("hearing:0")
    deaf.fault, stop = Fault("cancel", 1), Stop()
    with stop.holding([deaf.target(), hearing.target()]):
        stop.ask()
        assert hearing.stopped
    assert not hearing.stopped


@pytest.mark.parametrize(("check", "named"), [(False, "s .sqr. to e .exp."), (True, "s .sqr.")])
@pytest.mark.parametrize("kind", ["node", "sync"])
def test_the_split_that_failed_is_named(kit, check, named, kind):
    """Also where the device only says so with `sync`; who wants to know more is told how."""
    fake = kit.Fake(asynchronous=True)
    small = kit.Small(fake)
    b = small.build
    plan = small.plan(b.exp(b.sqr(small.input("x", 2), name="s"), name="e"), check=check)
    fake.fault = Fault(kind, 1)
    with pytest.raises(DeviceError, match=f"^{named} on fake:0: it broke") as caught:
        plan.run({"x": np.zeros(2, np.float32)})
    assert ("--check" in str(caught.value.do)) is not check


def test_ctrl_c_waits_for_the_devices(kit):
    """An exception that is no error of ours leaves no device at work either."""
    one = kit.Fake("one:0", asynchronous=True, refuse=kit.only("exp"))
    two = kit.Fake("two:0", refuse=kit.only("mul_mat"))
    small = kit.Small(one, two)
    b, x = small.build, small.input("x", 2, 4)
    early = b.exp(x)
    plan = small.plan(early, b.mul_mat(small.weight("w", np.eye(4)), x))
    assert [s.target.name for s in plan.steps] == ["one:0", "two:0"]
    two.fault = Fault("node", 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        plan.run({"x": np.zeros((2, 4), np.float32)})
    assert one.queue == []


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("opaque", [False, True])
def test_check_names_the_node(kit, load, ids, asynchronous, opaque):
    """With --check every node is computed and looked at by itself."""
    fake = kit.Fake(asynchronous=asynchronous, opaque=opaque)
    runner = load("llama", fake, check=True)
    answer = runner.forward(Sequence(), ids("llama")[:4])
    alone = load("llama").forward(Sequence(), ids("llama")[:4])
    assert np.abs(alone - answer).max() < 1e-5
    assert {1} == {len(graph.nodes) for graph in fake.computed}

    def fault(kind, *what):
        if what[-1:] == ("kv_attention",):
            msg = "it broke"
            raise DeviceError(msg)

    fake.fault = fault
    with pytest.raises(
        DeviceError, match=r"^attention\.0 \(kv_attention\) on fake:0: it broke"
    ):
        runner.forward(Sequence(), ids("llama")[:4])


@pytest.mark.parametrize("where", ["fake:0", "host:0"])
def test_check_names_what_is_not_finite(kit, where):
    """The first node that gives a NaN or an infinity, and the place in it."""
    refuse = kit.only() if where == "host:0" else kit.only("div", "add")
    small = kit.Small(kit.Fake(refuse=refuse))
    b, x = small.build, small.input("x", 2, 2)
    y = b.add(b.div(x, x, name="ratio"), x)
    values = np.array([[1, 2], [0, 1]], np.float32)
    (actual,) = small.plan(y).run({"x": values})
    assert np.isnan(actual[1, 0])
    with pytest.raises(DeviceError) as caught:
        small.plan(y, check=True).run({"x": values})
    assert f"ratio (div) on {where}: it gave values that are not finite" == caught.value.what
    assert caught.value.got == "first at [1, 0]"


@pytest.mark.parametrize("feeds", [{}, {"x": np.zeros((2, 3), np.float32)}])
def test_inputs_are_checked(kit, feeds):
    """An input that is missing or has another shape is refused by name."""
    small = kit.Small(kit.Fake())
    plan = small.plan(small.build.exp(small.input("x", 2, 2)))
    with pytest.raises(GraphError, match="'x'") as caught:
        plan.run(feeds)
    assert caught.value.expected == [2, 2]


def test_locks_are_taken_in_one_order(kit):
    """Two plans that use the same devices in another order do not wait for each other."""
    one, two = kit.Fake("one:0", refuse=kit.only("exp")), kit.Fake("two:0")
    small = kit.Small(one, two)
    b, x = small.build, small.input("x", 2, 2)
    plans = small.plan(b.sqrt(b.exp(x))), small.plan(b.exp(b.sqrt(x)))
    names = [[t.name for t in plan.targets] for plan in plans]
    assert names == [["one:0", "two:0"]] * 2
    assert [s.target.name for s in plans[1].steps] == ["two:0", "one:0"]
