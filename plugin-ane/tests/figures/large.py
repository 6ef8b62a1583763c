"""Model files of real shapes with random weights, for the report of figures."""

from __future__ import annotations

from pathlib import Path

import attrs
import gguf
import numpy as np

ORACLES = Path(__file__).parents[3] / "core" / "tests" / "data" / "oracles"


@attrs.frozen
class Size:
    layers: int
    wide: int
    inner: int
    heads: int
    kv: int
    words: int
    context: int


GPT2_124M = Size(12, 768, 3072, 12, 12, 50257, 1024)
DEEP_LLAMA = Size(32, 256, 512, 8, 4, 512, 4096)


@attrs.define
class _File:
    made: gguf.GGUFWriter
    rng: np.random.Generator

    def matrix(self, name: str, out: int, inner: int) -> None:
        values = self.rng.standard_normal((out, inner), np.float32)
        self.made.add_tensor(name, (values * np.float32(0.7 / inner**0.5)).astype(np.float16))

    def vector(self, name: str, n: int, around: float = 0.0) -> None:
        values = around + 0.1 * self.rng.standard_normal(n)
        self.made.add_tensor(name, values.astype(np.float32))

    def affine(self, stem: str, n: int, around: float) -> None:
        self.vector(f"{stem}.weight", n, around)
        self.vector(f"{stem}.bias", n)

    def biased(self, stem: str, out: int, inner: int) -> None:
        self.matrix(f"{stem}.weight", out, inner)
        self.vector(f"{stem}.bias", out)

    def close(self) -> None:
        self.made.write_header_to_file()
        self.made.write_kv_data_to_file()
        self.made.write_tensors_to_file()
        self.made.close()


def _started(path: Path, arch: str, size: Size) -> _File:
    """Shape and tokens: those of the oracle, then made-up ones."""
    read = gguf.GGUFReader(ORACLES / f"{arch}.gguf")
    made = gguf.GGUFWriter(path, arch)
    made.add_block_count(size.layers)
    made.add_context_length(size.context)
    made.add_embedding_length(size.wide)
    made.add_feed_forward_length(size.inner)
    made.add_head_count(size.heads)
    made.add_head_count_kv(size.kv)
    for key, field in read.fields.items():
        if not key.startswith("tokenizer."):
            continue
        value, kind = field.contents(), field.types[0]
        more = size.words - len(value) if isinstance(value, list) else 0
        if key.endswith(".tokens"):
            value = value + [f"<made {i}>" for i in range(more)]
        elif key.endswith((".token_type", ".scores")):
            value = value + [value[-1]] * more
        part = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        made.add_key_value(key, value, kind, part)
    return _File(made, np.random.default_rng(3))


def write_gpt2(path: Path, size: Size = GPT2_124M) -> None:
    file, wide = _started(path, "gpt2", size), size.wide
    file.made.add_layer_norm_eps(1e-5)
    file.matrix("token_embd.weight", size.words, wide)
    file.matrix("position_embd.weight", size.context, wide)
    file.affine("output_norm", wide, 1)
    for i in range(size.layers):
        file.affine(f"blk.{i}.attn_norm", wide, 1)
        file.biased(f"blk.{i}.attn_qkv", 3 * wide, wide)
        file.biased(f"blk.{i}.attn_output", wide, wide)
        file.affine(f"blk.{i}.ffn_norm", wide, 1)
        file.biased(f"blk.{i}.ffn_up", size.inner, wide)
        file.biased(f"blk.{i}.ffn_down", wide, size.inner)
    file.close()


def write_llama(path: Path, size: Size = DEEP_LLAMA) -> None:
    file, wide = _started(path, "llama", size), size.wide
    narrow = wide * size.kv // size.heads
    file.made.add_layer_norm_rms_eps(1e-6)
    file.made.add_rope_dimension_count(wide // size.heads)
    file.matrix("token_embd.weight", size.words, wide)
    file.matrix("output.weight", size.words, wide)
    file.vector("output_norm.weight", wide, 1)
    for i in range(size.layers):
        file.vector(f"blk.{i}.attn_norm.weight", wide, 1)
        for name, out in (("q", wide), ("k", narrow), ("v", narrow), ("output", wide)):
            file.matrix(f"blk.{i}.attn_{name}.weight", out, wide)
        file.vector(f"blk.{i}.ffn_norm.weight", wide, 1)
        file.matrix(f"blk.{i}.ffn_gate.weight", size.inner, wide)
        file.matrix(f"blk.{i}.ffn_up.weight", size.inner, wide)
        file.matrix(f"blk.{i}.ffn_down.weight", wide, size.inner)
    file.close()
