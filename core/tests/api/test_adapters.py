"""LoRA adapters: the right answer, swapped, scaled, mixed in a batch, refused, not confused."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from umbel import adapters
from umbel.errors import ModelFormatError, OptionError, UmbelError

LORA = Path(__file__).parents[1] / "data" / "oracles" / "llama-lora.gguf"
KEYS = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
MODELS = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "gpt2", "gemma3", "phi3", "olmo2"), 1e-4),
    **dict.fromkeys(("granite", "lfm2"), 1e-4),
    **dict.fromkeys(("mamba", "mamba2"), 2e-4),
}
GREEDY = {"temperature": 0.0, "max_tokens": 12}


@pytest.fixture
def lora(tmp_path, write_gguf):
    """lora(name, stems, rank, keys, tensors): a file of random factors for layers (out, in)."""
    numbers = itertools.count()

    def made(arch, stems, *, rank=4, name="", keys=None, tensors=None, large=0.3):
        rng = np.random.default_rng(len(name) + rank)
        factors = {}
        for stem, (n_out, n_in) in stems.items():
            a, b = rng.normal(size=(rank, n_in)), rng.normal(size=(n_out, rank))
            factors[f"{stem}.weight.lora_a"] = (a * n_in**-0.5).astype(np.float32)
            factors[f"{stem}.weight.lora_b"] = (b * large).astype(np.float32)
        factors |= tensors or {}
        given = {"general.architecture": arch} | KEYS | (keys or {})
        return write_gguf(
            tmp_path / f"{name or f'lora-{next(numbers)}'}.gguf",
            {k: v for k, v in given.items() if v is not None},
            {k: v for k, v in factors.items() if v is not None},
        )

    return made


def linears(model):
    """The layers that an adapter may change."""
    return adapters.linears(model.runner.definition)


def greedy(model, prompt="Once upon a time", **settings):
    return model.generate(prompt, **GREEDY, **settings).read()


# the right answer


def test_oracle(load, oracle):
    """An adapter of PEFT, in one batch and token by token; {} is the model as it is."""
    data, model = oracle("llama-lora"), load("llama", adapters=LORA)
    for mix, expected in (
        (None, "ref"),
        ("llama-lora", "ref"),
        ({}, "base"),
        ([], "base"),
    ):
        logits = model.logits(data["ids"], adapters=mix)
        assert np.abs(logits - data[expected]).max() <= 1e-4
        with model.open(mix) as session:
            rows = np.array([session.feed([i]) for i in data["ids"]])
        assert np.abs(rows - data[expected]).max() <= 1e-4
    assert np.abs(data["ref"] - data["base"]).max() > 1


def test_mixed_in_a_batch(load, oracle):
    """One step of three sequences: with the adapter, without, and with half of it."""
    data, model = oracle("llama-lora"), load("llama", adapters=LORA, parallel=3)
    ids, runner = data["ids"], model.runner
    sessions = [model.open(mix) for mix in (None, {}, {"llama-lora": 0.5})]
    alone = model.logits(ids[:9], adapters={"llama-lora": 0.5})[-1]
    for session in sessions:
        session.feed(ids[:8])
    sequences = [session._sequence for session in sessions]
    rows = model.engine.call(lambda: runner.decode(sequences, [ids[8]] * 3))
    for row, expected in zip(rows, (data["ref"][8], data["base"][8], alone), strict=True):
        assert np.abs(row - expected).max() <= 1e-4
    for session in sessions:
        session.close()


@pytest.mark.parametrize(("name", "bound"), MODELS.items(), ids=MODELS)
def test_is_the_merged_model(load, lora, rewrite, oracle, name, bound):
    """Two scaled adapters of all linear layers give what the summed weights give."""
    shapes = linears(load(name))
    one = lora(name, shapes, name="one")
    two = lora(name, shapes, rank=2, name="two")
    ids = oracle(name)["ids"]
    model = load(name, adapters={str(one): 1.0, str(two): -0.5}, parallel=2)
    merged = load(rewrite(name, tensors=_merged(load(name).file, [(one, 2.0), (two, -2.0)])))
    expected = merged.logits(ids)
    assert np.abs(expected - load(name).logits(ids)).max() > 100 * bound
    assert np.abs(model.logits(ids) - expected).max() <= bound
    with model.open() as session:
        rows = np.array([session.feed([i]) for i in ids])
    assert np.abs(rows - expected).max() <= bound


def test_encoder(load, lora, rewrite, oracle):
    """Hidden states of an encoder are adapted like logits."""
    shapes = linears(load("bert"))
    path = lora("bert", shapes, name="one")
    model, ids = load("bert", adapters=path), oracle("bert")["ids"]
    merged = load(rewrite("bert", tensors=_merged(load("bert").file, [(path, 2.0)])))
    assert np.abs(model.hidden(ids) - merged.hidden(ids)).max() <= 1e-4
    assert np.abs(model.hidden(ids, adapters={}) - oracle("bert")["ref"]).max() <= 1e-4


def _merged(file, parts):
    """The weights with scale * B A added to them."""
    from umbel import gguf

    changed = {}
    for path, scale in parts:
        with gguf.open(path) as adapter:
            for name in [n for n in adapter.tensors if n.endswith("lora_a")]:
                weight = name.removesuffix(".lora_a")
                a, b = adapter.array(name), adapter.array(f"{weight}.lora_b")
                before = changed.get(weight, file.array(weight))
                changed[weight] = before + np.float32(scale) * (b @ a)
    return changed


def test_alpha(load, lora, oracle):
    """The scale is alpha / rank; a file without alpha has scale 1."""
    ids, stem = oracle("llama")["ids"], {"blk.0.attn_q": (64, 64)}
    plain = lora("llama", stem, name="a", keys={"adapter.lora.alpha": None})
    doubled = lora("llama", stem, name="b", keys={"adapter.lora.alpha": 8.0})
    twice = load("llama", adapters={str(plain): 2.0}).logits(ids)
    assert np.abs(load("llama", adapters=doubled).logits(ids) - twice).max() < 1e-5


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
def test_stored_types(load, lora, oracle, dtype):
    """Factors may be stored in any type that can be read."""
    from umbel import gguf
    from umbel.gguf.types import BY_NAME, dequantise, quantise

    kind, name = BY_NAME[dtype], "blk.0.ffn_down.weight.lora_b"
    with gguf.open(LORA) as file:
        a, b = file.array("blk.0.ffn_up.weight.lora_a"), file.array(name)
    whole = {"blk.0.ffn_up.weight.lora_b": np.ones((176, 4), np.float32)}
    raw = quantise(a, kind)
    stored = {"blk.0.ffn_up.weight.lora_a": (raw, kind.number), **whole}
    rounded = {"blk.0.ffn_up.weight.lora_a": dequantise(raw, kind).reshape(a.shape), **whole}
    ids = oracle("llama")["ids"]
    logits = [
        load("llama", adapters=lora("llama", {}, tensors=t)).logits(ids)
        for t in (stored, rounded)
    ]
    assert np.array_equal(*logits)
    assert b.shape == (64, 4)


# none is nothing


def test_scale_zero_is_the_model_to_the_bit(load, oracle):
    """Without adapters, and with a scale of 0, nothing is added at all."""
    ids, model = oracle("llama")["ids"], load("llama", adapters=LORA)
    base = load("llama").logits(ids)
    for mix in ({}, [], {"llama-lora": 0}, {"llama-lora": -0.0}):
        assert np.array_equal(model.logits(ids, adapters=mix), base)
    model.default_adapters["llama-lora"] = 0
    assert np.array_equal(model.logits(ids), base)
    model.default_adapters["llama-lora"] = -1
    assert np.abs(model.logits(ids) - base).max() > 0.1


@pytest.mark.parametrize(
    ("mix", "what"),
    [
        ("other", "no such adapter"),
        (["llama-lora", "7"], "no such adapter"),
        ({"llama-lora": float("nan")}, "scale"),
        ({"llama-lora": float("inf")}, "scale"),
        ({"llama-lora": 1e39}, "scale"),
        ({"llama-lora": 10**400}, "scale"),
        (5, "no such adapter"),
        (False, "no such adapter"),
        ({"llama-lora": True}, "scale"),
        ({"llama-lora": "1"}, "scale"),
    ],
)
def test_bad_requests(load, mix, what):
    """An unknown name and a scale that is no number are refused before anything is done."""
    model = load("llama", adapters=LORA)
    for ask in (model.open, lambda m: model.generate("a", adapters=m)):
        with pytest.raises(OptionError, match=what):
            ask(mix)
    with pytest.raises(OptionError, match="no such adapter"):
        load("llama").open("llama-lora")


# swapped


def test_swapped_without_a_new_plan(load, lora):
    """Between two requests another adapter takes the slot; no plan is made for it."""
    model = load("llama", adapters=LORA, adapter_rank=8)
    shapes = {stem: of for stem, of in linears(model).items() if stem != "output"}
    other = lora("llama", shapes, rank=8, name="other")
    first, plans = greedy(model), list(model.runner._plans)
    assert model.load_adapter(other, "llama-lora") == "llama-lora"
    second = greedy(model)
    assert list(model.runner._plans) == plans
    assert second == greedy(load("llama", adapters=other)) != first
    model.load_adapter(LORA)
    assert greedy(model) == first


def test_slots_kept_free(load, lora):
    """Slots that are asked for at load take adapters later; nobody uses them unasked."""
    model = load("llama", adapter_slots=2, adapter_rank=4)
    base = greedy(load("llama"))
    assert greedy(model) == base
    assert model.load_adapter(LORA) == "llama-lora"
    assert model.load_adapter(lora("llama", {"blk.1.ffn_up": (176, 64)}, name="b")) == "b"
    assert model.adapters == ["llama-lora", "b"]
    assert greedy(model) == base
    assert greedy(model, adapters="llama-lora") == greedy(load("llama", adapters=LORA)) != base
    with pytest.raises(OptionError, match="no slot free"):
        model.load_adapter(LORA, "third")
    model.unload_adapter("b")
    assert model.load_adapter(LORA, "third") == "third"
    assert greedy(model, adapters="third") == greedy(model, adapters="llama-lora")


def test_memory_that_cannot_be_written(load, monkeypatch):
    """After half a change no adapter is there, rather than a mixture of two."""
    from umbel.errors import DeviceError
    from umbel.plan import States

    model, write, written = load("llama", adapters=LORA), States.write, []

    def failing(self, name, values):
        written.append(name)
        if len(written) > 3:
            msg = "a fault of the test's own"
            raise DeviceError(msg)
        write(self, name, values)

    before = greedy(model)
    with monkeypatch.context() as patch:
        patch.setattr(States, "write", failing)
        with pytest.raises(DeviceError, match="own"):
            model.load_adapter(LORA)
    assert model.adapters == []
    assert greedy(model, adapters={}) == greedy(load("llama"))
    model.load_adapter(LORA)
    assert greedy(model) == before


def test_unloaded_while_it_is_used(load):
    """Who uses it is told at the next step; others go on."""
    model = load("llama", adapters=LORA, parallel=2)
    with model.open() as used, model.open({}) as other:
        used.feed("Once")
        other.feed("Once")
        model.unload_adapter("llama-lora")
        with pytest.raises(OptionError, match="was unloaded"):
            used.feed(" upon")
        other.feed(" upon")
        assert used.tokens == other.tokens[: len(used)]
        used.use({})
        logits = used.feed(" upon")
        assert used.tokens == other.tokens
        assert np.abs(logits - load("llama").logits(used.tokens)[-1]).max() < 1e-5
    with pytest.raises(OptionError, match="no such adapter"):
        model.unload_adapter("llama-lora")


def test_nobody_asks_for_what_is_just_being_unloaded(load, monkeypatch):
    """Another thread's request that names no adapter is served before, meanwhile and after."""
    model = load("llama", adapters=LORA)
    held, remove, mixes = model.runner.adapters, model.runner.adapters.remove, []

    def slowly(name):
        mixes.append(model.mix(None))
        remove(name)
        mixes.append(model.mix(None))

    monkeypatch.setattr(held, "remove", slowly)
    model.unload_adapter("llama-lora")
    assert [(), ()] == mixes
    for name in ("llama-lora", [], 5):
        with pytest.raises(OptionError, match="no such adapter"):
            model.unload_adapter(name)


