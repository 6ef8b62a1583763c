"""What is measured: the works of the benchmark, and what a file of weights costs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import attrs
from umbel import gguf
from umbel.gguf.types import DType

REPACKED = ("q4_0", "q4_k", "iq4_nl", "q2_k")  # the types that llama.cpp's repacking takes


@attrs.frozen
class Facts:
    """What a file costs."""

    path: Path
    size: int
    read: int  # bytes of weights for a token
    weights: int  # in products of a token of a prompt
    kv: int  # bytes of keys and values for a token, in float16
    floats: bool  # most weights are not quantised
    repacked: list[str]  # tensors that llama.cpp can repack

    @classmethod
    def of(cls, path: Path) -> Facts:
        with gguf.open(path) as file:
            name = file.get("general.architecture", str)
            layers = file.get(f"{name}.block_count", int)
            heads = file.get(f"{name}.attention.head_count", int)
            kv_heads = file.get(f"{name}.attention.head_count_kv", int)
            head = file.get(f"{name}.embedding_length", int) // heads
            tensors = list(file.tensors.values())
            size = file.size
        layered = [t for t in tensors if t.name not in ("token_embd.weight", "output.weight")]
        matrices = [t for t in layered if len(t.shape) > 1]
        # the embedding is the output matrix where there is no other
        output = max(tensors, key=lambda t: (t.name == "output.weight", "token_embd" in t.name))
        kinds: Counter[DType] = Counter(t.dtype for t in matrices)
        return cls(
            path,
            size,
            sum(t.nbytes for t in [*layered, output]),
            sum(t.shape[0] * t.shape[1] for t in matrices),
            2 * 2 * layers * head * kv_heads,
            not kinds.most_common(1)[0][0].quantised,
            [t.name for t in matrices if t.dtype.name in REPACKED],
        )


@attrs.frozen
class Work:
    """What is measured: `call` of a worker with `args`, which handles so many tokens."""

    name: str
    call: str
    args: tuple[int, ...]
    tokens: int  # 0: what is told is the seconds
    goal: str = ""  # times as fast as llama.cpp, at least

    def need(self, facts: Facts) -> float:
        """Of a token: 10^9 operations of a prompt, or 10^9 bytes read in decoding."""
        if self.call == "prefill":
            return 2 * facts.weights / 1e9
        if self.call == "decode":
            _, depth, sequences = self.args
            return (facts.read / sequences + facts.kv * depth) / 1e9
        return 0.0


@attrs.frozen
class Row:
    """Works on one file."""

    name: str
    model: str
    works: tuple[Work, ...]
    ctx: int = 768
    parallel: int = 1
    busy: bool = False  # beside a loop that never ends


def prefill(n: int, goal: str = "") -> Work:
    return Work(f"pp{n}", "prefill", (n,), n, goal)


def decode(n: int, goal: str = "", depth: int = 0, sequences: int = 1) -> Work:
    name = f"tg{n}" + (f" at {depth}" if depth else "")
    name += f" x {sequences} sequences" if sequences > 1 else ""
    return Work(name, "decode", (n, depth, sequences), n * sequences, goal)


ROWS = (
    Row("smollm2-q4_1", "smollm2-q4_1", (prefill(512, "3.6x"), decode(128, "1.5x"))),
    Row("smollm2-q4_0", "smollm2-q4_0", (prefill(512), decode(128))),
    Row("smollm2-q8_0", "smollm2-q8_0", (prefill(512), decode(128))),
    Row("smollm2-f16", "smollm2-f16", (prefill(512, "2.1x"), decode(128, "1x"))),
    Row("0.5b-q4_0", "0.5b-q4_0", (prefill(512, "1.8x"), decode(64, "1.2x"))),
    Row("0.5b-q4_k_m", "0.5b-q4_k_m", (prefill(512, "1.15x"), decode(64, "1.15x"))),
    Row("0.5b-q8_0", "0.5b-q8_0", (prefill(512, "2.2x"), decode(64, "1.35x"))),
    Row("0.5b-q4_1", "0.5b-q4_1", (prefill(512, "5x"), decode(64, "1.8x"))),
    Row("1.5b-q4_0", "1.5b-q4_0", (prefill(256, "1.6x"), decode(32, "1.35x"))),
    Row("1.5b-q8_0", "1.5b-q8_0", (prefill(256, "2.2x"), decode(32, "1.45x"))),
    Row("depth", "smollm2-q4_0", (decode(32, "2x", depth=4096),), ctx=4352),
    Row("sequences", "smollm2-q4_0", (decode(64, "1.3x", 128, 8),), ctx=256, parallel=8),
    Row("busy", "smollm2-q4_0", (decode(128, "2.4x"),), busy=True),
)
# Of another kind: a command, and what is no speed.
FIRST = Row("first-token", "smollm2-q4_1", (Work("command", "first", (), 0, "1x"),))
PYTHON = Row("python-share", "smollm2-q4_0", (decode(64),))
MEMORY = Row("memory", "1.5b-q4_0", (decode(16, depth=224),), ctx=256)
NAMES = tuple(row.name for row in (*ROWS, FIRST, PYTHON, MEMORY))
