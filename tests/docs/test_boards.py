"""The page about Ascend NPUs and its Chinese twin: computed, complete, and the same."""

from __future__ import annotations

import ast
import re
import sys
from itertools import chain
from pathlib import Path

import pytest
from umbel import gguf

sys.path.insert(0, str(Path(__file__).parent))  # the script beside the tests

import boards

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugin-cann/src/umbel_cann"
PAGE, TWIN = (ROOT / "docs/backends" / name for name in ("cann.md", "cann.zh.md"))
BOTH = pytest.mark.parametrize("page", [PAGE, TWIN], ids=["en", "zh"])
STORY = ROOT / "core/tests/data/oracles/stories260K.gguf"
# billions of weights, as the models' makers tell them
TOLD = {
    "Qwen2.5-0.5B": 0.49,
    "Qwen3-0.6B": 0.6,
    "gemma-3-1b": 1.0,
    "TinyLlama-1.1B": 1.1,
    "Llama-3.2-1B": 1.24,
    "Qwen2.5-1.5B": 1.54,
    "SmolLM2-1.7B": 1.71,
    "Qwen3-1.7B": 1.72,
    "Qwen2.5-3B": 3.09,
    "Llama-3.2-3B": 3.21,
    "Phi-3-mini": 3.82,
    "Qwen3-4B": 4.02,
    "Qwen2.5-7B": 7.62,
    "Qwen3-8B": 8.19,
    "Qwen2.5-14B": 14.77,
}


# the table of models


def test_the_parameters_of_a_model():
    """Of a file all of whose weights can be counted, and of models whose numbers are known."""
    story = boards.Shape("story", 5, 64, 172, 8, 4, 8, 512)
    with gguf.open(STORY) as file:
        counted = sum(tensor.size for tensor in map(_Tensor, file.tensors.values()))
    assert story.parameters == counted
    assert {m.name: round(m.parameters / 1e9, 2) for m in boards.MODELS} == TOLD


class _Tensor:
    """How many values it has."""

    def __init__(self, info):
        self.size = 1
        for n in info.shape:
            self.size *= n


def test_what_fits():
    """By bytes: weights and context, less than the board has beside what is kept."""
    small, large = boards.MODELS[0], boards.MODELS[-1]
    assert small.cache == 2 * 24 * 2 * 64 * 4096 * 2
    assert boards.fits(small, 8)
    assert not boards.fits(large, 24)
    edge = next(m for m in boards.MODELS if m.name == "Qwen2.5-7B")
    assert [boards.fits(edge, n) for n in boards.BOARDS] == [False, False, True]


@BOTH
def test_the_table_of_a_page(page):
    words = ("yes", "no") if page == PAGE else ("可以", "不行")
    assert boards.table(page) == list(boards.rows(*words))
    text = page.read_text("utf-8")
    for number in (boards.KEPT, boards.CONTEXT, f"{boards.BANDWIDTH / 1e9:.0f} GB/s"):
        assert str(number) in text


# two pages that say the same


def blocks(page: Path) -> list[str]:
    """Everything between fences, with the note before it."""
    text = page.read_text("utf-8")
    return re.findall(r"^(?:<!--.*?-->\n)?```.*?^```$", text, re.M | re.S)


def prose(page: Path) -> str:
    return re.sub(
        r"^(?:<!--.*?-->\n)?```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S
    )


def codes(text: str) -> list[str]:
    return sorted(re.findall(r"`([^`]+)`", text))


def numbers(text: str) -> list[str]:
    return sorted(re.findall(r"\d+(?:\.\d+)*", text))


def tables(page: Path) -> list[list[str]]:
    """Each row of each table, without the lines between head and body."""
    found = re.findall(r"(?:^\|.*\n)+", prose(page), re.M)
    return [[row for row in table.splitlines() if "---" not in row] for table in found]


