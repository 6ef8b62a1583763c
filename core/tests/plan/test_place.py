"""Where nodes go, in which form, and why."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.errors import DeviceError, GraphError
from umbel.gguf.types import dequantise
from umbel.graph import Role
from umbel.state import Sequence
from umbel_kit.reference import evaluate


def feed(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_the_first_device_that_can(kit, rng):
    """Devices are asked in order; the host takes what is left, and the reasons are kept."""
    one = kit.Fake("one:0", refuse=kit.only("add"))
    two = kit.Fake("two:0", refuse=kit.without("exp", why="no table"))
    small = kit.Small(one, two)
    x = small.input("x", 3, 4)
    w = small.weight("w", feed(rng, 4, 4))
    product = small.build.mul_mat(w, small.build.add(x, x), name="product")
    plan = small.plan(small.build.exp(product))
    assert small.places(plan) == [("add", "one:0"), ("mul_mat", "two:0"), ("exp", "host:0")]
    assert [(p.origin, p.reason) for p in plan.placement.nodes] == [
        ("add", "runs there"),
        ("product", "one:0: no kernel for mul_mat"),
        ("exp", "one:0: no kernel for exp; two:0: no table for exp"),
    ]
    values = feed(rng, 3, 4)
    (actual,) = plan.run({"x": values})
    expected = np.exp(2 * values @ small.arrays["w"].T)
    np.testing.assert_allclose(expected, actual, rtol=1e-5)


def test_decomposed_where_every_piece_is_claimed(kit, rng):
    """A composite goes to a device in pieces, which are named after it."""
    fake = kit.Fake(refuse=kit.only_simple)
    small = kit.Small(fake)
    gate, up = small.input("gate", 2, 8), small.input("up", 2, 8)
    plan = small.plan(small.build.swiglu(gate, up, name="glu"))
    assert {"fake:0"} == {p.target.name for p in plan.placement.nodes}
    assert "swiglu" not in {p.node.op.name for p in plan.placement.nodes}
    assert {"glu"} == {p.origin for p in plan.placement.nodes}
    assert {"glu"} == {p.node.label for p in plan.placement.nodes}
    (reason,) = {p.reason for p in plan.placement.nodes}
    assert reason == "decomposed: fake:0: swiglu is too much"


def test_not_decomposed_where_a_piece_is_refused(kit):
    """The reason tells of the node and of the piece, however deep."""
    fake = kit.Fake(refuse=kit.without("swiglu", "silu", "sigmoid"))
    small = kit.Small(fake)
    gate, up = small.input("gate", 2, 8), small.input("up", 2, 8)
    plan = small.plan(small.build.swiglu(gate, up))
    assert small.places(plan) == [("swiglu", "host:0")]
    (refused,) = [p.reason for p in plan.placement.nodes]
    assert refused.startswith("fake:0: no kernel for swiglu; silu: no kernel for silu; ")
    assert refused.endswith("no kernel for sigmoid")


def test_each_question_is_asked_once(kit, load):
    """All layers, steps and pieces of one shape are one question."""
    fake = kit.Fake(refuse=kit.only_simple)
    runner = load("llama", fake)
    runner.forward(Sequence(), [1, 2, 3, 4])
    asked = [
        (n.op.name, n.dtype.name, n.attrs, [(t.shape, t.strides, t.dtype) for t in n.inputs])
        for n in fake.asked
    ]
    count = len(asked)
    assert 3 * count < sum(len(plan.placement.nodes) for plan in runner.made) * 2
    runner.forward(Sequence(), [1, 2, 3, 4])
    assert count == len(fake.asked)


def test_questions_are_in_the_dtype_of_the_device(kit, rng):
    """Activations in its compute dtype, weights as it would hold them, integers as they are."""
    takes = {"q4_0": "f16", "f32": "f16"}
    fake = kit.Fake(compute="f16", takes=lambda dtype: takes.get(dtype, dtype))
    small = kit.Small(fake)
    b = small.build
    w = small.weight("w", feed(rng, 2, 64, 32), "q4_0")
    part = b.reshape(b.view(w, axis=0, start=1, stop=2), shape=(64, 32))
    x, ids = small.input("x", 5, 32), small.input("ids", 3, dtype="i32")
    turned = b.permute(x, axes=(1, 0))
    plan = small.plan(b.get_rows(b.mul_mat(part, x), ids), b.cont(turned))
    product, rows, cont = fake.asked
    assert [t.dtype.name for t in (product, *product.inputs)] == ["f16", "f16", "f16"]
    assert product.inputs[0].storage.name == "w"
    assert (product.inputs[0].offset, product.inputs[0].strides) == (2 * 64 * 32, (64, 2))
    assert [t.dtype.name for t in (rows, *rows.inputs)] == ["f16", "f16", "i32"]
    assert cont.inputs[0].strides == (2, 64)
    values = feed(rng, 5, 32)
    feeds = {"x": values, "ids": np.array([4, 0, 2], np.int32)}
    actual, transposed = plan.run(feeds)
    weights = dequantise(small.arrays["w"], w.dtype)[1]
    expected = (values @ weights.T)[[4, 0, 2]]
    np.testing.assert_allclose(expected, actual, atol=0.02)
    np.testing.assert_allclose(values.T, transposed, atol=2e-3)
    assert small.weights.converted == {"fake:0": {"q4_0 to f16": 1}}


def test_islands_are_absorbed(kit, rng):
    """A few light nodes do not pay for two copies; they say so."""
    fake = kit.Fake(refuse=kit.only("add"))
    small = kit.Small(fake)
    x = small.input("x", 2, 3)
    b = small.build
    plan = small.plan(b.exp(b.add(b.exp(x), x)))
    assert small.places(plan) == [("exp", "host:0"), ("add", "host:0"), ("exp", "host:0")]
    assert "saves copies" in plan.placement.nodes[1].reason
    assert len(plan.steps) == 1


@pytest.mark.parametrize("length", [8, 9])
def test_only_small_islands_are_absorbed(kit, length):
    """A stretch that is long enough stays on its device."""
    fake = kit.Fake(refuse=kit.only("scale"))
    small = kit.Small(fake)
    b, x = small.build, small.input("x", 2, 3)
    y = b.exp(x)
    for i in range(length):
        y = b.scale(y, s=float(i + 2))
    plan = small.plan(b.exp(y))
    assert {8: 1, 9: 3}[length] == len(plan.steps)


def test_weights_are_no_island(kit, rng):
    """What reads a large weight stays on the device that was chosen for it."""
    fake = kit.Fake(refuse=kit.only("mul_mat"))
    small = kit.Small(fake)
    x = small.input("x", 2, 4)
    b = small.build
    plan = small.plan(b.exp(b.mul_mat(small.weight("w", feed(rng, 4, 4)), b.exp(x))))
    assert [s.target.name for s in plan.steps] == ["host:0", "fake:0", "host:0"]


def test_one_home_for_all_users_of_a_state(kit):
    """States live where every user in every graph can run; those that meet stay together."""
    fake = kit.Fake(refuse=kit.without("exp"))
    small = kit.Small(fake)
    b = small.build
    s, t, u = (small.state(name, 4, 8) for name in "stu")
    ids = small.input("ids", 2, dtype="i32")
    b.get_rows(s, ids)
    first = b.graph([b.set_rows(s, b.get_rows(t, ids), ids)])
    second = b.graph([b.mul(s, t), b.add(u, u)])
    third = b.graph([b.exp(t)])
    homes = small.placer.homes([first, second])
    assert {k: v.name for k, v in homes.items()} == {
        "s": "fake:0",
        "t": "fake:0",
        "u": "fake:0",
    }
    homes = small.placer.homes([first, second, third])
    assert {k: v.name for k, v in homes.items()} == {
        "s": "host:0",
        "t": "host:0",
        "u": "fake:0",
    }
    kept = small.placer.homes([third], {"t": small.targets[0]})
    assert kept["t"].name == "fake:0"


def test_a_state_that_nobody_else_can_reach(kit):
    """A node that cannot run where its state lives is an error that tells why."""
    fake = kit.Fake(refuse=kit.without("exp", why="too large"))
    small = kit.Small(fake)
    state = small.state("s", 4, 8)
    small.states.add(state, small.targets[0])
    with pytest.raises(DeviceError, match="no device can run odd") as caught:
        small.plan(small.build.exp(state, name="odd"))
    assert caught.value.got == "fake:0: too large for exp"


def test_a_state_in_memory_that_the_host_sees(kit):
    """The host works on the state in its place when the device refuses one shape."""
    fake = kit.Fake(refuse=kit.without("exp"), is_host=True, asynchronous=True)
    small = kit.Small(fake)
    b, state = small.build, small.state("s", 4, 8)
    small.states.add(state, small.targets[0])
    rows, ids = small.input("rows", 2, 8), small.input("ids", 2, dtype="i32")
    written = b.set_rows(state, rows, ids)
    plan = small.plan(b.exp(written, name="odd"))
    assert small.places(plan) == [("set_rows", "fake:0"), ("exp", "host:0")]
    feeds = {"rows": np.ones((2, 8), np.float32), "ids": np.array([1, 3], np.int32)}
    (actual,) = plan.run(feeds)
    assert [1, np.exp(np.float32(1))] == [actual[0, 0], actual[1, 0]]


def test_nobody(kit, monkeypatch):
    """Without a host that takes everything, the error names node, devices and reasons."""
    fake = kit.Fake(refuse=kit.without("exp"))
    small = kit.Small(fake)
    small.placer.targets.pop()
    with pytest.raises(DeviceError, match="no device can run exp") as caught:
        small.plan(small.build.exp(small.input("x", 2, 2)))
    assert caught.value.got == "fake:0: no kernel for exp"


def test_rows_are_written_after_the_step(kit, rng):
    """A device that cannot scatter computes the rows; the plan puts them into the state."""
    fake = kit.Fake(refuse=kit.without("set_rows"), compute="f16")
    small = kit.Small(fake)
    b, state = small.build, small.state("s", 4, 6)
    small.states.add(state, small.targets[0])
    small.states.write_rows("s", np.arange(4), np.zeros((4, 24), np.uint8))
    rows, ids = small.input("rows", 5, 6), small.input("ids", 2, dtype="i32")
    doubled = b.scale(rows, s=2.0)
    old = b.get_rows(state, ids)
    write = b.set_rows(state, b.view(doubled, axis=0, start=3, stop=5), ids)
    plan = small.plan(old, write)
    assert {"fake:0"} == {p.target.name for p in plan.placement.nodes}
    ((kept, _, where),) = plan.placement.row_writes
    assert (kept.name, where) == ("s", ids)
    values = np.round(feed(rng, 5, 6), 1).astype(np.float16).astype(np.float32)
    feeds = {"rows": values, "ids": np.array([3, 1], np.int32)}
    assert np.abs(plan.run(feeds)[0]).max() == 0
    (actual,) = plan.run(feeds)
    assert (values[3:] * 2).tolist() == actual.tolist()
    kept = small.states.read_rows("s", np.arange(4)).view(np.float32)
    assert [np.abs(kept[0]).max(), np.abs(kept[2]).max()] == [0, 0]


def test_rows_of_a_view_are_written_after_the_step(kit):
    """Rows of a part of a state go where that part lies; their numbers are an input too."""
    small = kit.Small(kit.Fake(refuse=kit.without("set_rows")))
    b, state = small.build, small.state("s", 4, 6)
    small.states.add(state, small.targets[0])
    small.states.write_rows("s", np.arange(4), np.zeros((4, 24), np.uint8))
    rows, ids = small.input("rows", 2, 3), small.input("ids", 2, dtype="i32")
    part = b.view(b.view(state, axis=0, start=1, stop=4), axis=1, start=2, stop=5)
    plan = small.plan(b.set_rows(part, rows, ids))
    assert len(plan.row_writes) == 1
    values = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    with pytest.raises(GraphError, match="'ids'"):
        plan.run({"rows": values})
    plan.run({"rows": values, "ids": np.array([2, 0], np.int32)})
    expected = np.zeros((4, 6), np.float32)
    expected[[3, 1], 2:5] = values
    kept = small.states.read_rows("s", np.arange(4)).view(np.float32)
    assert expected.tolist() == kept.tolist()


@pytest.mark.parametrize("how", ["read through the write", "read after the write", "unknown"])
def test_rows_cannot_always_wait(kit, how):
    """Not when a later node reads the state, nor when the host does not know the rows."""
    fake = kit.Fake(refuse=kit.without("set_rows"))
    small = kit.Small(fake)
    b, state = small.build, small.state("s", 8, 6)
    rows, ids = small.input("rows", 2, 6), small.input("ids", 2, dtype="i32")
    places = b.reshape(b.top_k(rows, k=1), shape=(2,)) if how == "unknown" else ids
    write = b.set_rows(state, rows, places)
    wanted = {
        "read through the write": [b.get_rows(write, ids)],
        "read after the write": [write, b.get_rows(state, ids)],
        "unknown": [write],
    }[how]
    plan = small.plan(*wanted)
    assert small.states.homes["s"].name == "host:0"
    assert plan.row_writes == ()
    values = np.arange(12, dtype=np.float32).reshape(2, 6) % 7
    feeds = {"rows": values, "ids": np.array([2, 0], np.int32)}
    outputs = plan.run(feeds)
    if how != "unknown":
        assert values.tolist() == outputs[0].tolist()


def test_outputs_of_every_kind(kit, rng):
    """Views, inputs, states and constants can be asked for; floats come as float32."""
    fake = kit.Fake(compute="f16", takes=lambda dtype: "f16")
    small = kit.Small(fake)
    b, x = small.build, small.input("x", 2, 3)
    state = small.state("s", 2, 3)
    small.states.add(state, small.targets[0])
    doubled = b.add(x, x)
    constant = b.const(np.arange(6, dtype=np.float32).reshape(2, 3))
    plan = small.plan(
        b.permute(doubled, axes=(1, 0)),
        b.view(doubled, axis=0, start=1, stop=2),
        x,
        state,
        constant,
        b.top_k(doubled, k=1),
    )
    values = np.array([[1, 2, 3], [6, 5, 4]], np.float32)
    turned, row, same, zeros, counted, best = plan.run({"x": values})
    assert (2 * values.T).tolist() == turned.tolist()
    assert (2 * values[1:]).tolist() == row.tolist()
    assert values.tolist() == same.tolist()
    assert np.zeros((2, 3)).tolist() == zeros.tolist()
    assert counted.reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
    assert best.tolist() == [[2], [0]]
    assert {"float32", "int32"} == {str(a.dtype) for a in (turned, row, same, zeros, best)}


def test_constants_keep_apart(kit):
    """Constants that decompositions make are told apart by content, not by identity."""
    fake = kit.Fake(compute="f16")
    small = kit.Small(fake)
    b, x, total = small.build, small.input("x", 4), None
    for i in range(50):
        part = b.mul(x, b.const(np.full(4, i, np.float32)))
        total = part if total is None else b.add(total, part)
    (actual,) = small.plan(total).run({"x": np.ones(4, np.float32)})
    assert [sum(range(50))] * 4 == actual.tolist()


def test_a_weight_is_accepted_by_itself(kit, rng):
    """Two of one shape and dtype become what the device says of each of them."""
    asked = []

    def accepts(tensor):
        asked.append((tensor.name, tensor.shape, tensor.role))
        return "f32" if tensor.name == "exact" else "f16"

    fake = kit.Fake(compute="f16", accepted=accepts)
    small = kit.Small(fake)
    b, x = small.build, small.input("x", 2, 3)
    exact, other = (small.weight(name, feed(rng, 4, 3)) for name in ("exact", "other"))
    part = b.view(exact, axis=0, start=1, stop=3)
    plan = small.plan(b.mul_mat(exact, x), b.mul_mat(other, x), b.mul_mat(part, x))
    kinds = [[t.dtype.name for t in node.inputs] for node in fake.asked]
    assert kinds == [["f32", "f16"], ["f16", "f16"], ["f32", "f16"]]
    assert set(asked) == {(n, (4, 3), Role.WEIGHT) for n in ("exact", "other")}
    values = feed(rng, 2, 3)
    for out, name in zip(plan.run({"x": values}), ("exact", "other"), strict=False):
        np.testing.assert_allclose(values @ small.arrays[name].T, out, atol=0.02)
    assert fake.stored == {"exact": "f32 to f32", "other": "f32 to f16"}


def test_what_needs_no_activation_is_made_before(kit, rng):
    """A piece that follows from weights and integers may be the host's: it is computed before
    the split, in full precision, and once for all that use it."""
    fake = kit.Fake(compute="f16", refuse=kit.without("rope", "rope_cos_sin"))
    small = kit.Small(fake)
    b, x, at = small.build, small.input("x", 3, 2, 8), small.input("at", 3, dtype="i32")
    factors, how = small.weight("factors", np.arange(1, 5)), {"n_dims": 8, "mode": "neox"}
    one, two = b.rope(b.exp(x), at, factors, **how), b.rope(b.neg(x), at, factors, **how)
    plan = small.plan(b.add(one, two))
    assert [step.target.name for step in plan.steps] == ["host:0", "fake:0"]
    (made,) = [p for p in plan.placement.nodes if p.ahead]
    assert made.node.op.name == "rope_cos_sin"
    assert made.reason == "decomposed: fake:0: no kernel for rope"
    feeds = {"x": feed(rng, 3, 2, 8), "at": np.array([0, 7, 3000], np.int32)}
    (actual,) = plan.run(feeds)
    (expected,) = evaluate(
        b.graph([b.add(one, two)]),
        {x: feeds["x"], at: feeds["at"], factors: small.arrays["factors"]},
    )
    np.testing.assert_allclose(expected, actual, atol=0.01)


def test_what_needs_an_activation_is_not(kit):
    """Then the whole of it runs elsewhere, also where that activation is an input."""
    fake = kit.Fake(refuse=kit.without("swiglu", "silu", "sigmoid"))
    small = kit.Small(fake)
    b, x = small.build, small.input("x", 2, 8)
    plan = small.plan(b.swiglu(x, b.neg(x)))
    assert small.places(plan)[-1] == ("swiglu", "host:0")
    assert not any(p.ahead for p in plan.placement.nodes)


def test_a_decomposition_that_cannot_be_made(kit, rng):
    """It is a reason as any other: experts that do not lie side by side."""
    fake = kit.Fake(refuse=kit.without("mul_mat_id"))
    small = kit.Small(fake)
    b, ids = small.build, small.input("ids", 3, 1, dtype="i32")
    stack = b.view(small.weight("w", feed(rng, 2, 4, 8)), axis=1, start=0, stop=3)
    node = b.mul_mat_id(stack, small.input("x", 3, 1, 8), ids)
    verdict = small.placer.judge(node, small.targets[0])
    assert verdict.form is None
    assert "it cannot be decomposed: reshape: the inputs do not fit" in verdict.reason
    assert small.places(small.plan(node)) == [("mul_mat_id", "host:0")]
