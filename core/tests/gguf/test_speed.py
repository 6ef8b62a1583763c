"""How long opening takes, on files built here that are as large as the largest vocabularies.

Processor time is measured, the best of five: other programs on the machine do not count.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

MEASURE = """
import sys, time
import umbel.gguf

times = []
for _ in range(5):
    start = time.process_time()
    file = umbel.gguf.open(sys.argv[1])
    times.append(time.process_time() - start)
assert "gguf" not in sys.modules
start = time.process_time()
tokens = file.get("tokenizer.ggml.tokens", list)
decoding = time.process_time() - start
assert "token 77" == tokens[77]
assert "gguf" not in sys.modules
print(min(times), decoding, len(tokens))
"""


def vocabulary(w, tokens: int, merges: int, tensors: int) -> bytes:
    pairs = [
        w.pair("tokenizer.ggml.tokens", "[str]", [f"token {i}" for i in range(tokens)]),
        w.pair("tokenizer.ggml.scores", "[f32]", [0.5] * tokens),
        w.pair("tokenizer.ggml.token_type", "[i32]", [1] * tokens),
        w.pair("tokenizer.ggml.merges", "[str]", [f"to ken{i}" for i in range(merges)]),
    ]
    infos = [w.tensor(f"blk.{i}.attn_q.weight", [576, 576], 0, 0) for i in range(tensors)]
    return w.file(pairs, infos, bytes(576 * 576 * 4 if tensors else 0))


@pytest.mark.clock
@pytest.mark.parametrize(
    ("tokens", "merges", "tensors", "limit"),
    [(262_144, 514_906, 0, 0.4), (49_152, 48_900, 272, 0.1)],
    ids=["262k vocabulary", "SmolLM2's size"],
)
def test_open(tokens, merges, tensors, limit, w, save):
    """Opening is quick, decoding the tokens too, and the `gguf` package stays unimported."""
    path = save(vocabulary(w, tokens, merges, tensors))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True
    )
    opening, decoding, count = map(float, done.stdout.split())
    assert tokens == count
    assert opening < limit
    assert decoding < 2 * limit
