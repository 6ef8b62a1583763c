"""The models that speed is measured on: random weights of a usual shape, and SmolLM2.

    python synthetic.py FOLDER [NAME ...]

NAME is `SHAPE-TYPE`, as 0.5b-q4_k_m; without one all are made. The weights are N(0, 0.02) in
float16 from a fixed seed, the vocabulary is the demo model's, and every other type is made by
`umbel quantize`. The SmolLM2 files come from the demo model: what it lost in Q4_1 stays lost,
which no speed depends on. A file that is there and whole is not made again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import attrs
import numpy as np
from umbel import gguf
from umbel.errors import ModelFormatError
from umbel.extras.locate import find_demo
from umbel.gguf.types import F16, F32
from umbel.state.store import write_atomically
from umbel.tools.gguf_file import Tensor, check_room, encode, header, padding, size
from umbel.tools.quantize import quantise

ALIGNMENT = 32
PIECE = 1 << 22  # values that are made at once
SEED = 20261130
DEVIATION = 0.02


@attrs.frozen
class Shape:
    """A llama with its embedding as output matrix."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int  # of the feed-forward part
    ctx: int = 8192

    @property
    def name(self) -> str:
        numbers = self.layers, self.width, self.heads, self.kv_heads, self.inner
        return f"synthetic {'/'.join(map(str, numbers))} seed {SEED}"

    def values(self) -> dict[str, object]:
        """The metadata, but for the vocabulary."""
        return {
            "general.architecture": "llama",
            "general.name": self.name,
            "general.file_type": 1,
            "llama.block_count": self.layers,
            "llama.context_length": self.ctx,
            "llama.embedding_length": self.width,
            "llama.feed_forward_length": self.inner,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.dimension_count": self.width // self.heads,
            "llama.rope.freq_base": 10000.0,
        }

    def tensors(self, n_vocab: int) -> Iterator[Tensor]:
        """All tensors; those of one axis are norms."""
        kv = self.width // self.heads * self.kv_heads
        matrices = {
            "attn_q": (self.width, self.width),
            "attn_k": (kv, self.width),
            "attn_v": (kv, self.width),
            "attn_output": (self.width, self.width),
            "ffn_gate": (self.inner, self.width),
            "ffn_up": (self.inner, self.width),
            "ffn_down": (self.width, self.inner),
        }
        yield "token_embd.weight", (n_vocab, self.width), F16
        yield "output_norm.weight", (self.width,), F32
        for layer in range(self.layers):
            for norm in ("attn_norm", "ffn_norm"):
                yield f"blk.{layer}.{norm}.weight", (self.width,), F32
            for name, shape in matrices.items():
                yield f"blk.{layer}.{name}.weight", shape, F16


SHAPES = {"0.5b": Shape(32, 1024, 16, 4, 4096), "1.5b": Shape(32, 2048, 32, 8, 5632)}
TYPES = ("q4_0", "q4_1", "q8_0", "q4_k_m")
NAMES = (
    *("smollm2-q4_1", "smollm2-q4_0", "smollm2-q8_0", "smollm2-f16"),
    *(f"{shape}-{kind}" for shape in SHAPES for kind in (*TYPES, "f16")),
)
# Published files in these types have their output matrix in q6_k, where its rows allow it.
OUTPUT = {"q4_0": "q6_k", "q4_1": "q6_k"}


def write(shape: Shape, vocabulary: Path, target: Path) -> None:
    """The model in float16; in memory is one piece of a tensor at a time."""
    with gguf.open(vocabulary) as file:
        keys = [key for key in file.metadata if key.startswith("tokenizer.")]
        values = {key: encode(value) for key, value in shape.values().items()}
        values |= {key: file.raw_value(key) for key in keys}
        n_vocab = len(file.get("tokenizer.ggml.tokens", list))
    tensors = list(shape.tensors(n_vocab))
    head = header(values, tensors, ALIGNMENT)
    check_room(target, len(head) + sum(size(s, kind) + ALIGNMENT for _, s, kind in tensors))

    def put(out: IO[bytes]) -> None:
        out.write(head)
        random = np.random.default_rng(SEED)
        for _, axes, _ in tensors:
            for piece in _pieces(random, axes):
                out.write(piece)
            out.write(padding(out.tell() - len(head), ALIGNMENT))

    write_atomically(target, put)


def _pieces(random: np.random.Generator, axes: tuple[int, ...]) -> Iterator[bytes]:
    if len(axes) == 1:
        yield np.ones(axes, "<f4").tobytes()
        return
    left = int(np.prod(axes))
    while left:
        n = min(left, PIECE)
        values = random.standard_normal(n, np.float32) * np.float32(DEVIATION)
        yield values.astype("<f2").tobytes()
        left -= n


def make(name: str, folder: Path) -> Path:
    """The file of this name, which is made unless it is there."""
    shape, _, kind = name.partition("-")
    if name == "smollm2-q4_1":  # as it was shipped
        return find_demo()
    path = folder / f"{name}.gguf"
    if whole(path, SHAPES[shape].name if shape in SHAPES else None):
        return path
    folder.mkdir(parents=True, exist_ok=True)
    print(f"making {path}", file=sys.stderr, flush=True)
    if kind != "f16":
        source = make(f"{shape}-f16", folder)
        output = OUTPUT.get(kind) if shape in SHAPES else None
        quantise(source, path, kind.upper(), output_type=output, force=True)
    elif shape in SHAPES:
        write(SHAPES[shape], find_demo(), path)
    else:
        quantise(find_demo(), path, "F16", force=True)
    return path


def whole(path: Path, name: str | None) -> bool:
    """Whether this file is there, of that model, with its last byte and none more."""
    if not path.is_file():
        return False
    try:
        with gguf.open(path) as file:
            end = max(t.offset + t.nbytes for t in file.tensors.values())
            ours = name is None or file.metadata.get("general.name") == name
            return ours and 0 <= file.size - end < file.alignment
    except ModelFormatError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the models of the benchmark.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    args = parser.parse_args()
    if unknown := sorted({*args.names} - {*NAMES}):
        parser.error(f"there is no model {unknown[0]}; there are {', '.join(NAMES)}")
    for name in args.names:
        print(make(name, args.folder))


if __name__ == "__main__":
    main()
