"""What `umbel.load` takes, refuses and tells."""

from __future__ import annotations

import logging
import math
import subprocess
import sys

import attrs
import numpy as np
import pytest
import umbel
from umbel import host, plugins
from umbel.errors import (
    ContextFullError,
    DeviceError,
    ModelFormatError,
    OptionError,
    OutOfMemoryError,
    PluginError,
    SamplingError,
    UnsupportedModelError,
)
from umbel.graph import Operation, Spec
from umbel.models import Architecture
from umbel.plugins import Plugins

IDS = [1, 100, 200, 300, 17]
TWICE = Operation("twice", lambda x: Spec(x.shape, x.dtype), lambda x: 2 * x)


@pytest.fixture
def told(caplog):
    """The lines that the logger "umbel" got."""
    caplog.set_level(logging.INFO, logger="umbel")
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_good_file_on_the_host_is_loaded_without_a_word(load, told):
    """Nothing is out of the ordinary."""
    model = load("llama", ctx=None)
    assert (("host:0",), 256) == (model.devices, model.ctx)
    assert [] == told()


# files


def test_an_architecture_that_is_not_here(rewrite, load):
    """It is named, and those that are."""
    with pytest.raises(UnsupportedModelError) as caught:
        load(rewrite("llama", {"general.architecture": "gptx"}))
    assert "'gptx'" in caught.value.what
    assert "llama" in caught.value.expected


def test_tensors_of_types_that_cannot_be_read_are_all_listed(rewrite, load):
    """Q01: before anything is computed."""
    packed = (np.zeros((1, 40), np.uint8), 9)
    path = rewrite("llama", tensors={"one.weight": packed, "two.weight": packed})
    with pytest.raises(UnsupportedModelError) as caught:
        load(path)
    assert all(f"{name}.weight" in caught.value.got for name in ("one", "two"))


def test_a_missing_tensor_is_named(rewrite, load):
    """With the shape that it should have."""
    with pytest.raises(ModelFormatError) as caught:
        load(rewrite("llama", tensors={"blk.0.ffn_up.weight": None}))
    assert "'blk.0.ffn_up.weight' is missing" in caught.value.what


@pytest.mark.parametrize("key", ["llama.block_count", "llama.embedding_length"])
def test_a_missing_key_is_named_in_full(rewrite, load, key):
    """G15: the required ones."""
    with pytest.raises(ModelFormatError) as caught:
        load(rewrite("llama", {key: None}))
    assert key in str(caught.value)


def test_tensors_that_nobody_reads_are_noted(rewrite, load, told):
    """A line says how many there are, and some of their names."""
    extra = {f"extra.{i}.weight": np.zeros(4, np.float32) for i in range(6)}
    load(rewrite("llama", tensors=extra))
    (line,) = told()
    assert line.startswith("6 tensors of the file are not used: extra.0.weight, ")
    assert line.endswith(" ...")
    load(rewrite("bert", tensors={"extra.weight": np.zeros(4, np.float32)}))
    assert "1 tensors of the file are not used: extra.weight" == told()[-1]


def test_a_vocabulary_of_another_size_than_the_embedding(rewrite, load):
    """An id without a row would be read from somewhere else."""
    path = rewrite("llama", tensors={"token_embd.weight": np.zeros((500, 64), np.float32)})
    with pytest.raises(ModelFormatError) as caught:
        load(path)
    assert (512, 500) == (caught.value.expected, caught.value.got)