def sections(page: Path) -> list[tuple[str, str]]:
    """The mark of each heading, and all that stands below it."""
    parts = re.split(r"^(#+) ", prose(page), flags=re.M)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def test_the_twins_have_the_same_commands():
    assert blocks(PAGE) == blocks(TWIN)
    assert len(blocks(PAGE)) > 8


def test_the_twins_have_the_same_headings():
    """As many, of the same levels, in the same order; numbers in them agree."""
    one, other = (
        [(mark, numbers(text.partition("\n")[0])) for mark, text in sections(page)]
        for page in (PAGE, TWIN)
    )
    assert one == other


def test_the_twins_have_the_same_tables():
    """Row by row the same numbers, and the same words between backticks."""
    one, other = tables(PAGE), tables(TWIN)
    assert [len(table) for table in one] == [len(table) for table in other]
    rows = (chain.from_iterable(page) for page in (one, other))
    for mine, theirs in zip(*rows, strict=True):
        assert (numbers(mine), codes(mine)) == (numbers(theirs), codes(theirs))
        assert mine.count("|") == theirs.count("|")


def test_the_twins_name_the_same_things():
    """Section by section the same commands, files and options, links and list entries."""
    for (_, one), (_, other) in zip(sections(PAGE), sections(TWIN), strict=True):
        assert codes(one) == codes(other), other
        assert one.count("\n* ") == other.count("\n* ")
        links = [re.findall(r"\]\((?:\.\./|https)[^)]*\)", text) for text in (one, other)]
        assert links[0] == links[1]


# what the pages say is what the plugin says


def constant(module: str, name: str) -> object:
    """What a module of the plugin keeps under a name, without importing it."""
    for node in ast.parse((PLUGIN / module).read_text("utf-8")).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=found), value=value) if found == name:
                return value
    raise AssertionError(name)


@BOTH
def test_all_codes_that_have_advice_are_told_once(page):
    advice = constant("acl/codes.py", "ADVICE")
    assert isinstance(advice, ast.Dict)
    known = [key.value for key in advice.keys if isinstance(key, ast.Constant)]
    cells = re.findall(r"^\| ([\d, ]+) \|", page.read_text("utf-8"), re.M)
    told = [int(code) for cell in cells for code in cell.split(", ")]
    assert sorted(told) == sorted(known)


def source() -> str:
    """The plugin's code, each text that is written in pieces in one."""
    code = "\n".join(path.read_text("utf-8") for path in sorted(PLUGIN.rglob("*.py")))
    return re.sub(r"\"\s*\n\s*f?\"", "", code)


def messages() -> list[str]:
    """Those that the tables of the page explain."""
    heads = ("| message", "| finding")
    chosen = [table[1:] for table in tables(PAGE) if table[0].startswith(heads)]
    return [re.findall(r"`(.*?)`", row)[0] for table in chosen for row in table]


@pytest.mark.parametrize("message", messages())
def test_a_message_is_one_that_the_plugin_has(message):
    parts = [part.strip() for part in message.split("...")]
    assert [part for part in parts if part.strip(":; ()") and part not in source()] == []


def test_the_options_are_told():
    """By their names; the default of the time limit too."""
    text = (PLUGIN / "__init__.py").read_text("utf-8")
    declared = re.findall(r'Option\("(\w+)"', text)
    (table,) = [t for t in tables(PAGE) if t[0].startswith("| `-O cann.`")]
    told = [re.findall(r"`(\w+)`", row)[0] for row in table[1:]]
    assert told == declared
    assert float(re.findall(r"\((\d+)\)", table[-1])[0]) == 600.0
    assert "600.0" in text


@BOTH
def test_the_oldest_versions_are_those_that_are_checked(page):
    import runpy

    script = runpy.run_path(str(PLUGIN / "setup_board.py"), run_name="script")
    text = page.read_text("utf-8")
    for version in (script["OLDEST"], script["PYTHON"]):
        assert ".".join(map(str, version)) in text
