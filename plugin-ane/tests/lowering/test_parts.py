"""What is refused as a whole and computed by its parts; options; numbers at their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from ane_fake import Hooks, runner
from ane_ports import EXACT, PROFILE, computed, draw, lowered_graph, truth
from umbel import adapters
from umbel.gguf.types import F16, F32, I32, Q8_0, DType
from umbel.graph import MASKED, Builder, Graph, Role, Tensor
from umbel.ops import OPS
from umbel.state import Sequence
from umbel_ane.compiler.lowering import Options, unsupported
from umbel_ane.profile import Costs, load
from umbel_kit.compare import excess, limit

ROPE = {"freq_base": 10000.0, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0}


def builder() -> Builder:
    return Builder(dict(OPS))


def leaf(
    b: Builder, name: str, *shape: int, role: Role = Role.INPUT, dtype: DType = F16
) -> Tensor:
    return b.leaf(role, name, shape, dtype)


def same(made: Graph, most: float, arrays: dict[Tensor, np.ndarray] | None = None) -> None:
    arrays = draw(made) if arrays is None else arrays
    (end,) = made.outputs
    expected = truth(made, arrays)[end]
    for profile in (PROFILE, EXACT):
        got = computed(lowered_graph(made, arrays, profile), arrays, "fp16")[end]
        assert excess(expected, got, most) is None


def ends(b: Builder, node: Tensor) -> None:
    """The parts of `node` give what it gives; each of them is claimed."""
    assert node.op is not None
    assert node.op.decompose is not None
    assert unsupported(node, PROFILE) is not None
    arrays = draw(b.graph([node]))
    parts = Builder(dict(OPS))
    result = node.op.decompose(parts, node, F16)
    made = parts.graph([result])
    for part in made.nodes:
        assert part.op is not None
        stored = attrs.evolve(part, dtype=F16) if not part.op.view else part
        assert part.op.view or unsupported(stored, PROFILE) is None, part
    expected = truth(b.graph([node]), arrays)[node]
    typed = Graph(tuple(made.nodes), (result.storage,))
    got = computed(lowered_graph(typed, arrays), arrays, "fp16")[result.storage]
    actual = got.reshape(expected.shape) if result.base is None else None
    assert actual is not None
    assert excess(expected, actual, limit(node.op.name, "f16")) is None


@pytest.mark.parametrize("op", ["gelu_erf", "softplus"])
def test_functions(op: str) -> None:
    b = builder()
    x = leaf(b, "x", 7, 33)
    ends(b, b.apply(b.ops[op], x))


@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("tokens", [1, 5, 64])
@pytest.mark.parametrize("turned", [16, 12])
def test_rope(mode: str, tokens: int, turned: int) -> None:
    """With the angles that the host has prepared."""
    b = builder()
    x = leaf(b, "x", tokens, 3, 16)
    where = leaf(b, "positions", tokens, dtype=I32)
    node = b.rope(x, where, n_dims=turned, mode=mode, **ROPE)
    arrays = draw(b.graph([node]))
    arrays[where] = np.arange(tokens, dtype=np.int32) + 3
    expected = truth(b.graph([node]), arrays)[node]
    assert node.op is not None
    assert node.op.decompose is not None
    parts = Builder(dict(OPS))
    result = node.op.decompose(parts, node, F16)
    (table,) = (n for n in parts.nodes if n.op is parts.ops["rope_cos_sin"])
    angles = truth(Graph((table,), (table,)), arrays)[table]
    table_ = leaf(b, "angles", *table.shape)
    swapped = _replaced(parts, {table: table_})
    made = Graph(tuple(swapped[n] for n in parts.nodes if n is not table), ())
    end = swapped[result].storage
    given = {x: arrays[x], table_: angles}
    graph = Graph(made.nodes, (end,))
    got = computed(lowered_graph(graph, given), given, "fp16")[end]
    assert excess(expected, got.reshape(expected.shape), 1e-6) is None


def _replaced(b: Builder, new: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    other, known = Builder(b.ops), dict(new)
    for node in b.nodes:
        if node not in known:
            assert node.op is not None
            inputs = [known.get(t, t) for t in node.inputs]
            known[node] = other.apply(node.op, *inputs, **node.attrs)
    return known


# options


def test_a_large_head() -> None:
    """Refused with the numbers, or cut in pieces that together are the whole."""
    profile = attrs.evolve(PROFILE, max_channels=16)
    b = builder()
    w, x = leaf(b, "w", 60, 12, role=Role.WEIGHT), leaf(b, "x", 3, 12)
    node = b.mul_mat(w, x)
    why = "60 output channels, the profile takes at most 16; "
    left = unsupported(node, profile, Options(head="host"))
    assert left == f"{why}it is left to the host (option head)"
    told = str(unsupported(node, profile))
    assert told.startswith(f"{why}in pieces it takes about ")
    fast = attrs.evolve(profile, costs=Costs(weight_gbps=1e6, host_gbps=1e-3))
    assert unsupported(node, fast) is None
    pieces = Options(head="ane")
    assert unsupported(node, profile, pieces) is None
    made = b.graph([node])
    arrays = draw(made)
    lowered = lowered_graph(made, arrays, profile, pieces)
    convs = [n for n in lowered.graph.nodes() if n.op == "conv1x1"]
    assert [n.shape[1] for n in convs] == [15] * 4
    got = computed(lowered, arrays, "fp32")[node]
    assert excess(truth(made, arrays)[node], got, 1e-12) is None
    odd = b.mul_mat(leaf(b, "prime", 1009, 12, role=Role.WEIGHT), x)
    assert "cannot be cut" in str(unsupported(odd, profile, pieces))


def test_wide_inputs() -> None:
    b = builder()
    w, x = leaf(b, "w", 8, 40, role=Role.WEIGHT), leaf(b, "x", 3, 40)
    reason = unsupported(b.mul_mat(w, x), attrs.evolve(PROFILE, max_channels=16))
    assert reason == "40 input channels, the profile takes at most 16"
    long = b.add(leaf(b, "y", 1, 70), leaf(b, "z", 1, 70))
    reason = unsupported(long, attrs.evolve(PROFILE, max_dim=64))
    assert reason == "an axis of 70, the profile takes at most 64"


def test_attention_on_the_host() -> None:
    b = builder()
    cache = leaf(b, "k_cache.0", 512, 64, role=Role.STATE)
    past = b.get_rows(cache, leaf(b, "table", 1, 500, dtype=I32), stored_as=F16)
    assert unsupported(past, PROFILE, Options(attention="ane")) is None
    assert "option attention" in str(unsupported(past, PROFILE, Options(attention="host")))
    slow = attrs.evolve(PROFILE, costs=Costs(dispatch_ms=0.001, weight_gbps=1.0))
    reason = unsupported(past, slow)
    assert reason is not None
    assert "0.13 ms a layer here, 0.00 ms on the host" in reason
    assert unsupported(past, attrs.evolve(slow, costs=Costs(weight_gbps=80.0))) is None


REFUSED = {
    "set_rows": "scatter",
    "top_k": "sort",
    "odd state": "kept as q8_0",
    "f32": "f16, not with f32",
    "integers": "only the host",
    "own choice": "only the host",
}


@pytest.mark.parametrize("what", REFUSED)
def test_reasons(what: str) -> None:
    b = builder()
    ids, x = leaf(b, "ids", 4, dtype=I32), leaf(b, "x", 4, 64)
    match what:
        case "set_rows":
            node = b.set_rows(leaf(b, "s", 9, 64, role=Role.STATE), x, ids)
        case "top_k":
            node = b.top_k(x, k=2)
        case "odd state":
            cache = leaf(b, "q", 9, 64, role=Role.STATE, dtype=Q8_0)
            node = b.get_rows(cache, ids, stored_as=F16)
        case "f32":
            node = b.add(leaf(b, "w", 3, 4, dtype=F32), leaf(b, "v", 3, 4, dtype=F32))
        case "integers":
            node = b.get_rows(x, b.concat(ids, ids, axis=0), stored_as=F16)
        case _:
            node = b.get_rows(x, b.reshape(b.top_k(x, k=1), shape=(4,)), stored_as=F16)
    assert REFUSED[what] in str(unsupported(node, PROFILE))


# numbers


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0, 3e4])
@pytest.mark.parametrize("op", ["rms_norm", "norm"])
def test_norms_at_any_level(op: str, size: float) -> None:
    """Rows of any size, with one value a thousand times the others."""
    b = builder()
    x = leaf(b, "x", 5, 768)
    made = b.graph([b.apply(b.ops[op], x, eps=1e-6)])
    values = np.random.default_rng(1).standard_normal((5, 768)) * size / 4
    values[2] /= 1000
    values[2, 7] = 2 * size
    values = values.astype(np.float16).astype(np.float32)
    same(made, 4e-6, {x: values})


def test_rows_of_zeros() -> None:
    b = builder()
    x = leaf(b, "x", 3, 64)
    made = b.graph([b.norm(x, eps=1e-12)])
    got = computed(lowered_graph(made, {x: np.zeros((3, 64))}), {x: np.zeros((3, 64))}, "fp16")
    assert np.all(got[made.outputs[0]] == 0)


@pytest.mark.parametrize("size", [1.0, 60.0, 400.0])
def test_scores_beyond_float16(size: float) -> None:
    """Scores up to some hundred thousand, hidden ones among the largest: no NaN, no leak."""
    b = builder()
    q, k, v = (leaf(b, n, 1, 2, 6, 64) for n in "qkv")
    mask = leaf(b, "mask", 1, 1, 6, 6)
    made = b.graph([b.flash_attn_ext(q, k, v, mask, scale=1.0)])
    arrays = draw(made)
    arrays[q] = (arrays[q] * size).astype(np.float16).astype(np.float32)
    arrays[k] = (arrays[k] * 10).astype(np.float16).astype(np.float32)
    arrays[mask] = np.where(np.tril(np.ones((6, 6))), 0, MASKED)[None, None].astype(np.float32)
    arrays[mask][..., 4, :] = MASKED  # sees nothing: zero
    got = computed(lowered_graph(made, arrays), arrays, "fp16")[made.outputs[0]]
    assert np.all(np.isfinite(got))
    assert np.all(got[:, 4] == 0)
    same(made, 1e-4, arrays)


def test_logsumexp_cliffs() -> None:
    """Scores that are alike, far below zero, far above, and one that is alone."""
    b = builder()
    x = leaf(b, "x", 4, 512)
    values = np.zeros((4, 512), np.float32)
    values[1], values[2], values[3, 9] = -6e4, 6e4, 100.0
    same(b.graph([b.soft_max(x)]), 1e-6, {x: values})


# adapters


@pytest.mark.parametrize("profile", ["orion-m4-macos15", "m1"])
def test_an_adapter_is_an_input(oracles: Path, profile: str) -> None:
    """A and B are ports of the programs, so that a swap compiles nothing; two in one batch."""
    with np.load(oracles / "llama-lora.npz") as known:
        data = dict(known)
    hooks = Hooks(load(profile), Options(head="ane", attention="ane"))
    room = _room(oracles)
    made = runner(oracles / "llama.gguf", hooks, parallel=2, adapters=room)
    lora = next(iter(adapters.read_all(made.definition, oracles / "llama-lora.gguf")))
    made.adapters.put(lora)
    ids = [int(i) for i in data["ids"]]
    mix = ((lora.digest, 1.0),)
    for adapted, wanted in ((mix, data["ref"]), ((), data["base"])):
        got = made.forward(Sequence(adapters=adapted), ids, every=True)
        assert float(np.abs(got - wanted).max() / np.abs(wanted).max()) <= 2e-2
    sources = [s for low in hooks.lowered for s in low.inputs.values()]
    names = {s.tensor.name for s in sources if hasattr(s, "tensor")}
    assert any(n.startswith("lora_a.") for n in names)
    assert any(n.startswith("lora_b.") for n in names)
    made.close()


def _room(oracles: Path) -> Any:
    from umbel import gguf, loading

    definition = loading.define(gguf.open(oracles / "llama.gguf"))
    return adapters.room(
        definition, adapters.read_all(definition, oracles / "llama-lora.gguf"), 0, 0
    )


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(("past", "new", "width"), [(128, 128, 128), (256, 256, 64), (7, 3, 5)])
def test_joined_rows_keep_to_the_longest_axis(past, new, width, axis) -> None:
    """Rows of a cache and of the step: together they are longer than an axis may be."""
    b = builder()
    shapes = [[1, past, width], [1, new, width]]
    if axis == 2:
        shapes = [[1, width, past], [1, width, new]]
    parts = [leaf(b, f"part{i}", *shape) for i, shape in enumerate(shapes)]
    node = b.concat(*parts, axis=axis)
    assert unsupported(node, PROFILE) is None
    made = b.graph([node])
    given = draw(made)
    got = computed(lowered_graph(made, given), given, "fp16")[node]
    assert np.array_equal(got.reshape(node.shape), truth(made, given)[node])
