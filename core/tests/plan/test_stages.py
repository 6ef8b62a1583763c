"""Layers over several devices, and those that the first ones have no room for."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from umbel.errors import OptionError, OutOfMemoryError
from umbel.gguf.types import F16
from umbel.graph import Role, Tensor
from umbel.plan import room
from umbel.plan.stages import stages


def layers_on(fake):
    """The layers whose weights a device has, and whether it has others."""
    found = [re.match(r"blk\.(\d+)\.", name) for name in fake.stored]
    return {int(m[1]) for m in found if m}, {n for n in fake.stored if not n.startswith("blk.")}


def named(*free, backend="npu"):
    targets = []
    for i, n in enumerate(free):
        info = SimpleNamespace(memory_free=n)
        targets.append(SimpleNamespace(device=SimpleNamespace(backend=backend), info=info, n=i))
    host = SimpleNamespace(device=SimpleNamespace(backend="host"), info=None, n="host")
    return [*targets, host]


@pytest.mark.parametrize(
    ("free", "layers", "split", "offload", "expected"),
    [
        ((8,), 4, "layer", None, []),
        ((8, 8), 4, "layer", None, [0, 0, 1, 1]),
        ((8, 8), 4, "row", None, []),
        ((8, 24), 4, "layer", None, [0, 1, 1, 1]),
        ((0, 24), 4, "layer", None, [0, 0, 1, 1]),  # of one nothing is known
        ((8, 8, 8), 7, "layer", None, [0, 0, 1, 1, 1, 2, 2]),
        ((1, 1 << 40), 3, "layer", None, [1, 1, 1]),
        ((8,), 4, "layer", 3, ["host", 0, 0, 0]),
        ((8,), 4, "layer", 0, ["host"] * 4),
        ((8,), 4, "layer", 99, [0] * 4),
        ((8, 8), 4, "layer", 2, ["host", "host", 0, 1]),
        ((8, 8), 4, "row", 2, ["host", "host", 0, 1]),
        ((), 4, "layer", 2, []),
    ],
)
def test_stages(free, layers, split, offload, expected):
    assert [t.n for t in stages(named(*free), layers, split, offload)] == expected


def test_an_unknown_split():
    with pytest.raises(OptionError, match="several devices") as caught:
        stages(named(8), 4, "column", None)
    assert (caught.value.expected, caught.value.got) == ("layer or row", "column")


@pytest.mark.parametrize("how", ["plain", "f16", "asynchronous", "copies", "shared"])
@pytest.mark.parametrize("model", ["llama", "gpt2", "gemma3", "mamba2", "qwen3moe"])
def test_layers_of_two(kit, load, ids, how, model):
    """Each device holds whole layers, weights and states, and the answer is that of one."""
    settings = {
        "plain": {},
        "f16": {"compute": "f16", "takes": lambda dtype: "f16"},
        "asynchronous": {"asynchronous": True},
        "copies": {"asynchronous": True, "copies_itself": True},
        "shared": {"is_host": True, "reads_host": True, "asynchronous": True},
    }[how]
    if how == "f16" and model == "mamba2":
        settings = {}  # its sums leave f16
    fakes = [kit.Fake(f"npu:{i}", **settings) for i in range(2)]
    expected = kit.spoken(load(model, kit.Fake(**settings)), ids(model))
    runner = load(model, *fakes)
    actual = kit.spoken(runner, ids(model))
    np.testing.assert_array_equal(expected, actual)
    (first, early), (second, late) = map(layers_on, fakes)
    assert first
    assert second
    assert max(first) < min(second)
    assert "output_norm.weight" in late
    assert "token_embd.weight" in early
    homes = {name: int(name.split(".")[1]) for name in runner.states.tensors}
    for name, layer in homes.items():
        assert runner.states.homes[name].name == ("npu:0" if layer in first else "npu:1")
    plan = runner.plan(runner.usual[0])
    assert len([s for s in plan.steps if s.target.name.startswith("npu")]) == 2


def test_some_layers_on_the_host(kit, load, ids):
    """The first ones: the last layer and the output are on the device."""
    expected = kit.spoken(load("llama"), ids("llama"))
    fake = kit.Fake()
    runner = load("llama", fake, offload=1)
    np.testing.assert_allclose(expected, kit.spoken(runner, ids("llama")), rtol=1e-5, atol=1e-5)
    layers, others = layers_on(fake)
    assert layers == {1}
    assert "token_embd.weight" not in others
    assert {name for name, home in runner.states.homes.items() if home.name == "host:0"} == {
        "k_cache.0",
        "v_cache.0",
    }
    placed = {p.origin: p for p in runner.plan(runner.usual[0]).placement.nodes}
    assert placed["blk.0.ffn_up"].target.name == "host:0"
    assert placed["blk.1.ffn_up"].target.name == "fake:0"


@pytest.mark.parametrize(
    ("free", "layers"), [(449, 3), (350, 3), (349, 2), (150, 1), (149, 0), (1, 0)]
)
def test_how_many_layers_fit(kit, free, layers):
    """The last ones, and what belongs to no layer first."""
    names = ["output.weight", *(f"blk.{i}.ffn_up.weight" for i in range(4))]
    sizes = [25, 50, 50, 50, 50]
    weights = [
        Tensor((size,), F16, Role.WEIGHT, n) for n, size in zip(names, sizes, strict=True)
    ]
    target = kit.Fake(told={"memory_free": free}).target()
    with pytest.raises(
        OutOfMemoryError, match="the model does not fit into the memory"
    ) as caught:
        room.check(target, weights)
    error = caught.value
    assert error.expected == f"at most {free} bytes: {450 - free} are missing"
    assert error.got == 450
    assert error.do == f"take a smaller model, or --offload-layers {layers}"


@pytest.mark.parametrize("free", [450, 0])
def test_there_is_room(kit, free):
    """Or nobody knows whether there is."""
    weight = Tensor((225,), F16, Role.WEIGHT, "w")
    room.check(kit.Fake(told={"memory_free": free}).target(), [weight])


def test_too_large_a_model(kit, load):
    """It is refused before a weight is loaded; memory that the host maps is not counted."""
    small = kit.Fake(told={"memory_free": 200_000})
    with pytest.raises(
        OutOfMemoryError, match="the model does not fit into the memory of fake:0"
    ):
        load("llama", small)
    assert small.stored == {}
    load("llama", kit.Fake(told={"memory_free": 200_000}, is_host=True, reads_host=True))
