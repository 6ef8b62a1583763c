"""Encoded values against the packages that others use, and the order of pieces."""

from __future__ import annotations

import sys
import threading
import time

import gguf
import libgguf
import numpy as np
import pytest
from umbel.errors import ModelFormatError, OptionError, UnsupportedModelError
from umbel.gguf.types import BY_NAME
from umbel.host.order import in_order
from umbel.tools.quantize import encode, quantise
from umbel.tools.quantize.mixtures import MIXTURES

TYPES = sorted({mixture.most for mixture in MIXTURES.values()})


def package(values, name):
    """What `gguf` writes, and where it cannot `libgguf`."""
    number = BY_NAME[name].number
    if name in encode.PLAIN:
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType(number))
    return libgguf.quantize_rows(values, number)


@pytest.mark.parametrize("name", TYPES)
def test_bytes(name, model, raw, tmp_path, monkeypatch):
    """Every type, in pieces and on two threads: the bytes of the package for the whole."""
    monkeypatch.setattr(encode, "PIECE", 1 << 12)
    values = np.random.default_rng(1).standard_normal((3, 11, 512), np.float32)
    source = model(**{"blk.0.ffn_up.weight": values, "output.weight": values[0]})
    mixture = next(key for key, value in MIXTURES.items() if value.most == name)

    quantise(source, tmp_path / "out.gguf", mixture, output_type=name)

    expected = [package(v, name).tobytes() for v in (values, values[0])]
    names = ("blk.0.ffn_up.weight", "output.weight")
    assert expected == [raw(tmp_path / "out.gguf", n) for n in names]


@pytest.mark.parametrize("name", [n for n in encode.PLAIN if n not in ("f32", "f16", "bf16")])
def test_both_packages_agree(name):
    """Where both can write a type, the file is the same, whichever does it."""
    values = np.random.default_rng(2).standard_normal((8, 256), np.float32)
    assert (
        package(values, name).tobytes()
        == libgguf.quantize_rows(values, BY_NAME[name].number).tobytes()
    )


def test_no_package(monkeypatch):
    """Without libgguf one error names the line that brings it; plain types need none."""
    monkeypatch.setitem(sys.modules, "libgguf", None)

    encode.encoder([BY_NAME["q8_0"], BY_NAME["f16"]])
    with pytest.raises(OptionError, match="to write q4_k, q6_k needs the extra") as caught:
        encode.encoder([BY_NAME["q6_k"], BY_NAME["q4_k"]])

    assert "pip install 'umbel-core[quantize]'" in caught.value.do


def test_pieces_keep_their_order():
    """Slow pieces hold up those behind them, and no more than a few are under way."""
    started: list[int] = []

    def job(i):
        started.append(i)
        time.sleep(0.02 if i % 3 == 0 else 0)
        return i

    done = []
    for i in in_order(((lambda i=i: job(i)) for i in range(20)), 2, 4):
        done.append(i)
        assert len(started) <= len(done) + 5
    assert done == list(range(20))


def test_pieces_end_early():
    """When nobody wants the rest, it is not made, and the threads end."""
    made: list[int] = []
    before = threading.active_count()
    pieces = in_order(((lambda i=i: made.append(i)) for i in range(1000)), 2, 4)

    next(pieces)
    pieces.close()

    assert len(made) <= 6
    assert before == threading.active_count()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["Q8_0", "F16", "Q4_K_M"])
def test_values_that_are_not_finite(model, tmp_path, bad, kind):
    """A bad value is named by its block in the whole tensor, and no file is left (Q04)."""
    values = np.ones((2000, 256), np.float32)
    values[1500, 7] = bad

    with pytest.raises(ModelFormatError, match=r"'blk\.0\.ffn_up\.weight'") as caught:
        quantise(model(**{"blk.0.ffn_up.weight": values}), tmp_path / "out.gguf", kind)

    assert caught.value.got == f"block {1500 * 256 + 7} (values from {1500 * 256 + 7} on, f32)"
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


@pytest.mark.parametrize(("kind", "largest"), [("F16", 7e4), ("Q8_0", 1e7), ("Q4_K_M", 1e9)])
def test_values_that_are_too_large(model, tmp_path, kind, largest):
    """What would become infinite is refused; a type that can hold it takes it."""
    values = np.ones((4, 256), np.float32)
    values[2, 3] = -largest
    source = model(**{"blk.0.ffn_up.weight": values})

    with pytest.raises(UnsupportedModelError, match="too large for"):
        quantise(source, tmp_path / "out.gguf", kind)

    assert quantise(source, tmp_path / "out.gguf", "BF16").types == {"bf16": 1}


def test_large_values_that_fit(model, tmp_path):
    """A scale of 16 bits reaches further than one value of 16 bits."""
    values = np.full((4, 256), 1e5, np.float32)
    assert quantise(
        model(**{"blk.0.ffn_up.weight": values}), tmp_path / "out.gguf", "Q8_0"
    ).types == {"q8_0": 1}
