"""The comparison of perplexities: what it writes, and what it lets pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from perplexity import TYPES, WAYS, Row, heading, written
from umbel.gguf.types import DECODABLE
from umbel.tools.quantize import mixtures

MODEL = Path(__file__).parents[2] / "core/tests/data/oracles/llama.gguf"


def test_all_types_of_weights_are_there() -> None:
    """But f64 and integers, which no weights have."""
    assert {*TYPES} == {name for name in DECODABLE if name[0] != "i" or name[1] == "q"} - {
        "f64"
    }


@pytest.mark.parametrize(("kind", "of_16"), [("bf16", 16), ("q5_0", 14), ("q4_k", 0)])
def test_files_in_one_type(tmp_path: Path, kind: str, of_16: int) -> None:
    """Matrices whose rows it fits; the tables of `umbel quantize` stay as they are."""
    before = {**mixtures.MIXTURES}, {**mixtures.FALLBACK}
    path, carried, of = written(MODEL, kind, tmp_path)
    assert path.stat().st_size
    assert (carried, of) == (of_16, 16)
    assert before == (mixtures.MIXTURES, mixtures.FALLBACK)


@pytest.mark.parametrize(
    ("native", "good"), [((100.49, 99.51), True), ((100.51, 100), False), ((100, 99.4), False)]
)
def test_what_passes(native: tuple[float, ...], good: bool) -> None:
    row = Row("q4_0", 3, 4, 100.0, native)
    assert row.good is good
    assert row.line().startswith("| q4_0 | 3 of 4 | 100.0000 | ")


def test_the_table() -> None:
    row = Row("q4_0", 3, 4, 100.0, (100.0,) * len(WAYS))
    columns = {line.count("|") for line in [*heading().splitlines(), row.line()]}
    assert len(columns) == 1
