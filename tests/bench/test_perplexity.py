"""The comparison of perplexities: what it writes, and what it lets pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from perplexity import MARKS, TYPES, WAYS, Known, Row, table, write
from umbel.gguf.types import DECODABLE
from umbel.tools.quantize import mixtures

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "core/tests/data/oracles/llama.gguf"
PAGE = ROOT / "docs/performance.md"


def test_all_types_of_weights_are_there() -> None:
    """But f64 and integers, which no weights have."""
    assert {*TYPES} == {name for name in DECODABLE if name[0] != "i" or name[1] == "q"} - {
        "f64"
    }


@pytest.mark.parametrize(("kind", "of_16"), [("bf16", 16), ("q5_0", 14), ("q4_k", 0)])
def test_files_in_one_type(tmp_path: Path, kind: str, of_16: int) -> None:
    """Matrices whose rows it fits; the tables of `umbel quantize` stay as they are."""
    before = {**mixtures.MIXTURES}, {**mixtures.FALLBACK}
    carried, of = write(MODEL, kind, tmp_path / "made.gguf")
    assert (tmp_path / "made.gguf").stat().st_size
    assert (carried, of) == (of_16, 16)
    assert before == (mixtures.MIXTURES, mixtures.FALLBACK)


@pytest.mark.parametrize(
    ("native", "good"), [((100.49, 99.51), True), ((100.51, 100), False), ((100, 99.4), False)]
)
def test_what_passes(native: tuple[float, ...], good: bool) -> None:
    row = Row("q4_0", 3, 4, 100.0, native)
    assert row.good is good
    assert row.line().startswith("| q4_0 | 3 of 4 | 100.0000 | ")


def test_the_table_of_the_page() -> None:
    """It has a row for every type, and the columns that are written."""
    given = Row("q4_0", 3, 4, 100.0, (100.0,) * len(WAYS))
    heading, rule, line = table([given]).splitlines()
    assert heading.count("|") == rule.count("|") == line.count("|")
    page = MARKS.search(PAGE.read_text("utf-8"))
    assert page is not None
    told = page[0].splitlines()[1:-1]
    assert told[:2] == [heading, rule]
    assert [words.split()[1] for words in told[2:]] == [*TYPES]


def test_what_was_found_is_not_looked_for_again(tmp_path: Path, capsys: Any) -> None:
    """In the next run, too; it is told as it is found."""
    file = tmp_path / "found.json"
    assert Known(file).get("a", lambda: [1, 2]) == [1, 2]
    assert capsys.readouterr().err.startswith("a: [1, 2] (0 s)")
    known = Known(file)
    assert known.get("a", lambda: pytest.fail("again")) == [1, 2]
    assert known.get("b", lambda: 0.1) == 0.1
    assert Known(file).found == {"a": [1, 2], "b": 0.1}
