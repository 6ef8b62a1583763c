"""All lines of sentencepiece's test text, by its own test model."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from umbel.text import load_tokenizer

STORED = Path(__file__).parents[2] / "core/tests/text/data/botchan-unigram.json.gz"


def test_botchan(vector_file: Callable[[str], Path]) -> None:
    """The ids of 4,289 lines have the hash of those that sentencepiece 0.2.3 gives."""
    data = json.loads(gzip.decompress(STORED.read_bytes()))
    keys = {
        "tokens": data["tokens"],
        "token_type": data["kinds"],
        "scores": data["scores"],
        "precompiled_charsmap": list(base64.b64decode(data["charsmap"])),
    }
    prefixed = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    tokenizer = load_tokenizer(data["metadata"] | prefixed)
    lines = vector_file("botchan.txt").read_text(encoding="utf-8").split("\n")
    ids = [tokenizer.encode(line, bos=False, eos=False) for line in lines]
    written = json.dumps(ids, separators=(",", ":")).encode()
    assert hashlib.sha256(written).hexdigest() == data["sha256_of_all_lines"]
    assert len(lines) == 4289
