"""`quantise` as a whole: what it writes runs, and what it cannot do leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import umbel
from umbel import gguf, loading
from umbel.errors import ModelFormatError, OptionError, UnsupportedModelError
from umbel.runner import Runner, Settings
from umbel.state import Sequence
from umbel.tools.quantize import encode, quantise

ORACLES = Path(__file__).parents[2] / "data" / "oracles"
Q8_0 = ORACLES / "llama-e256-Q8_0.gguf"


def logits(path, ids):
    """What a model that may have no vocabulary answers."""
    with gguf.open(path) as file:
        devices = loading.targets("host", None, None, strict=False)
        runner = Runner(loading.define(file), devices, Settings(ctx=64))
        try:
            return runner.forward(Sequence(), list(ids), every=True).astype(np.float64)
        finally:
            runner.close()


def divergence(expected, actual):
    """The mean KL divergence of two arrays of logits."""
    p, q = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (expected, actual))
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """The model of width 256 in float32, and its logits."""
    path = tmp_path_factory.mktemp("exact") / "f32.gguf"
    quantise(Q8_0, path, "F32")
    ids = list(range(1, 25))
    return path, ids, logits(path, ids)


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        *(("F16", 2e-6), ("BF16", 1.5e-4), ("Q6_K", 0.015), ("Q5_K_M", 0.04), ("Q5_1", 0.06)),
        *(("Q5_0", 0.06), ("Q4_K_M", 0.13), ("Q4_1", 0.22), ("Q4_0", 0.25), ("IQ4_XS", 0.2)),
        *(("Q3_K_M", 0.5), ("Q2_K", 1.7)),
    ],
)
def test_what_is_written_runs(exact, tmp_path, kind, bound):
    """Its answers are away from those of float32 by what the type costs a random model."""
    source, ids, expected = exact
    quantise(source, tmp_path / "out.gguf", kind)

    assert 0 < divergence(expected, logits(tmp_path / "out.gguf", ids)) < bound


@pytest.mark.parametrize(("kind", "bound"), [("Q8_0", 3e-4), ("Q5_1", 8e-3), ("Q4_0", 0.045)])
def test_a_trained_model(tmp_path, kind, bound):
    """A model that knows something loses less."""
    source = ORACLES / "stories260K.gguf"
    with umbel.load(source, device="host") as model:
        ids = model.tokenize(
            "Once upon a time, there was a little girl named Lily. She loved to"
        )
    quantise(source, tmp_path / "out.gguf", kind)

    out = logits(tmp_path / "out.gguf", ids)
    assert 0 < divergence(logits(source, ids), out) < bound


def test_dequantised_is_the_same_model(exact):
    """F32 of a quantised file computes what the file does."""
    path, ids, expected = exact
    assert np.abs(logits(Q8_0, ids) - expected).max() < 1e-4
    assert gguf.open(path).get("general.file_type", int) == 0


@pytest.mark.parametrize("name", ["mamba", "mamba2", "lfm2", "qwen3moe", "gpt2", "gemma3"])
def test_other_architectures_run(tmp_path, name, oracle):
    """Convolutions, routers and norms stay exact, experts are quantised, and it all runs."""
    ids = oracle(name)["ids"]
    quantise(ORACLES / f"{name}.gguf", tmp_path / "out.gguf", "Q8_0")

    with gguf.open(tmp_path / "out.gguf") as file:
        types = {key: tensor.dtype.name for key, tensor in file.tensors.items()}
    exact = re.compile(r"norm|gate_inp|conv1d|conv\.weight|bias")
    assert {dtype for key, dtype in types.items() if exact.search(key)} == {"f32"}
    assert "q8_0" in types.values()
    assert np.isfinite(logits(tmp_path / "out.gguf", ids)).all()


def test_an_encoder(tmp_path):
    """bert: positions and token types stay exact."""
    quantise(ORACLES / "bert.gguf", tmp_path / "out.gguf", "Q8_0")

    with gguf.open(tmp_path / "out.gguf") as file:
        types = {key: tensor.dtype.name for key, tensor in file.tensors.items()}
    assert (types["position_embd.weight"], types["token_types.weight"]) == ("f32", "f32")
    assert types["token_embd.weight"] == "q8_0"


def test_the_same_type_is_copied(tmp_path, raw):
    """A tensor that has its type already keeps every byte, and that is told."""
    report = quantise(Q8_0, tmp_path / "out.gguf", "Q8_0")

    with gguf.open(Q8_0) as file:
        names = list(file.tensors)
    assert [raw(Q8_0, n) for n in names] == [raw(tmp_path / "out.gguf", n) for n in names]
    assert report.after == (tmp_path / "out.gguf").stat().st_size


def test_what_is_told(tmp_path, caplog):
    """One line for a source that has lost already, one for each kind of fallback."""
    quantise(Q8_0, tmp_path / "a.gguf", "Q8_0")
    quantise(Q8_0, tmp_path / "b.gguf", "Q4_0")
    quantise(ORACLES / "stories260K.gguf", tmp_path / "c.gguf", "Q6_K")

    assert [record.getMessage() for record in caplog.records] == [
        "every tensor keeps the type that it has",
        "IN is already quantised (q8_0), and what that has cost is lost: take the original",
        *(
            f"rows of {row} values are no whole number of q6_k blocks (256): {instead} tensors"
            for row, instead in ((64, "q8_0 in 31 of 47"), (172, "f16 in 5 of 47"))
        ),
    ]


def test_a_split_model(tmp_path, parts, raw):
    """The parts become one file, which no longer says that it is one of several."""
    paths, whole = parts

    quantise(paths[1], tmp_path / "out.gguf", "Q8_0")
    quantise(whole, tmp_path / "same.gguf", "Q8_0")

    with gguf.open(tmp_path / "out.gguf") as file:
        assert [key for key in file.metadata if key.startswith("split.")] == []
        assert list(file.tensors) == ["blk.0.ffn_up.weight", "blk.1.ffn_up.weight"]
        for name in file.tensors:
            assert raw(tmp_path / "out.gguf", name) == raw(tmp_path / "same.gguf", name)


@pytest.fixture
def parts(tmp_path, write_gguf):
    """A model in two parts, and the same in one."""
    random = np.random.default_rng(0)
    tensors = {
        f"blk.{i}.ffn_up.weight": random.standard_normal((4, 64), np.float32) for i in range(2)
    }
    base = {"general.architecture": "llama"}
    paths = []
    for i, name in enumerate(tensors):
        keys = {**base, "split.no": i, "split.count": 2, "split.tensors.count": 2}
        path = tmp_path / f"m-0000{i + 1}-of-00002.gguf"
        paths.append(write_gguf(path, keys, {name: tensors[name]}))
    return paths, write_gguf(tmp_path / "whole.gguf", base, tensors)


def test_memory_does_not_grow_with_the_model(tmp_path, model):
    """A tensor of 64 MB needs a tenth of that."""
    source = model(**{"blk.0.ffn_up.weight": (8192, 2048)})
    quantise(Q8_0, tmp_path / "warm.gguf", "Q4_0")

    tracemalloc.start()
    quantise(source, tmp_path / "out.gguf", "BF16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 24 << 20


def test_progress(tmp_path, exact):
    """It is told how many bytes are written, up to all of them."""
    heard = []
    quantise(exact[0], tmp_path / "o.gguf", "Q8_0", progress=lambda *n: heard.append(n))

    size = (tmp_path / "o.gguf").stat().st_size
    assert {total for _, total in heard} == {size}
    assert sorted(heard) == heard
    assert heard[-1] == (size, size)


@pytest.mark.parametrize("linked", [os.link, os.symlink, shutil.copyfile])
def test_out_that_is_in(tmp_path, model, linked):
    """IN is never replaced, not under another name either; another file only with force."""
    source, target = model(**{"blk.0.ffn_up.weight": (4, 64)}), tmp_path / "out.gguf"
    before = source.read_bytes()
    linked(source, target)
    same = target.samefile(source)

    for out, force in ((source, True), (target, same)):
        with pytest.raises(
            OptionError, match="OUT is IN" if out == source or same else "exists"
        ):
            quantise(source, out, "Q8_0", force=force)
    assert target.read_bytes() == before
    if not same:
        quantise(source, target, "Q8_0", force=True)
        assert target.read_bytes() != before
    assert source.read_bytes() == before


@pytest.mark.parametrize("part", [0, 1])
def test_out_that_is_a_part_of_in(parts, part):
    """Whichever part is given, none may be written to."""
    paths, _ = parts
    with pytest.raises(OptionError, match="OUT is IN"):
        quantise(paths[0], paths[part], "Q8_0", force=True)


@pytest.mark.parametrize(
    ("out", "error"),
    [
        ("folder", "cannot be written"),
        ("/", "cannot be written"),
        ("nowhere/out.gguf", "cannot be written"),
        ("x-00001-of-00003.gguf", "the name of a part"),
    ],
)
def test_bad_out(tmp_path, model, out, error):
    """A folder, a place that is not there, a name that could not be opened again."""
    (tmp_path / "folder").mkdir()
    source = model(**{"blk.0.ffn_up.weight": (4, 64)})

    with pytest.raises(OptionError, match=error):
        quantise(source, tmp_path / out, "Q8_0")

    assert files(tmp_path) == ["folder", "in.gguf"]


def test_a_place_at_home(tmp_path, monkeypatch, model):
    """What no shell has expanded is not a folder of this name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    quantise(model(**{"blk.0.ffn_up.weight": (4, 64)}), "~/out.gguf", "Q8_0")
    assert files(tmp_path) == ["in.gguf", "out.gguf"]


