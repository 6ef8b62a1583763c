"""Folders that are damaged, incomplete, or of another kind."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from umbel.errors import ModelFormatError, OptionError, UmbelError, UnsupportedModelError
from umbel.tools.convert import convert


def refused(folder: Path, out: Path, kind: type[UmbelError] = ModelFormatError) -> UmbelError:
    """What is said; nothing is written, not even beside the place."""
    with pytest.raises(kind) as info:
        convert(folder, out)
    left = {p.name for p in out.parent.iterdir()} - {folder.name}
    assert left == set()
    return info.value


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out.gguf"


def test_no_folder_and_no_model_folder(tmp_path, out):
    """What to give instead is said."""
    assert "config.json" in str(refused(tmp_path / "none", out, OptionError))
    (tmp_path / "empty").mkdir()
    assert "config.json" in str(refused(tmp_path / "empty", out, OptionError))


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff", '"a"', "[" * 9999])
def test_a_malformed_config(make, out, text):
    """It names the file."""
    folder = make("llama")
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in str(refused(folder, out))


def test_weights_as_pickles(make, out):
    """They are programs; what to do is said."""
    folder = make("llama")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = refused(folder, out, OptionError)
    assert error.got == "pytorch_model.bin"
    assert "save_pretrained" in str(error.do)


def test_no_weights(make, out):
    """Neither as safetensors nor otherwise."""
    folder = make("llama")
    (folder / "model.safetensors").unlink()
    assert refused(folder, out, OptionError).got == "none"


@pytest.mark.parametrize("keep", [0, 7, 8, 200, 5000, -1])
def test_a_truncated_file(make, out, keep):
    """In its header or in its data."""
    folder = make("llama")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert str(path) == str(refused(folder, out).where)


@pytest.mark.parametrize("length", [0, 1, 2**40, 2**64 - 1])
def test_a_wrong_length_of_the_header(make, out, length):
    """It is not read for what it claims to be."""
    folder = make("llama")
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    refused(folder, out)


def index(make, folder: Path, names: dict[str, str]) -> None:
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    make.tensors(folder, arrays, "a.safetensors")
    listed = {**dict.fromkeys(arrays, "a.safetensors"), **names}
    make.write(folder, "model.safetensors.index.json", {"weight_map": listed})


def test_a_shard_that_is_missing(make, out):
    """The index lists a file that is not there."""
    folder = make("llama")
    index(make, folder, {"lm_head.weight": "b.safetensors"})
    assert str(folder / "b.safetensors") == str(refused(folder, out).where)


def test_a_listed_tensor_that_is_in_no_shard(make, out):
    """The index promises more than the files hold."""
    folder = make("llama")
    index(make, folder, {"model.more.weight": "a.safetensors"})
    assert refused(folder, out).expected == "model.more.weight"


@pytest.mark.parametrize("file", ["../a.safetensors", "/a", 3, None, ""])
def test_an_index_that_leads_elsewhere(make, out, file):
    """Files stand beside the index."""
    folder = make("llama")
    index(make, folder, {"lm_head.weight": file})
    refused(folder, out)


def test_a_tensor_in_two_shards(make, out):
    """Which one counts would be a guess."""
    folder = make("llama")
    arrays = load_file(folder / "model.safetensors")
    index(make, folder, {"lm_head.weight": "b.safetensors"})
    make.tensors(folder, {"lm_head.weight": arrays["lm_head.weight"]}, "b.safetensors")
    assert "earlier file" in refused(folder, out).what


def changed(make, case: str, **changes) -> Path:
    """A folder with other tensors: None takes one out."""
    folder = make(case)
    arrays = load_file(folder / "model.safetensors") | changes
    kept = {name: array for name, array in arrays.items() if array is not None}
    make.tensors(folder, kept)
    return folder


NORM, Q = "model.layers.1.input_layernorm.weight", "model.layers.0.self_attn.q_proj"


def test_a_tensor_that_is_missing(make, out):
    """It is named as the file would have it."""
    error = refused(changed(make, "llama", **{NORM: None}), out)
    assert "'blk.1.attn_norm.weight' is missing" in error.what


@pytest.mark.parametrize("shape", [None, (), (64,), (64, 31), (2**40, 0)])
def test_an_embedding_that_cannot_be(make, out, shape):
    """Its rows are counted before a token is written for each."""
    array = None if shape is None else np.zeros(shape, np.float32)
    folder = changed(make, "llama", **{"model.embed_tokens.weight": array})
    assert "token embedding" in refused(folder, out).what


def test_a_head_that_is_missing(make, out):
    """An untied head is not replaced by the embedding in silence."""
    error = refused(changed(make, "llama", **{"lm_head.weight": None}), out)
    assert "lm_head.weight" in error.what


@pytest.mark.parametrize("shape", [(31,), (32, 1), (0,), ()])
def test_a_tensor_of_another_shape(make, out, shape):
    """Found before anything is copied."""
    error = refused(changed(make, "llama", **{NORM: np.zeros(shape, np.float32)}), out)
    assert (error.expected, error.got) == ([32], list(shape))


@pytest.mark.parametrize(
    ("case", "name", "shape"),
    [
        ("lfm2", "model.layers.0.conv.conv.weight", (32, 2, 3)),
        ("mamba2", "backbone.layers.0.mixer.norm.weight", (63,)),
        ("mamba2", "backbone.layers.0.mixer.A_log", (4, 1)),
        ("gpt2", "transformer.h.0.attn.c_attn.weight", (96, 32)),
        ("qwen3moe", "model.layers.0.mlp.experts.3.up_proj.weight", (24, 31)),
    ],
)
def test_another_shape_of_what_is_changed(make, out, case, name, shape):
    """Tensors that are turned, joined or cut are checked as well."""
    refused(changed(make, case, **{name: np.zeros(shape, np.float32)}), out)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.sinks", "visual.weight", "model"])
def test_a_tensor_without_a_place(make, out, name):
    """Nothing of a model is dropped in silence."""
    folder = changed(make, "llama", **{name: np.zeros(4, np.float32)})
    assert name in str(refused(folder, out, UnsupportedModelError).got)


def test_a_bias_that_the_model_would_not_read(make, out):
    """The name is known, and the architecture has no use for it."""
    folder = changed(
        make, "llama", **{NORM.replace("weight", "bias"): np.zeros(32, np.float32)}
    )
    assert refused(folder, out).got == "blk.1.attn_norm.bias"


def test_an_expert_that_is_missing(make, out):
    """They are counted from 0 on without gaps."""
    folder = changed(make, "qwen3moe", **{"model.layers.1.mlp.experts.4.up_proj.weight": None})
    assert "some are missing" in refused(folder, out).what


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8])
def test_types_that_are_not_weights(make, out, dtype):
    """Integers are those of a model that was quantised."""
    folder = changed(make, "llama", **{f"{Q}.weight": np.zeros((32, 32), dtype)})
    assert "type" in refused(folder, out, UnsupportedModelError).what


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(make, out, value):
    """They would spoil every text."""
    weight = np.zeros((32, 32), np.float32)
    weight[3, 4] = value
    error = refused(changed(make, "llama", **{f"{Q}.weight": weight}), out)
    assert "'blk.0.attn_q.weight' holds a value that is not finite" in error.what


def test_half_a_character_in_the_vocabulary(make, out):
    """JSON can hold it, a file cannot."""
    folder = make("llama")
    text = (folder / "tokenizer.json").read_text()
    data = json.loads(text)
    data["added_tokens"][0]["content"] = "\ud800"
    make.write(folder, "tokenizer.json", data)
    assert "UTF-16" in refused(folder, out).what


@pytest.mark.parametrize("package", ["safetensors", "ml_dtypes"])
def test_without_the_extra(make, out, monkeypatch, package):
    """One line says what to install."""
    folder = make("llama")
    monkeypatch.setitem(sys.modules, package, None)
    error = refused(folder, out, OptionError)
    assert error.do == "pip install 'umbel-core[convert]'"