def test_a_failed_load_lets_go_of_the_file(rewrite, monkeypatch):
    """Whatever failed."""
    closed = []
    monkeypatch.setattr(umbel.gguf.GGUFFile, "close", lambda self: closed.append(self.path))
    path = rewrite("llama", tensors={"blk.0.ffn_up.weight": None})
    with pytest.raises(ModelFormatError):
        umbel.load(path, device="host")
    assert path == closed[-1]


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize("kind", [0, 8, 2])
def test_tied_embeddings(rewrite, load, name, kind):
    """G14: without an output tensor the embedding is the head, quantised or not."""
    import gguf as package

    with umbel.gguf.open(rewrite(name)) as file:
        table = file.array("token_embd.weight").copy()
    data = package.quants.quantize(table, package.GGMLQuantizationType(kind))
    tied = load(
        rewrite(name, tensors={"token_embd.weight": (data, kind), "output.weight": None})
    )
    twin = {"token_embd.weight": (data, kind), "output.weight": (data, kind)}
    assert np.array_equal(tied.logits(IDS), load(rewrite(name, tensors=twin)).logits(IDS))


def test_optional_keys(rewrite, load):
    """G15: a missing freq_base is 10000, a missing head_count_kv is head_count."""
    plain = load(rewrite("llama", {"llama.rope.freq_base": None})).logits(IDS)
    said = load(rewrite("llama", {"llama.rope.freq_base": 10000.0})).logits(IDS)
    other = load(rewrite("llama", {"llama.rope.freq_base": 1e6})).logits(IDS)
    assert np.array_equal(plain, said)
    assert np.abs(plain - other).max() > 1e-3
    with pytest.raises(ModelFormatError, match="attn_k"):
        load(rewrite("llama", {"llama.attention.head_count_kv": None}))
    with umbel.gguf.open(rewrite("llama")) as file:
        one, n = (
            file.get("llama.attention.head_count_kv", int),
            file.get("llama.block_count", int),
        )
    listed = load(rewrite("llama", {"llama.attention.head_count_kv": [one] * n}))
    assert np.array_equal(load("llama").logits(IDS), listed.logits(IDS))


def test_frequency_factors(rewrite, load):
    """G16: of 8 they change what stands at position 100; of 1 nothing; unknown scaling is
    refused."""
    ids = np.random.default_rng(0).integers(3, 512, 101)
    plain = load("llama").logits(ids)
    half = load("llama").runner.definition.hparams.head_dim_k // 2
    ones, eights = (
        load(rewrite("llama", tensors={"rope_freqs.weight": np.full(half, v, np.float32)}))
        for v in (1, 8)
    )
    assert np.array_equal(plain, ones.logits(ids))
    assert np.abs(plain[100] - eights.logits(ids)[100]).max() > 1e-3
    with pytest.raises(UnsupportedModelError, match="'su'"):
        load(rewrite("llama", {"llama.rope.scaling.type": "su"}))


