"""Whatever a device is like, the answers are those of the host alone."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.state import Sequence

MODELS = ("llama", "gemma3", "mamba2", "lfm2", "qwen3moe", "gpt2")
F32 = {
    "plain": {},
    "decomposed": {"refuse": "only_simple"},
    "asynchronous": {"asynchronous": True, "copies_itself": True},
    "padded": {"alignment": 512, "padding": 700, "in_place": False},
    "opaque": {"opaque": True, "separate": True, "refuse": "only_simple"},
    "shared": {"is_host": True, "reads_host": True, "readers": ("host:0",)},
    "buckets": {"token_buckets": (1, 4, 16), "length_buckets": (24, 64)},
    "no scatter": {"refuse": ("without", "set_rows", "kv_attention")},
    "no products": {"refuse": ("without", "mul_mat"), "asynchronous": True},
    "only products": {"refuse": ("only", "mul_mat"), "asynchronous": True},
    "no rows": {"refuse": ("without", "get_rows"), "asynchronous": True},
    "no few rows": {"refuse": "few_rows"},
}
F16 = {
    "f16": {"compute": "f16", "takes": lambda dtype: "f16"},
    "f16 decomposed": {"compute": "f16", "refuse": "only_simple", "asynchronous": True},
}


def few_rows(node):
    """A device that refuses one shape."""
    few = node.op.name == "mul_mat" and node.shape[0] == 2
    return "no kernel for two rows" if few else None


def make_fake(kit, how):
    how = dict(how)
    refuse = how.get("refuse")
    if isinstance(refuse, tuple):
        how["refuse"] = getattr(kit, refuse[0])(*refuse[1:])
    elif refuse:
        how["refuse"] = few_rows if refuse == "few_rows" else getattr(kit, refuse)
    return kit.Fake(**how)


@pytest.fixture(scope="module")
def known():
    """What the host alone has said, by model and kind of cache."""
    return {}


@pytest.fixture
def alone(load, kit, ids, known):
    """The logits of the host alone."""

    def answer(name, **settings):
        key = (name, *settings.items())
        if key not in known:
            known[key] = kit.spoken(load(name, **settings), ids(name))
        return known[key]

    return answer


def within(expected, actual, share):
    """No value is further away than this share of the largest one."""
    assert expected.shape == actual.shape
    difference = np.abs(expected - actual).max()
    return difference <= share * np.abs(expected).max()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", F32)
def test_float32_devices(kit, load, ids, alone, kind, name):
    """Prefill, decode and two sequences at once, on a device and whatever it leaves."""
    fake = make_fake(kit, F32[kind])
    actual = kit.spoken(load(name, fake), ids(name))
    assert within(alone(name), actual, 3e-6)
    assert fake.computed


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", F16)
def test_float16_devices(kit, load, ids, alone, kind, name):
    """A device that computes in float16 is as far away as its rounding."""
    fake = make_fake(kit, F16[kind])
    actual = kit.spoken(load(name, fake), ids(name))
    expected = alone(name)
    assert ((expected - actual) ** 2).sum() < 1.5e-5 * (expected**2).sum()
    computed = {n.dtype.name for graph in fake.computed for n in graph.nodes}
    assert computed <= {"f16", "i32", "f32"}
    wide = {n.op.name for g in fake.computed for n in g.nodes if n.dtype.name == "f32"}
    assert wide <= {"set_rows"}


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("kind", ["plain", "decomposed", "no scatter", "only products"])
def test_narrow_caches(kit, load, ids, alone, kind, kv):
    """Keys and values are rounded by whoever writes them as the host rounds them.

    A last bit of a key may fall to the other side, no more. A device that cannot scatter sees
    the rows of the step itself before they are rounded.
    """
    actual = kit.spoken(load("llama", make_fake(kit, F32[kind]), kv=kv), ids("llama"))
    expected = alone("llama", kv=kv)
    bounds = (
        {"f16": 6e-4, "q8_0": 2e-2} if kind == "no scatter" else {"f16": 2e-4, "q8_0": 4e-3}
    )
    assert within(expected, actual, bounds[kv])
    assert not within(alone("llama"), actual, 3e-6)


def test_quantised_weights(kit, load, ids, alone):
    """A device that refuses q4_k gets float16, and the load tells of it."""
    fake = kit.Fake(takes=lambda dtype: "f16" if dtype == "q4_k" else dtype)
    runner = load("llama-e256-Q4_K", fake)
    actual = kit.spoken(runner, ids("llama-e256"))
    expected = kit.spoken(load("llama-e256-Q4_K"), ids("llama-e256"))
    assert within(expected, actual, 2e-3)
    assert not within(expected, actual, 3e-6)
    weights = [t for t in fake.stored.values() if t.startswith("q4_k")]
    assert {"q4_k to f16"} == set(weights)
    assert {"fake:0": {"q4_k to f16": len(weights)}} == runner.weights.converted


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("plain", 1),
        ("decomposed", 1),
        ("f16", 1),
        ("no scatter", 1),
        ("no rows", 4),  # the embedding, and the rows that are asked for, are the host's
        ("no products", 6),  # the embedding and the attention of each of two layers
    ],
)
def test_few_splits(kit, load, kind, expected):
    """A step is cut no more often than it must be."""
    runner = load("llama", make_fake(kit, (F32 | F16)[kind]))
    runner.forward(Sequence(), [1, 2, 3])
    assert {expected} == {len(plan.steps) for plan in runner.made}


def test_bert(kit, load, ids):
    """A model without state is no different."""
    runners = load("bert"), load("bert", kit.Fake(refuse=kit.without("norm")))
    given = ids("bert")[:12]
    expected, actual = (runner.forward(Sequence(), given, every=True) for runner in runners)
    assert within(expected, actual, 3e-6)


def test_two_devices_and_the_host(kit, load, ids, alone):
    """Work is shared by two devices that do not see each other, and the host."""
    one = kit.Fake("one:0", refuse=kit.only("mul_mat"), asynchronous=True)
    two = kit.Fake("two:0", refuse=kit.without("rms_norm", "mul", "sqr"), compute="f16")
    actual = kit.spoken(load("llama", one, two), ids("llama"))
    assert one.computed
    assert two.computed
    expected = alone("llama")
    assert ((expected - actual) ** 2).sum() < 4e-6 * (expected**2).sum()


def test_forks_on_a_device(kit, load, ids):
    """Sequences that share their past do not disturb each other."""
    for name in ("llama", "mamba2"):
        given, answers = ids(name), []
        for fakes in ((), (kit.Fake(refuse=kit.without("set_rows", "kv_attention")),)):
            runner = load(name, *fakes)
            one = Sequence()
            runner.forward(one, given[:5])
            two = runner.cache.fork(one)
            first = runner.decode([one, two], [given[6], given[7]])
            answers.append(np.concatenate([first, runner.decode([two, one], given[8:10])]))
        assert within(*answers, 3e-6)
