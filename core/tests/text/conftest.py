"""Vocabularies for the tokenizer tests: those in data/, and tiny ones made here."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
from umbel.text import Tokenizer, load_tokenizer
from umbel.text.bpe import BYTE_TO_CHAR

Metadata = dict[str, object]
DATA = Path(__file__).parent / "data"


@attrs.frozen
class Vectors:
    """A stored vocabulary and the ids that some texts must have."""

    metadata: Metadata
    tokenizer: Tokenizer
    cases: list[tuple[str, list[int]]]


@cache
def _read(name: str) -> Vectors:
    data = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
    prefix = "tokenizer.ggml."
    # U+F0000 is for private use: the filling tokens stand in no text.
    tokens = [f"\U000f0000{i}" for i in range(data["size"])]
    kinds, scores = [1] * data["size"], [-1e9] * data["size"]
    for place, i in enumerate(data["ids"]):
        tokens[i], kinds[i] = data["tokens"][place], data["kinds"][place]
        scores[i] = data.get("scores", scores)[place]
    metadata = {**data["metadata"], prefix + "tokens": tokens, prefix + "token_type": kinds}
    if "scores" in data:
        metadata[prefix + "scores"] = scores
    if "merges" in data:
        metadata[prefix + "merges"] = data["merges"]
    if "charsmap" in data:
        metadata[prefix + "precompiled_charsmap"] = list(base64.b64decode(data["charsmap"]))
    cases = [(text, ids) for text, ids in data["cases"]]
    return Vectors(metadata, load_tokenizer(metadata), cases)


@pytest.fixture(scope="session")
def vectors() -> Callable[[str], Vectors]:
    """The stored vocabulary of this name, read once; its metadata may be changed in copies."""
    return _read


@pytest.fixture
def tiny() -> Callable[..., Metadata]:
    """Metadata of a tokenizer of this model; each token is a text or (text, kind, score)."""

    def build(model: str, *tokens: Any, **keys: object) -> Metadata:
        rows = [(t, 1, 0.0) if isinstance(t, str) else (*t, 0.0)[:3] for t in tokens]
        metadata: Metadata = {
            "model": model,
            "tokens": [text for text, _, _ in rows],
            "token_type": [kind for _, kind, _ in rows],
            "scores": [score for _, _, score in rows],
            **keys,
        }
        return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}

    return build


@pytest.fixture
def bytes_and(tiny: Callable[..., Metadata]) -> Callable[..., Metadata]:
    """Metadata of a byte-level BPE: the 256 bytes are ids 0 to 255, `tokens` follow."""

    def build(*tokens: Any, merges: list[str] | None = None, **keys: object) -> Metadata:
        chars = [BYTE_TO_CHAR[b] for b in range(256)]
        keys = {"pre": "gpt-2", "merges": merges or [], **keys}
        return tiny("gpt2", *chars, *tokens, **keys)

    return build