@pytest.mark.parametrize(("scale", "number"), [(0x7E00, 2), (0x7C00, 2), (None, 0)])
def test_weights_that_are_not_finite(rewrite, load, scale, number):
    """Q04: `check_tensors` names tensor and block; without it the sampler tells."""
    name = "blk.1.attn_output.weight"
    with umbel.gguf.open(rewrite("llama")) as file:
        bad = file.array(name).copy()
    if scale is None:
        bad[3, 40], block = np.nan, 3 * bad.shape[1] + 40
    else:
        rows, columns = bad.shape
        bad = np.zeros((rows, columns // 32, 18), np.uint8)
        bad[3, 1, :2] = np.frombuffer(np.uint16(scale).tobytes(), np.uint8)
        block = 3 * (columns // 32) + 1
        bad = bad.reshape(rows, -1)
    path = rewrite("llama", tensors={name: (bad, number)})
    with pytest.raises(ModelFormatError) as caught:
        load(path, check_tensors=True)
    assert repr(name) in caught.value.what
    assert f"block {block} " in caught.value.got
    with pytest.raises(SamplingError, match="no token to choose"):
        load(path).generate(IDS, max_tokens=2).read()
    with pytest.raises(DeviceError, match="not finite") as named:
        load(path, check=True).logits(IDS)
    assert "attn_output" in named.value.what


def test_check_changes_no_value(load):
    """Node by node or all at once."""
    assert np.array_equal(load("llama").logits(IDS), load("llama", check=True).logits(IDS))
    load("llama", check_tensors=True)


# numbers


@pytest.mark.parametrize("value", [0, -1, -(2**31), 2**63, 1e308, math.nan, True, "5", 1.5])
@pytest.mark.parametrize("name", ["ctx", "parallel", "ubatch", "threads"])
def test_numbers_that_are_none(load, name, value):
    """Each names the option; `threads` alone may be 0, which is None."""
    if (name, value) == ("threads", 0):
        assert load("llama", threads=0).devices
        return
    with pytest.raises(OptionError) as caught:
        load("llama", **{name: value})
    assert name == caught.value.where


def test_the_context_that_the_model_was_trained_for(load, rewrite, told):
    """By default, up to 4096; more is a matter of a line."""
    assert 256 == load("llama", ctx=None).ctx
    assert 4096 == load(rewrite("llama", {"llama.context_length": 10**6}), ctx=None).ctx
    assert [] == told()
    assert 300 == load("llama", ctx=300).ctx
    assert ["ctx 300 is more than the 256 tokens of the training"] == told()


def test_a_context_that_cannot_fit(load):
    """It is refused with both numbers before any memory is taken."""
    with pytest.raises(OutOfMemoryError, match="the context does not fit") as caught:
        load("llama", ctx=2**30)
    assert isinstance(caught.value.got, int)
    assert caught.value.got > 2**30


def test_learned_positions_bound_the_context(rewrite, load, told):
    """K08: with a line; a longer prompt is refused; a shift embeds anew."""
    with umbel.gguf.open(rewrite("gpt2")) as file:
        table = file.array("position_embd.weight")[:16].copy()
    path = rewrite("gpt2", {"gpt2.context_length": 16}, {"position_embd.weight": table})
    model = load(path, ctx=64)
    assert 16 == model.ctx
    assert ["the model has learned positions: ctx is 16, not 64"] == told()
    with pytest.raises(ContextFullError, match="16"):
        model.generate([5] * 20)
    generation = model.generate([5] * 10, max_tokens=30, keep=2, temperature=0)
    generation.read()
    assert "length" == generation.finish_reason
    assert 30 == len(generation.tokens)
    assert generation.dropped > 0


# devices


def test_auto_takes_the_best_real_device(add_backend, load):
    """A simulated one never, whatever its priority; by name it may be had."""
    add_backend("good", priority=20)
    add_backend("fair", priority=10)
    add_backend("toy", priority=99, simulated=True)
    assert ("good:0", "fair:0", "host:0") == load("llama", device="auto").devices
    assert ("toy:0", "good:0", "fair:0", "host:0") == load("llama", device="toy").devices
    assert ("fair:0", "good:0", "host:0") == load("llama", device="fair, good:0").devices
    assert ("host:0",) == load("llama", device="host").devices


def test_a_device_of_other_memory_is_taken_only_by_name(add_backend, load):
    """What the first cannot run goes to those that share the host's memory."""
    add_backend("far", priority=20, reads_host=False)
    add_backend("best", priority=30)
    assert ("best:0", "host:0") == load("llama", device="auto").devices
    assert ("far:0", "best:0", "host:0") == load("llama", device="far").devices


@pytest.mark.parametrize("device", ["nothing", "host,nothing", "host:7", "", ","])
def test_a_device_that_is_not_here(load, device):
    """An error that lists those that are; never the host instead."""
    with pytest.raises(DeviceError) as caught:
        load("llama", device=device)
    assert "host:0" in caught.value.expected


def failing(device, options, kernels):
    msg = "its driver is too old"
    raise DeviceError(msg)


def test_a_device_that_does_not_open(add_backend, load, told):
    """By name it is an error, and under `strict`; else a line says so."""
    add_backend("broken", priority=20, open=failing)
    with pytest.raises(DeviceError, match="too old"):
        load("llama", device="broken")
    with pytest.raises(DeviceError, match="too old"):
        load("llama", device="auto", strict=True)
    assert ("host:0",) == load("llama", device="auto").devices
    assert ["broken:0 is not used: its driver is too old"] == told()


def test_what_does_not_run_on_the_first_device_is_told(add_backend, load, told):
    """With counts, and where to read more; under `strict` it is an error with the reason."""

    def no_matrices(device, node):
        return "no matrices here" if node.op.name == "mul_mat" else None

    add_backend("weak", op_supported=no_matrices)
    model = load("llama", device="weak")
    lines = told()
    assert lines[0].startswith("weak:0 does not run everything: host:0 computes ")
    assert lines[0].endswith("`umbel plan` tells why")
    assert np.abs(load("llama").logits(IDS) - model.logits(IDS)).max() <= 1e-5
    with pytest.raises(DeviceError, match="does not run on weak:0") as caught:
        load("llama", device="weak", strict=True)
    assert "no matrices here" in caught.value.got
    load("llama", device="host", strict=True)


def test_weights_that_a_device_converts_are_told(add_backend, load, rewrite, told):
    """With the types; under `strict` it is an error."""

    class Converting(host.HostBufferType):
        def accepts(self, tensor):
            return umbel.gguf.types.F32

        def store(self, tensor, array):
            values = umbel.gguf.types.dequantise(array, tensor.dtype)
            return super().store(attrs.evolve(tensor, dtype=umbel.gguf.types.F32), values)

    def buffer_type(device):
        kind = host.buffer_type(device)
        return Converting(**{f.name: getattr(kind, f.name) for f in attrs.fields(type(kind))})

    add_backend("plain", buffer_type=buffer_type)
    import gguf as package

    with umbel.gguf.open(rewrite("llama")) as file:
        table = file.array("blk.0.ffn_up.weight").copy()
    data = package.quants.quantize(table, package.GGMLQuantizationType.Q8_0)
    path = rewrite("llama", tensors={"blk.0.ffn_up.weight": (data, 8)})
    load(path, device="plain")
    assert ["weights are converted for plain:0: 1 tensors from q8_0 to f32"] == told()
    with pytest.raises(DeviceError, match="converted"):
        load(path, device="plain", strict=True)


def test_strict_minds_plugins_that_failed(only_the_host, add_backend, load):
    """Without it they are for `umbel plugins` to show."""
    add_backend("bad", devices=lambda: 1 // 0)
    load("llama", device="auto")
    with pytest.raises(PluginError, match="'bad'"):
        load("llama", device="auto", strict=True)


@pytest.mark.parametrize(
    ("hook", "answer", "reason"),
    [
        ("ops", lambda: [umbel.ops.OPS["add"]], "Operation 'add' exists already"),
        ("ops", lambda: [TWICE, TWICE], "Operation 'twice' exists already"),
        ("ops", lambda: 1 // 0, "ZeroDivisionError"),
        ("architectures", lambda: [5], "5 is no Architecture"),
        ("architectures", lambda: [Architecture([], None)], "Architecture("),
    ],
)
def test_a_plugin_that_brings_nonsense_stops_no_other(
    add_backend, load, told, hook, answer, reason
):
    """It is not used at all, and a line says so; under `strict`, and for who named its device,
    it is the error."""
    add_backend("bad", **{hook: answer})
    assert ("host:0",) == load("llama", device="auto").devices
    (line,) = told()
    assert line.startswith("the plugin 'bad' is not used: ")
    assert reason in line
    for settings in ({"device": "bad"}, {"device": "host", "strict": True}):
        with pytest.raises(PluginError, match="'bad' cannot be used") as caught:
            load("llama", **settings)
        assert f"{hook}(): {reason}" in caught.value.what


def test_options_that_fail_are_those_of_one_device(
    only_the_host, add_backend, load, told, monkeypatch
):
    """With `threads` all devices are asked for theirs; the others go on."""
    monkeypatch.setattr(host, "set_threads", lambda n: True)
    only_the_host.close()
    add_backend("bad", priority=20, options=lambda: 1 // 0)
    assert ("host:0",) == load("llama", device="auto", threads=1).devices
    assert told()[0].startswith("bad:0 is not used: the plugin 'bad' failed in options()")
    with pytest.raises(PluginError, match="'bad' failed in options"):
        load("llama", device="bad", threads=1)
    only_the_host.close()


def test_memory_that_fails_names_the_device(add_backend, load):
    """In the middle of a load, by an error of ours."""

    class Failing(host.HostBufferType):
        def store(self, tensor, array):
            raise RuntimeError("the bus is gone")

    add_backend("bad", buffer_type=lambda device: Failing(host.buffer_type(device).limit))
    with pytest.raises(DeviceError, match="bad:0 failed in store: RuntimeError: the bus"):
        load("llama", device="bad")


def test_what_does_not_run_in_a_prefill_only_is_told(add_backend, load, told):
    """The shape of a step may be what a device refuses."""

    def one_token(device, node):
        wide = node.op.name == "mul_mat" and len(node.shape) == 2 and node.shape[0] > 1
        return "one token at a time" if wide else None

    add_backend("narrow", op_supported=one_token)
    load("llama", device="narrow")
    assert told()[0].startswith("narrow:0 does not run everything: host:0 computes ")


def test_devices_after_the_host_are_refused(add_backend, load):
    """It runs everything: they would be dropped without a word."""
    add_backend("good")
    with pytest.raises(OptionError, match="host runs everything") as caught:
        load("llama", device="host,good")
    assert "put host last" == caught.value.do
    assert ("good:0", "host:0") == load("llama", device="good,host").devices
    assert ("host:0",) == load("llama", device="host,host:0").devices


def test_options_and_threads_reach_the_backend(monkeypatch, load):
    """`threads` goes to whoever has such an option; one given for a backend comes first."""
    threads = []
    monkeypatch.setattr(host, "set_threads", lambda n: threads.append(n) or 1)
    for wanted, given in ((1, {}), (7, {"threads": 1})):
        monkeypatch.setattr(plugins, "_process", Plugins(only=""))
        load("llama", threads=wanted, options={"host": {"dequantise": "blocks"} | given})
    assert [1, 1] == threads
    assert "blocks" == plugins.get()._open["host:0"][1]["dequantise"]


def test_helpers_get_no_more_threads_than_there_are_processors(monkeypatch, load, add_backend):
    """So that one line tells of too many, which is the named device's."""
    threads = []
    monkeypatch.setattr(host, "set_threads", lambda n: threads.append(n) or 1)
    monkeypatch.setattr(host, "cpus", lambda: 6)
    plugins.get().close()
    add_backend("good")
    load("llama", device="good", threads=100)
    assert [100, 6] == threads


@pytest.mark.parametrize(
    "options",
    [
        {"nothing": {"a": 1}},
        {"kept": {"colour": "red"}},
        {"kept": {"dequantise": "sometimes"}},
        {"kept": {"threads": "many"}},
    ],
)
def test_options_that_are_none(add_backend, load, options):
    """An unknown backend, an unknown option, a value that it does not take."""
    add_backend("kept")
    with pytest.raises(OptionError):
        load("llama", device="kept", options=options)


def test_the_import_is_cheap():
    """`import umbel` and `--help` load neither NumPy nor the engine; the engine loads neither
    gguf's package nor jinja2."""
    code = """if True:
        import sys, umbel
        assert not {"numpy", "umbel.engine", "umbel.plugins", "gguf"} & set(sys.modules)
        umbel.load
        assert "umbel.engine" in sys.modules
        assert not {"gguf", "jinja2", "umbel.host"} & set(sys.modules), set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_progress(load):
    """Told after each weight, up to the bytes of all."""
    told = []
    model = load("llama", progress=lambda *sizes: told.append(sizes))
    tensors = model.runner.definition.file.tensors
    total = sum(tensor.nbytes for tensor in tensors.values())
    done = [done for done, _ in told]
    assert len(told) == len(tensors)
    assert done == sorted(done)
    assert told[0] != told[-1] == (total, total)
