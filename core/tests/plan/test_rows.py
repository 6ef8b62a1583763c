"""Large matrices are cut by rows over the devices of one backend."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.plan import emit


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(emit, "LEAST", 4000)


def pair(kit, names=("npu:0", "npu:1"), **how):
    return [kit.Fake(name, **how) for name in names]


@pytest.mark.parametrize("how", ["plain", "f16", "asynchronous", "shared", "no concat"])
def test_same_answer(kit, load, ids, how):
    """Two devices hold half of each large matrix, and give what one gives."""
    settings = {
        "plain": {},
        "f16": {"compute": "f16", "takes": lambda dtype: "f16"},
        "asynchronous": {"asynchronous": True, "copies_itself": True},
        "shared": {"is_host": True, "reads_host": True, "asynchronous": True},
        "no concat": {"refuse": kit.without("concat")},
    }[how]
    fakes = pair(kit, **settings)
    expected = kit.spoken(load("llama", kit.Fake(**settings)), ids("llama"))
    actual = kit.spoken(load("llama", *fakes, split="row"), ids("llama"))
    bound = 2e-3 if how == "f16" else 3e-6
    assert np.abs(expected - actual).max() <= bound * np.abs(expected).max()
    cut = [n for n in fakes[0].stored if "[" in n]
    assert {n.partition("[")[0] for n in cut} >= {"blk.0.ffn_up.weight", "output.weight"}
    assert set(fakes[1].stored) == {n for n in fakes[1].stored if "[" in n}
    assert len(fakes[1].stored) == len(cut)


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_rows(kit, rng, kind):
    """An odd number of rows over three devices; each weight is stored once and cut whole."""
    fakes = pair(kit, ("npu:0", "npu:1", "npu:2"), takes=lambda dtype: "f32")
    small = kit.Small(*fakes)
    w = small.weight("w", rng.standard_normal((101, 64)), kind)
    x = small.input("x", 3, 64)
    product = small.build.mul_mat(w, x, name="product")
    plan = small.plan(product)
    places = ["npu:0", "npu:1", "npu:2"]
    assert small.places(plan)[:3] == [("mul_mat", name) for name in places]
    assert small.places(plan)[3:] == [("concat", "npu:0")] * 2
    assert {p.origin for p in plan.placement.nodes} == {"product"}
    assert {p.reason for p in plan.placement.nodes} == {"rows cut over npu:0, npu:1, npu:2"}
    values = rng.standard_normal((3, 64)).astype(np.float32)
    (actual,) = plan.run({"x": values})
    whole = kit.Small()
    whole_w = whole.build.leaf(w.role, "w", w.shape, w.dtype)
    whole.weights.file.tensors["w"], whole.arrays["w"] = whole_w, small.arrays["w"]
    product = whole.build.mul_mat(whole_w, whole.input("x", 3, 64))
    (expected,) = whole.plan(product).run({"x": values})
    np.testing.assert_allclose(expected, actual, rtol=1e-5, atol=1e-5)
    assert [len(f.stored) for f in fakes] == [1, 1, 1]
    assert sum(small.weights.nbytes(t) for t in small.targets) == 101 * 64 * 4
    assert small.weights.used == {"w"}
    if kind == "q8_0":
        assert small.weights.converted["npu:1"] == {"q8_0 to f32": 1}


@pytest.mark.parametrize("how", ["other backend", "small", "one refuses", "one device"])
def test_not_cut(kit, rng, how):
    """Only large matrices, and only where all devices of the first backend take their part."""
    names = {"other backend": ("npu:0", "gpu:0"), "one device": ("npu:0",)}
    fakes = pair(kit, names.get(how, ("npu:0", "npu:1")))
    if how == "one refuses":
        fakes[-1].refuse = kit.without("mul_mat")
    small = kit.Small(*fakes)
    w = small.weight("w", rng.standard_normal((30 if how == "small" else 100, 64)))
    plan = small.plan(small.build.mul_mat(w, small.input("x", 2, 64)))
    assert small.places(plan) == [("mul_mat", "npu:0")]
    assert list(fakes[0].stored) == ["w"]
