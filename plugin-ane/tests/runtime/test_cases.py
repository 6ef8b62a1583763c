"""Public reports of what went wrong on Neural Engines, as small inputs and right results."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import umbel
from umbel.gguf.types import F16
from umbel.graph import Builder, Role
from umbel.ops import OPS
from umbel_ane import _open, explain, profile
from umbel_ane.compiler.lowering import unsupported

CLOSE = 2e-2


def apart(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 33, 255, 256, 257])
def test_odd_lengths_are_padded_and_masked(load, n) -> None:
    """Orion's constraint 4, Anemll 27 and 54, coremltools 2631: a prompt of any length gives
    what it gives unpadded on the host."""
    ids = [1 + i * 7 % 500 for i in range(n)]
    rows = [load("stories260K", device=d, ctx=512).logits(ids) for d in ("ane:0", "host")]
    assert apart(*rows) <= CLOSE


def test_what_is_too_long_is_refused(load) -> None:
    model = load("stories260K")
    with pytest.raises(umbel.errors.ContextFullError):
        model.generate(list(range(1, 140)), max_tokens=1).read()


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "qwen3", "bert"])
def test_no_operation_that_is_refused_or_ignored(load, name) -> None:
    """Orion's constraints 1, 6, 10: no concat, no gelu, no attention that loses its mask."""
    model = load(name)
    _open["ane:0"].splits.planning = True
    for step in explain.steps(model, _open["ane:0"], "ane"):
        for program in step.programs:
            used = {s.op for s in program.emitted.program.main.statements}
            assert not used & {"concat", "gelu", "scaled_dot_product_attention", "rsqrt"}
            assert "softmax" in used


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_future_has_no_influence(load, name) -> None:
    """A mask that is ignored shows here: other tokens behind change no row before."""
    model = load(name)
    one, two = [3, 9, 4, 11, 7, 5, 2, 8], [3, 9, 4, 11, 6, 12, 13, 14]
    rows = [model.logits(ids)[:4] for ids in (one, two)]
    assert np.array_equal(*rows)


@pytest.mark.parametrize("vocabulary", [32000, 151936])
def test_a_head_beyond_the_limits_names_them(vocabulary) -> None:
    """maderix and Orion: a convolution of 32,000 channels fails to compile."""
    b = Builder(OPS)
    w = b.leaf(Role.WEIGHT, "output.weight", (vocabulary, 64), F16)
    x = b.leaf(Role.INPUT, "x", (1, 64), F16)
    reason = unsupported(b.mul_mat(w, x), profile.load())
    assert reason is not None
    assert f"{vocabulary} output channels, the profile takes at most 16384" in reason


def test_other_weights_of_one_shape_are_no_stale_program(load, oracles, tmp_path) -> None:
    """Orion's bug 1: what was compiled before the weights changed is not what runs after."""
    file = tmp_path / "changed.gguf"
    shutil.copy(oracles / "stories260K.gguf", file)
    changed = bytearray(file.read_bytes())
    with umbel.gguf.open(file) as opened:
        whole = opened.array("blk.2.ffn_down.weight")
        at, size = bytes(changed).index(whole.tobytes()), whole.nbytes
    values = np.frombuffer(bytes(changed[at : at + size]), np.float32) * np.float32(-1.5)
    changed[at : at + size] = values.tobytes()
    file.write_bytes(changed)
    ids = [1, 5, 9, 70, 200]
    before = load("stories260K").logits(ids)
    with umbel.load(file, device="ane:0", ctx=128, parallel=2) as other:
        after = other.logits(ids)
    with umbel.load(file, device="host", ctx=128) as host:
        wanted = host.logits(ids)
    assert apart(after, wanted) <= CLOSE
    assert apart(after, before) > 5 * CLOSE


def test_thirty_swaps_of_adapters_compile_nothing(load, oracles: Path, health) -> None:
    """Orion's constraint 5: about 119 compiles a process."""
    model = load("llama", adapter_slots=1, adapter_rank=8)
    adapter = oracles / "llama-lora.gguf"
    model.load_adapter(adapter, "a")
    first = model.logits([1, 2, 3], adapters="a")
    compiled = health()["compiles"]
    for _ in range(30):
        model.unload_adapter("a")
        model.load_adapter(adapter, "a")
        assert np.array_equal(model.logits([1, 2, 3], adapters="a"), first)
    assert health()["compiles"] == compiled


def test_a_model_that_leaves_float16_is_not_silent(load, caplog) -> None:
    """mamba's scan gives up to millions."""
    rows = load("mamba").logits([3, 9, 4, 11, 7, 5, 2, 8])
    told = [r.message for r in caplog.records if "not finite" in r.message]
    assert (len(told) == 1) == (not np.isfinite(rows).all())


@pytest.mark.parametrize("rules", ["orion-m4-macos15", "m1", "m4-macos27"])
@pytest.mark.parametrize(
    ("name", "weight", "factor"),
    [
        ("gpt2", "ffn_down.weight", 2e5),
        ("llama", "ffn_up", 1e5),
        ("granite", "attn_output", 1e5),
        ("gpt2", "attn_qkv.weight", 1e4),
    ],
)
def test_what_overflows_in_the_middle_is_told(
    load, oracles: Path, tmp_path: Path, monkeypatch, caplog, rules, name, weight, factor
) -> None:
    """Also where the chip drops NaN, so that finite rubbish comes out; and nothing is told of
    the model as it is."""
    monkeypatch.setenv("UMBEL_ANE_SIMULATOR", rules)
    load(name).logits([3, 9, 4, 11])
    assert "not finite" not in caplog.text
    file = tmp_path / f"{name}.gguf"
    shutil.copy(oracles / f"{name}.gguf", file)
    large = gguf.GGUFReader(file, "r+")
    for tensor in large.tensors:
        if weight in tensor.name:
            tensor.data[...] *= factor
    large.data.flush()
    with umbel.load(file, device="ane:0", ctx=128, parallel=2) as model:
        model.logits([3, 9, 4, 11])
    assert caplog.text.count("gave values that are not finite") == 1


@pytest.mark.parametrize("rules", ["orion-m4-macos15", "m1"])
def test_rows_are_picked_beyond_where_products_saturate(
    load, oracles: Path, tmp_path: Path, monkeypatch, rules
) -> None:
    """aneforge 115: a product is infinite beyond half of float16's range; residuals may be
    larger, and the last token's is picked by a product with ones."""
    monkeypatch.setenv("UMBEL_ANE_SIMULATOR", rules)
    file = tmp_path / "llama.gguf"
    shutil.copy(oracles / "llama.gguf", file)
    large = gguf.GGUFReader(file, "r+")
    for tensor in large.tensors:
        if "ffn_down" in tensor.name:
            tensor.data[...] *= 1.5e4
    large.data.flush()
    ids, options = list(range(30, 50)), {"ane": {"canary": "off"}}
    with (
        umbel.load(file, device="ane:0", ctx=64, options=options) as here,
        umbel.load(file, device="host", ctx=64) as there,
    ):
        for n in (5, 17, 20):
            with here.open() as one, there.open() as two:
                assert apart(one.feed(ids[:n]), two.feed(ids[:n])) <= CLOSE
