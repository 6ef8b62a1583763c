"""Which models fit into the memory of a board: the table in docs/backends/cann.md.

`python tests/docs/boards.py` prints it. Everything is computed from the shapes of the models,
for weights and context in float16, as a 310B keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

GIB = 1 << 30
BOARDS = (8, 16, 24)  # GiB of memory
KEPT = 3  # GiB for the system, the driver, Python and intermediate results
CONTEXT = 4096  # tokens
BYTES = 2  # of a value in float16
BANDWIDTH = 44e9  # bytes per second that others have measured on a 310B


@attrs.frozen
class Shape:
    """A decoder of the llama kind."""

    name: str
    layers: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    head: int  # values of one
    vocabulary: int
    tied: bool = True  # one matrix is embedding and output
    biases: bool = False  # of queries, keys and values
    head_norms: bool = False  # of queries and keys
    norms: int = 2  # of a layer

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        inner, keys = self.heads * self.head, self.kv_heads * self.head
        attention = 2 * self.width * (inner + keys)
        attention += (inner + 2 * keys) * self.biases + 2 * self.head * self.head_norms
        layer = attention + 3 * self.width * self.feed_forward + self.norms * self.width
        return self.layers * layer + self.width + self.embedding * (2 - self.tied)

    @property
    def weights(self) -> int:
        """Bytes."""
        return self.parameters * BYTES

    @property
    def cache(self) -> int:
        """Bytes of the whole context's keys and values."""
        return 2 * self.layers * self.kv_heads * self.head * CONTEXT * BYTES

    @property
    def read(self) -> int:
        """Bytes of weights for one token: of an embedding that is nothing else, one row."""
        return self.weights - (0 if self.tied else self.embedding * BYTES)


def qwen2(name: str, *shape: int, tied: bool = True) -> Shape:
    return Shape(name, *shape, tied=tied, biases=True)


def qwen3(name: str, *shape: int, tied: bool = True) -> Shape:
    return Shape(name, *shape, tied=tied, head_norms=True)


MODELS = (
    qwen2("Qwen2.5-0.5B", 24, 896, 4864, 14, 2, 64, 151936),
    qwen3("Qwen3-0.6B", 28, 1024, 3072, 16, 8, 128, 151936),
    Shape("gemma-3-1b", 26, 1152, 6912, 4, 1, 256, 262144, norms=4, head_norms=True),
    Shape("TinyLlama-1.1B", 22, 2048, 5632, 32, 4, 64, 32000, tied=False),
    Shape("Llama-3.2-1B", 16, 2048, 8192, 32, 8, 64, 128256),
    qwen2("Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 128, 151936),
    Shape("SmolLM2-1.7B", 24, 2048, 8192, 32, 32, 64, 49152),
    qwen3("Qwen3-1.7B", 28, 2048, 6144, 16, 8, 128, 151936),
    qwen2("Qwen2.5-3B", 36, 2048, 11008, 16, 2, 128, 151936),
    Shape("Llama-3.2-3B", 28, 3072, 8192, 24, 8, 128, 128256),
    Shape("Phi-3-mini", 32, 3072, 8192, 32, 32, 96, 32064, tied=False),
    qwen3("Qwen3-4B", 36, 2560, 9728, 32, 8, 128, 151936),
    qwen2("Qwen2.5-7B", 28, 3584, 18944, 28, 4, 128, 152064, tied=False),
    qwen3("Qwen3-8B", 36, 4096, 12288, 32, 8, 128, 151936, tied=False),
    qwen2("Qwen2.5-14B", 48, 5120, 13824, 40, 8, 128, 152064, tied=False),
)


def fits(model: Shape, board: int) -> bool:
    return model.weights + model.cache <= (board - KEPT) * GIB


def rows(yes: str = "yes", no: str = "no") -> Iterator[list[str]]:
    """Name, parameters in billions, weights and context in GiB, boards, tokens per second."""
    for model in MODELS:
        sizes = (model.weights / GIB, model.cache / GIB)
        yield [
            model.name,
            f"{model.parameters / 1e9:.2f}",
            *(f"{size:.1f}" for size in sizes),
            *(yes if fits(model, board) else no for board in BOARDS),
            f"{BANDWIDTH / model.read:.1f}",
        ]


def table(page: Path) -> list[list[str]]:
    """What a page has of it."""
    names = {model.name for model in MODELS}
    lines = page.read_text("utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] in names]


if __name__ == "__main__":
    for row in rows():
        print(f"| {' | '.join(row)} |")