def test_a_file_that_changes_later(load, lora, tmp_path):
    """What was loaded stays what it was, also when another one is put beside it."""
    path = tmp_path / "mine.gguf"
    path.write_bytes(LORA.read_bytes())
    model = load("llama", adapters=path, adapter_slots=2)
    before = greedy(model)
    with path.open("r+b") as file:  # in place, as many tools write
        file.seek(-20_000, 2)
        file.write(bytes(20_000))
    model.load_adapter(lora("llama", {"blk.1.ffn_up": (176, 64)}, name="b"))
    assert before == greedy(model) != greedy(model, adapters={})


def test_requests_side_by_side(load, lora):
    """Adapters of concurrent requests change nobody else's text."""
    model = load("llama", adapters=LORA, adapter_slots=2, adapter_rank=4, parallel=4)
    model.load_adapter(lora("llama", {"blk.1.ffn_up": (176, 64)}, name="b"))
    mixes = [{}, "llama-lora", {"llama-lora": 0.5, "b": 1.5}, "b"]
    alone = [greedy(model, adapters=mix) for mix in mixes]
    running = [model.generate("Once upon a time", adapters=mix, **GREEDY) for mix in mixes]
    assert [answer.read() for answer in running] == alone
    assert len(set(alone)) > 1


# caches


