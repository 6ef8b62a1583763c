"""What `umbel plan` can tell: every node knows where it comes from, and why it is there."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.state import Sequence

HOST = "runs there"


def reasons(plan):
    """(operation, device) -> reasons of all such nodes"""
    found = {}
    for p in plan.placement.nodes:
        found.setdefault((p.node.op.name, p.target.name), set()).add(p.reason)
    return found


@pytest.mark.parametrize("name", ["llama", "mamba2", "qwen3moe"])
def test_every_node_of_the_model_is_told(kit, load, name):
    """Each node of the model's graph is the origin of at least one placed node."""
    fake = kit.Fake(refuse=kit.only_simple, compute="f16", takes=lambda dtype: "f16")
    runner = load(name, fake)
    runner.forward(Sequence(), [1, 2])
    for plan in runner.made:
        assert all(p.reason and p.origin and p.target for p in plan.placement.nodes)
        nodes = [n for step in plan.steps for n in step.graph.nodes]
        assert {p.node for p in plan.placement.nodes} == set(nodes)
        assert len(nodes) == len(plan.placement.nodes)
    origins = {p.origin for p in runner.made[0].placement.nodes}
    assert {n.label for n in runner.graphs[0].nodes if not n.op.view} <= origins | {"set_rows"}


def test_host_alone(load):
    """With nothing else there, there is nothing to explain."""
    runner = load("llama")
    plan = runner.made[0]
    assert {p.reason for p in plan.placement.nodes} == {HOST}
    assert {t.name for t in runner.states.homes.values()} == {"host:0"}


def test_a_device_and_what_it_leaves(kit, load):
    """Refusals are those of the device, in its words; states say where they live."""
    fake = kit.Fake(
        refuse=kit.without("get_rows", "rms_norm", "div", why="too slow"),
        compute="f16",
        takes=lambda dtype: "f16",
    )
    runner = load("llama", fake)
    plan = runner.made[0]
    told = reasons(plan)
    assert told["mul_mat", "fake:0"] == {HOST}
    assert told["get_rows", "host:0"] == {"fake:0: too slow for get_rows"}
    (norm,) = told["rms_norm", "host:0"]
    assert norm == "fake:0: too slow for rms_norm; div: too slow for div"
    assert told["cast", "host:0"] == {"f32 to f16", "f16 to f32"}
    left = {op for op, device in told if device == "host:0"}
    assert left == {"get_rows", "rms_norm", "cast"}
    assert {t.name for t in runner.states.homes.values()} == {"fake:0"}


def test_a_state_that_had_to_go_elsewhere(kit, load):
    """The reason for its users is what the first device refused."""
    fake = kit.Fake(refuse=kit.without("kv_attention", "get_rows", why="no gather"))
    runner = load("llama", fake)
    plan = runner.made[0]
    (why,) = reasons(plan)["kv_attention", "host:0"]
    assert why == "fake:0: no gather for kv_attention; get_rows: no gather for get_rows" + (
        "; get_rows: no gather for get_rows"
    )
    assert {t.name for t in runner.states.homes.values()} == {"host:0"}


def test_users_follow_the_state(kit):
    """A node that its device would take elsewhere says whom it follows."""
    one, two = kit.Fake("one:0"), kit.Fake("two:0")
    small = kit.Small(one, two)
    state = small.state("s", 4, 8)
    small.states.add(state, small.targets[1])
    plan = small.plan(small.build.exp(state))
    assert reasons(plan) == {("exp", "two:0"): {"where s lives"}}


def test_rows_that_are_written_later(kit):
    """A form without a write says so, and why."""
    small = kit.Small(kit.Fake(refuse=kit.without("set_rows", "kv_attention")))
    b, state = small.build, small.state("s", 4, 8)
    rows, ids = small.input("rows", 2, 8), small.input("ids", 2, dtype="i32")
    plan = small.plan(b.set_rows(state, rows, ids, name="kept"))
    small.states.write_rows("s", np.arange(4), np.zeros((4, 32), np.uint8))
    told = reasons(plan)
    why = "the plan writes its rows: fake:0: no kernel for set_rows"
    assert told == {("cont", "fake:0"): {"to be read"}}
    assert small.placer.judge(small.build.nodes[-1], small.targets[0]).reason == why
    feeds = {"rows": np.ones((2, 8), np.float32), "ids": np.array([1, 2], np.int32)}
    plan.run(feeds)
    kept = small.states.read_rows("s", np.arange(4)).view(np.float32)
    assert kept.sum(axis=1).tolist() == [0, 8, 8, 0]


def test_memory(kit, load):
    """Bytes of weights, states and plans on each device."""
    fake = kit.Fake(refuse=kit.without("get_rows"))
    runner = load("mamba2", fake)
    device, host = runner.targets
    sizes = {n: t.nbytes for n, t in runner.weights.file.tensors.items()}
    assert runner.weights.nbytes(device) <= sum(sizes.values())
    assert runner.weights.nbytes(host) == sizes["token_embd.weight"]
    assert runner.arenas.nbytes(device) > 0 < runner.arenas.nbytes(host)
    homes = {name: home.name for name, home in runner.states.homes.items()}
    assert (homes["conv.0"], homes["ssm.0"]) == ("host:0", "fake:0")
