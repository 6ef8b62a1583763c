"""The tokenizer vectors of llama.cpp: 694 cases on 15 whole vocabularies."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import umbel.gguf
from umbel.text import load_tokenizer

SEPARATOR = b"\n__ggml_vocab_test__\n"
CASES = {
    "bert-bge": 46,
    "command-r": 46,
    "deepseek-coder": 46,
    "deepseek-llm": 46,
    "falcon": 46,
    "gemma-4": 46,
    "gpt-2": 46,
    "llama-bpe": 46,
    "llama-spm": 46,
    "mpt": 46,
    "phi-3": 46,
    "qwen2": 46,
    "qwen35": 50,
    "refact": 46,
    "starcoder": 46,
}


def read_cases(path: Path) -> list[tuple[bytes, list[int]]]:
    lines = path.with_suffix(".gguf.out").read_text().splitlines()
    texts = path.with_suffix(".gguf.inp").read_bytes().split(SEPARATOR)[: len(lines)]
    ids = [[int(word) for word in line.split()] for line in lines]
    return list(zip(texts, ids, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp(vector_file: Callable[[str], Path], name: str) -> None:
    """Every text has the ids of llama.cpp, without BOS and EOS, control tokens read as text."""
    path = vector_file(f"ggml-vocab-{name}.gguf")
    with umbel.gguf.open(path) as file:
        tokenizer = load_tokenizer(file.metadata, where=str(path))
    cases = read_cases(path)
    found = [(text, tokenizer.encode(text, bos=False, eos=False)) for text, _ in cases]
    assert cases == found
    assert len(cases) == CASES[name]


def test_number_of_cases() -> None:
    """All of them are in the table."""
    assert (len(CASES), sum(CASES.values())) == (15, 694)


@pytest.mark.parametrize(("name", "seconds"), [("gpt-2", 1), ("gemma-4", 4)])
def test_load_time(vector_file: Callable[[str], Path], name: str, seconds: float) -> None:
    """A vocabulary loads in a fraction of a second; the limits leave room for slow machines."""
    with umbel.gguf.open(vector_file(f"ggml-vocab-{name}.gguf")) as file:
        start = time.perf_counter()
        load_tokenizer(file.metadata).encode("Hello")
        assert time.perf_counter() - start < seconds
