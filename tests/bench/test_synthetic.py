"""Synthetic models: they load, are what their name says, and are made once."""

from collections import Counter
from pathlib import Path

import attrs
import numpy as np
import pytest
import synthetic
import umbel
from umbel import gguf

STORIES = Path(__file__).parents[2] / "core/tests/data/oracles/stories260K.gguf"
TINY = synthetic.Shape(layers=2, width=256, heads=4, kv_heads=2, inner=512, ctx=64)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a tiny shape is made, with the vocabulary of another model."""
    monkeypatch.setitem(synthetic.SHAPES, "tiny", TINY)
    monkeypatch.setattr(synthetic, "find_demo", lambda: STORIES)
    monkeypatch.setattr(synthetic, "PIECE", 1000)  # more than one piece, and a rest
    return tmp_path / "models"


def test_it_loads_and_writes(folder):
    with umbel.load(synthetic.make("tiny-f16", folder), "host") as model:
        answer = model.generate("Once", max_tokens=3, temperature=0)
        answer.read()

    assert len(answer.tokens) == 3


def test_the_weights(folder):
    """Normally distributed, the same each time, and the norms are one."""
    with gguf.open(synthetic.make("tiny-f16", folder)) as file:
        down = np.array(file.array("blk.1.ffn_down.weight"), np.float32)
        norm = file.array("blk.1.ffn_norm.weight")
        assert file.tensors["blk.1.attn_k.weight"].shape == (128, 256)
        assert file.get("llama.attention.head_count_kv", int) == 2
    with gguf.open(synthetic.make("tiny-f16", folder.with_name("again"))) as file:
        again = np.array(file.array("blk.1.ffn_down.weight"), np.float32)

    assert down.shape == (256, 512)
    assert down.std() == pytest.approx(0.02, rel=0.02)
    assert abs(down.mean()) < 0.001
    assert (norm == 1).all()
    assert (down == again).all()


@pytest.mark.parametrize(
    ("kind", "most", "output"),
    [
        ("q4_0", "q4_0", "q6_k"),
        ("q4_1", "q4_1", "q6_k"),
        ("q8_0", "q8_0", "q8_0"),
        ("q4_k_m", "q4_k", "q6_k"),
    ],
)
def test_types(folder, kind, most, output):
    with gguf.open(synthetic.make(f"tiny-{kind}", folder)) as file:
        types = Counter(t.dtype.name for t in file.tensors.values() if len(t.shape) > 1)
        assert file.tensors["token_embd.weight"].dtype.name == output

    assert types.most_common(1)[0][0] == most


def test_made_once(folder):
    """A file that is cut short, or of another shape, is made again."""
    path = synthetic.make("tiny-f16", folder)
    first = path.stat()
    assert synthetic.make("tiny-f16", folder).stat().st_mtime_ns == first.st_mtime_ns

    with path.open("rb+") as file:
        file.truncate(first.st_size - 64)
    assert not synthetic.whole(path, TINY.name)
    assert synthetic.make("tiny-f16", folder).stat().st_size == first.st_size

    assert not synthetic.whole(path, attrs.evolve(TINY, layers=3).name)
    assert not synthetic.whole(path.with_name("none.gguf"), None)
    path.write_bytes(path.read_bytes() + bytes(64))
    assert not synthetic.whole(path, TINY.name)


def test_smollm2(folder):
    """What was shipped is used as it is; the others come from it by way of float16."""
    assert synthetic.make("smollm2-q4_1", folder) == STORIES
    with gguf.open(synthetic.make("smollm2-q8_0", folder)) as file:
        assert "q8_0" in {t.dtype.name for t in file.tensors.values()}
    assert (folder / "smollm2-f16.gguf").is_file()
