"""Holds tables and names in the documentation against the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import attrs
import pytest
from umbel import errors
from umbel.cli import parser
from umbel.sampling import Settings
from umbel.sampling.settings import SAMPLERS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


SOURCES = (ROOT / "core/src/umbel", ROOT / "plugin-numa/src")
# options of other programs
OTHERS = ("--no-deps", "--force-reinstall", "--umbel-device", "--cap-add", "--install")
OF_SETUP = ("--apply",)  # of umbel-cann-setup
OF_ANE = ("--to", "--prompts")  # of `umbel ane`
OF_NUMA = ("--forget", "--sweep")  # of a plugin's commands: the page about it gives them


def rows(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables by the code in their first cell."""
    text = (DOCS / page).read_text("utf-8")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[1:] for row in cells}


def numbers() -> list[tuple[str, object]]:
    fields = attrs.fields(Settings)
    return [(f.name, f.default) for f in fields if isinstance(f.default, int | float)]


@pytest.mark.parametrize(("name", "default"), numbers())
def test_the_default_of_a_sampling_setting(name, default):
    """The page tells the default that the setting has."""
    assert str(default) == rows("sampling.md")[name][0]


def test_all_sampling_settings_are_told():
    """The page has a row for each field, and no others."""
    assert {f.name for f in attrs.fields(Settings)} == set(rows("sampling.md"))


def test_the_order_of_the_samplers():
    """The page tells it as it is."""
    text = (DOCS / "sampling.md").read_text("utf-8")
    assert ", ".join(f"`{name}`" for name in SAMPLERS) in text


def test_all_errors_are_told():
    """The page for Python has a row for each class of error."""
    classes = {n for n, c in vars(errors).items() if isinstance(c, type)} - {"UmbelError"}
    assert classes == {name for name in rows("python.md") if name.endswith("Error")}


def test_the_layers_are_those_that_are_checked():
    """The map on the page of the architecture is the contract of the import linter."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract, *_ = project["tool"]["importlinter"]["contracts"]
    text = (DOCS / "architecture.md").read_text("utf-8")
    block = re.search(r"```text\n(.*?)```", text, re.S)
    assert block is not None
    told = [re.split(r"\s{2,}", line)[0] for line in block[1].splitlines()]
    assert contract["layers"] == [line for line in told if line]


def test_all_modules_of_the_native_engine_are_told():
    """The page of the architecture has a word for each."""
    text = (DOCS / "architecture.md").read_text("utf-8")
    modules = (ROOT / "plugin-numa/src/umbel_numa").glob("*.py")
    assert [m.name for m in modules if f"`{m.name}`" not in text] == []


@pytest.fixture(scope="module")
def source() -> str:
    """The code that users run, each text that is written in pieces in one."""
    files = (path for source in SOURCES for path in sorted(source.rglob("*.py")))
    code = "\n".join(path.read_text("utf-8") for path in files)
    return re.sub(r"\"\s*\n\s*f?\"", "", code)


@pytest.mark.parametrize("message", [m for m in rows("troubleshooting.md") if m[0] != "-"])
def test_a_message_is_one_that_the_code_has(message, source):
    """What a user looks up is what the program says; `...` stands for names and numbers."""
    parts = [part.strip() for part in message.removeprefix("umbel: ").split("...")]
    assert [part for part in parts if part.strip(":; ") and part not in source] == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_an_option_in_the_text_is_one_that_there_is(page):
    """Every option between backticks is told by the help of some command; what follows `-- ` is
    for a session of nox."""
    commands = parser()[1].choices.values()
    known = set(re.findall(r"--[a-z][\w-]+", "".join(c.format_help() for c in commands)))
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    codes = [
        code for code in re.findall(r"`([^`]+)`", text) if not code.startswith(("-- ", "nox "))
    ]
    told = {o for code in codes for o in re.findall(r"--[a-z][\w-]+", code)}
    assert told <= known | {"--version", *OTHERS, *OF_NUMA, *OF_SETUP, *OF_ANE}