def test_a_state_is_of_one_mix(load, oracle):
    """A session that changes its adapters computes all its tokens again; a fork keeps them."""
    ids, model = oracle("llama-lora")["ids"], load("llama", adapters=LORA, parallel=3)
    with model.open({}) as session:
        session.feed(ids[:8])
        with session.fork() as fork:
            session.use(None)
            assert session.tokens == list(ids[:8])
            assert not len(session._sequence)
            ref, base = oracle("llama-lora")["ref"][8], oracle("llama-lora")["base"][8]
            assert np.abs(session.feed(ids[8:9]) - ref).max() <= 1e-4
            assert np.abs(fork.feed(ids[8:9]) - base).max() <= 1e-4
        session.use({"llama-lora": 1})
        assert len(session._sequence) == 9  # the same as before: nothing is lost


def test_saved_with_other_adapters(load, lora, tmp_path):
    """A saved session is restored with the adapters it was computed with, by their values."""
    model, path = load("llama", adapters=LORA, parallel=2), tmp_path / "saved"
    with model.open() as session:
        logits = session.feed("Once upon")
        session.save(path)
    for mix in ({}, {"llama-lora": 0.5}):
        with pytest.raises(OptionError, match="another adapter"):
            model.restore(path, mix)
    with model.restore(path) as session:
        assert np.abs(session.feed() - logits).max() < 1e-5
    same = load("llama", adapter_slots=3, adapter_rank=16)
    same.load_adapter(LORA, "by another name")
    same.restore(path, "by another name").close()
    model.load_adapter(lora("llama", {"blk.1.ffn_up": (176, 64)}), "llama-lora")
    with pytest.raises(OptionError, match="another adapter"):
        model.restore(path)