def test_no_room(tmp_path, monkeypatch, model):
    """A disk with too little room is refused before the work; one that cannot tell is tried."""
    source = model(**{"blk.0.ffn_up.weight": (4, 64)})
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)

    with pytest.raises(OptionError, match="not enough room") as caught:
        quantise(source, tmp_path / "out.gguf", "Q8_0")

    assert caught.value.got == "100 bytes"
    assert files(tmp_path) == ["in.gguf"]

    usage = usage._replace(total=0, free=0)
    assert quantise(source, tmp_path / "out.gguf", "Q8_0").types == {"q8_0": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_stopped_in_the_middle(tmp_path, model, monkeypatch, error):
    """Ctrl-C and a full disk leave nothing, and what stood at OUT stays."""
    monkeypatch.setattr(encode, "PIECE", 64)
    source, target = model(**{"blk.0.ffn_up.weight": (64, 64)}), tmp_path / "out.gguf"
    target.write_bytes(b"old")
    heard = []

    def progress(done: int, total: int) -> None:
        heard.append(done)
        if len(heard) == 5:
            raise error

    with pytest.raises((KeyboardInterrupt, OptionError)):
        quantise(source, target, "Q8_0", force=True, progress=progress)

    assert len(heard) == 5
    assert files(tmp_path) == ["in.gguf", "out.gguf"]
    assert target.read_bytes() == b"old"


def test_bad_in(tmp_path, model, write_gguf):
    """No GGUF file, a cut one, one with a type that nothing decodes: all before the work."""
    good = model(**{"blk.0.ffn_up.weight": (64, 64)})
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(good.read_bytes()[:-100])
    empty = tmp_path / "empty.gguf"
    empty.touch()
    keys = {"general.architecture": "llama"}
    unknown = write_gguf(
        tmp_path / "unknown.gguf", keys, {"t.weight": (np.zeros((2, 40), np.uint8), 9)}
    )

    for path, error in (
        *((cut, ModelFormatError), (empty, ModelFormatError)),
        *((tmp_path / "none.gguf", ModelFormatError), (unknown, UnsupportedModelError)),
    ):
        with pytest.raises(error):
            quantise(path, tmp_path / "out.gguf", "Q8_0")
    assert not (tmp_path / "out.gguf").exists()


def test_threads(tmp_path, exact, caplog):
    """A number below 0 is refused, one above the processors is brought down, which is told."""
    with pytest.raises(OptionError, match="threads"):
        quantise(exact[0], tmp_path / "out.gguf", "Q8_0", threads=-1)

    quantise(exact[0], tmp_path / "one.gguf", "Q8_0", threads=1)
    quantise(exact[0], tmp_path / "many.gguf", "Q8_0", threads=10**9)

    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "many.gguf").read_bytes()
    assert "more than the 2 processors" in caplog.text
