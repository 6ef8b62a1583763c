"""The file itself: its types, and that it is whole or not there."""

from __future__ import annotations

import errno
import json
import os
import shutil
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from umbel import gguf
from umbel.errors import ModelFormatError, OptionError
from umbel.gguf.types import dequantise
from umbel.tools.convert import convert

Q = "model.layers.0.self_attn.v_proj.weight"
OURS = "blk.0.attn_v.weight"


@pytest.fixture
def typed(make):
    """The folder of a case in a type."""

    def made(case, dtype):
        folder = make(case)
        arrays = load_file(folder / "model.safetensors")
        make.tensors(folder, {name: array.astype(dtype) for name, array in arrays.items()})
        return folder

    return made


def types_of(path) -> dict[str, str]:
    with gguf.open(path) as file:
        return {name: info.dtype.name for name, info in file.tensors.items()}


def values_of(path, name) -> np.ndarray:
    with gguf.open(path) as file:
        return dequantise(file.array(name), file.tensors[name].dtype)


@pytest.mark.parametrize(
    ("dtype", "kind", "number"),
    [
        (np.float32, "f32", 0),
        (np.float16, "f16", 1),
        (ml_dtypes.bfloat16, "bf16", 32),
        (np.float64, "f32", 0),
    ],
    ids=str,
)
def test_matrices_stay_as_they_are(typed, tmp_path, dtype, kind, number):
    """Without --type; norms and the like are always float32."""
    folder, out = typed("qwen2", dtype), tmp_path / "out.gguf"
    convert(folder, out)
    kinds = types_of(out)
    assert (kinds[OURS], kinds["blk.0.attn_v.bias"], kinds["output_norm.weight"]) == (
        *(kind, "f32", "f32"),
    )
    expected = load_file(folder / "model.safetensors")[Q].astype(np.float32)
    np.testing.assert_array_equal(values_of(out, OURS), expected)
    with gguf.open(out) as file:
        assert file.metadata["general.file_type"] == number


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", np.float32), ("F16", np.float16), ("BF16", ml_dtypes.bfloat16)]
)
@pytest.mark.parametrize("source", [np.float32, ml_dtypes.bfloat16], ids=str)
def test_a_type_that_was_asked_for(typed, tmp_path, kind, dtype, source):
    """Rounded once, to the nearest."""
    folder, out = typed("qwen2", source), tmp_path / "out.gguf"
    convert(folder, out, kind=kind)
    assert types_of(out)[OURS] == kind.lower()
    stored = load_file(folder / "model.safetensors")[Q].astype(np.float32)
    expected = stored.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(values_of(out, OURS), expected)


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("gpt2", {"position_embd.weight"}),
        ("mamba", {"blk.0.ssm_a", "blk.0.ssm_d", "blk.0.ssm_conv1d.weight"}),
        ("mamba2", {"blk.0.ssm_a", "blk.0.ssm_norm.weight"}),
        ("lfm2", {"blk.0.shortconv.conv.weight"}),
        ("qwen3moe", {"blk.0.ffn_gate_inp.weight"}),
        ("bert", {"token_types.weight", "token_embd_norm.bias"}),
    ],
)
def test_what_stays_precise(make, tmp_path, case, names):
    """Small tensors that much depends on, in all types."""
    out = tmp_path / "out.gguf"
    convert(make(case), out, kind="F16")
    kinds = types_of(out)
    assert {kinds[name] for name in names} == {"f32"}
    assert kinds["token_embd.weight"] == "f16"


def test_a_value_too_large_for_f16(make, tmp_path):
    """It would become infinite."""
    folder = make("llama")
    arrays = load_file(folder / "model.safetensors")
    arrays[Q][0, 0] = 1e5
    make.tensors(folder, arrays)
    with pytest.raises(ModelFormatError, match="too large for F16") as info:
        convert(folder, tmp_path / "out.gguf", kind="F16")
    assert (info.value.got, "BF16" in info.value.do) == (1e5, True)
    convert(folder, tmp_path / "out.gguf", kind="BF16")


def test_a_file_is_replaced_only_when_asked(make, tmp_path):
    """And then only once the new one is whole."""
    folder, out = make("llama"), tmp_path / "out.gguf"
    out.write_text("mine")
    with pytest.raises(OptionError, match="exists already"):
        convert(folder, out)
    assert out.read_text() == "mine"
    (folder / "tokenizer.json").rename(folder / "away")
    with pytest.raises(OptionError, match="no tokenizer"):
        convert(folder, out, force=True)
    assert out.read_text() == "mine"
    (folder / "away").rename(folder / "tokenizer.json")
    convert(folder, out, force=True)
    assert "token_embd.weight" in types_of(out)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_what_is_read_is_never_replaced(make, tmp_path, name):
    """Not by force and not through a link; a GGUF file in the folder is."""
    folder, link = make("llama"), tmp_path / "link.gguf"
    link.symlink_to(folder / name)
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    before = (folder / name).read_bytes()
    for out in (folder / name, link):
        with pytest.raises(OptionError, match="OUT is IN"):
            convert(folder, out, force=True)
    assert (folder / name).read_bytes() == before
    for force in (False, True):
        convert(folder, folder / "model.gguf", force=force)


def test_places_that_cannot_be_written(make, tmp_path):
    """A folder, a folder that is not there."""
    folder = make("llama")
    for out in (tmp_path, tmp_path / "none" / "out.gguf"):
        with pytest.raises(OptionError):
            convert(folder, out, force=True)
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))], ids=str
)
def test_nothing_is_left_of_a_failure(make, tmp_path, error):
    """Ctrl-C and a full disk in the middle of the tensors."""
    folder = make("llama")

    def fail(done, total, name):
        if done == total // 2:
            raise error

    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OptionError
    with pytest.raises(expected):
        convert(folder, tmp_path / "out.gguf", progress=fail)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_disk_that_is_too_small(make, tmp_path, monkeypatch):
    """Known before the first tensor; a file system that does not know is tried."""
    folder, out = make("llama"), tmp_path / "out.gguf"
    usage = SimpleNamespace(total=2000, free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OptionError, match="not enough room") as info:
        convert(folder, out)
    assert (info.value.got, list(tmp_path.iterdir())) == ("1000 bytes", [folder])
    usage.total = usage.free = 0
    convert(folder, out)


def test_progress_tells_every_tensor(make, tmp_path):
    """In order, with their number."""
    seen = []
    convert(make("llama"), tmp_path / "out.gguf", progress=lambda *now: seen.append(now))
    assert [done for done, _, _ in seen] == list(range(len(seen)))
    assert {total for _, total, _ in seen} == {len(seen)}
    assert {name for _, _, name in seen} == set(types_of(tmp_path / "out.gguf"))


def test_one_tensor_at_a_time(make, tmp_path):
    """No tensor is read before its turn."""
    from umbel.tools.convert.folder import Folder

    read = []
    original = Folder.array
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "array", lambda f, name: read.append(name) or original(f, name))
        counts = []
        folder = make("llama")
        convert(folder, tmp_path / "out.gguf", progress=lambda *_: counts.append(len(read)))
    assert counts == list(range(len(read)))


def test_no_merges(make, tmp_path):
    """A tokenizer of single bytes has an empty list of them, which the file keeps."""
    folder = make("llama")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["merges"] = []
    make.write(folder, "tokenizer.json", data)
    convert(folder, tmp_path / "out.gguf")
    with gguf.open(tmp_path / "out.gguf") as file:
        assert file.metadata["tokenizer.ggml.merges"] == []