# refused


A, B = "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"


@pytest.mark.parametrize(
    ("keys", "tensors", "what"),
    [
        ({}, {B: np.ones((64, 8), np.float32)}, rf"{B}.*\[64, 4\].*\[64, 8\]"),
        ({}, {A: np.ones((4, 32), np.float32)}, rf"{A}.*\[4, 64\].*\[4, 32\]"),
        ({}, {A: np.ones(64, np.float32)}, f"{A}.*another shape"),
        (
            {},
            {A: np.ones((0, 64), np.float32), B: np.ones((64, 0), np.float32)},
            "rank above 0",
        ),
        ({}, {B: None}, f"{B}.*missing"),
        ({}, {A: None}, f"{A}.*missing"),
        ({}, {A: np.full((4, 64), np.nan, np.float32)}, f"{A}.*not finite"),
        ({}, {B: np.full((64, 4), -3e38, np.float32)}, f"{B}.*far too large"),
        ({}, {A: None, B: None}, "no tensors"),
        ({}, {"rope_freqs.weight": np.ones(8, np.float32)}, "rope_freqs.weight"),
        ({}, {"blk.0.attn_q.weight": np.ones((64, 64), np.float32)}, "blk.0.attn_q.weight"),
        ({}, {"output_norm.weight.lora_a": np.ones((4, 64), np.float32)}, "output_norm"),
        ({}, {"token_embd.weight.lora_a": np.ones((4, 64), np.float32)}, "token_embd"),
        ({"general.architecture": "gpt2"}, {}, "general.architecture 'llama'.*gpt2"),
        ({"general.type": "model"}, {}, "general.type 'adapter'.*model"),
        ({"general.type": None}, {}, "general.type 'adapter'"),
        ({"adapter.type": "control"}, {}, "adapter.type 'lora'.*control"),
        ({"adapter.lora.alpha": 0.0}, {}, "alpha"),
        ({"adapter.lora.alpha": float("nan")}, {}, "alpha"),
        ({"adapter.lora.alpha": 3e38}, {}, "alpha"),
        ({"adapter.lora.alpha": "8"}, {}, "alpha"),
    ],
)
def test_bad_files(load, lora, keys, tensors, what):
    """A file that is not for the model is refused by name and shapes, before any change."""
    model = load("llama", adapters=LORA)
    before = greedy(model)
    path = lora("llama", {"blk.0.attn_q": (64, 64)}, keys=keys, tensors=tensors)
    for take in (
        lambda: model.load_adapter(path, "llama-lora"),
        lambda: load("llama", adapters=path),
    ):
        with pytest.raises(ModelFormatError, match=rf"(?s){what}"):
            take()
    assert greedy(model) == before


def test_a_model_of_another_width(load, lora):
    """An adapter of a wider model does not fit."""
    path = lora("llama", {"blk.0.attn_q": (256, 256)})
    with pytest.raises(ModelFormatError, match=r"(?s)attn_q.*\[4, 64\].*\[4, 256\]"):
        load("llama", adapters=path)


@pytest.mark.parametrize("lost", [100, 20_000, 39_800])
def test_truncated(load, tmp_path, lost):
    """A file that was cut off is refused, as models are."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(LORA.read_bytes()[:-lost])
    with pytest.raises(ModelFormatError, match=r"truncated|past the end|beyond"):
        load("llama", adapters=path)


def test_more_than_there_is_room_for(load, lora):
    """What was kept for adapters at load cannot grow: rank, layers."""
    model = load("llama", adapters=lora("llama", {"blk.0.attn_q": (64, 64)}, name="q"))
    for path in (lora("llama", {"blk.0.attn_q": (64, 64)}, rank=5), LORA):
        with pytest.raises(OptionError, match=r"(?s)does not fit.*attn_q"):
            model.load_adapter(path, "q")
    assert model.adapters == ["q"]


def test_a_model_that_is_closed(load):
    """It says so, and not that its adapters are unknown."""
    model = load("llama", adapters=LORA, parallel=2)
    session = model.open()
    model.close()
    for ask in (
        lambda: model.hidden([1]),
        lambda: model.embed([[1]]),
        lambda: session.use({"llama-lora": 2}),
        lambda: model.generate("a", adapters="llama-lora"),
    ):
        with pytest.raises(UmbelError, match="the model is closed"):
            ask()


def test_bad_settings(load, tmp_path):
    """Two files of one name, slots of no size, numbers that are none."""
    copy = tmp_path / LORA.name
    copy.write_bytes(LORA.read_bytes())
    with pytest.raises(OptionError, match="2 adapters would be called 'llama-lora'"):
        load("llama", adapters=[LORA, copy])
    with pytest.raises(OptionError, match=r"(?s)how large.*adapter_rank"):
        load("llama", adapter_slots=1)
    for settings in ({"adapter_slots": -1}, {"adapter_slots": 1, "adapter_rank": 1.5}):
        with pytest.raises(OptionError, match="cannot be used"):
            load("llama", **settings)
    with pytest.raises(OptionError, match="scale"):
        load("llama", adapters={str(LORA): float("inf")})
    with pytest.raises(ModelFormatError, match="no such file"):
        load("llama", adapters="nowhere.gguf")
