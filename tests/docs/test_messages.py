"""Holds what the backends say against the pages that explain it.

What it says is found in its code, by the calls that show it; `...` stands for what only a run
can tell, as it does on the page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

import attrs
import pytest
from umbel import errors

ROOT = Path(__file__).parents[2]
PAGES = {  # the sources of each backend, and where it is explained
    "plugin-numa/src/umbel_numa": "docs/troubleshooting.md",
    "plugin-cann/src/umbel_cann": "docs/backends/cann.md",
    "plugin-ane/src/umbel_ane": "docs/backends/ane.md",
}
MODULES = [
    (page, ast.parse(path.read_text("utf-8")))
    for sources, page in PAGES.items()
    for path in sorted((ROOT / sources).rglob("*.py"))
]
ERRORS = {name for name in vars(errors) if name.endswith("Error")} - {"CancelledError"}
UNKNOWN = "..."


@attrs.frozen
class Scope:
    """Where names get their values: a function of a module."""

    page: str  # that explains it
    module: ast.Module
    function: ast.FunctionDef

    def texts(self, node: ast.AST) -> list[str]:
        """All that an expression may say."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return self.joined(parts)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.joined([left, right])
            case ast.FormattedValue(value=value):
                return self.texts(value)
            case ast.IfExp(body=one, orelse=other):
                return self.texts(one) + self.texts(other)
            case ast.Name():
                value = self.value(node)
                return [UNKNOWN] if value is None else self.texts(value)
            case ast.Call(func=ast.Name(id=name)):
                return given_by(self.page, name) or [UNKNOWN]
        return [UNKNOWN]

    def joined(self, parts: Sequence[ast.AST]) -> list[str]:
        return ["".join(some) for some in product(*map(self.texts, parts))]

    def value(self, name: ast.Name) -> ast.expr | None:
        """What was assigned to it last, here or in the module."""
        for nodes in (ast.walk(self.function), self.module.body):
            found = [v for n, v in assigned(nodes) if n == name.id and v.lineno < name.lineno]
            if found:
                return max(found, key=lambda value: value.lineno)
        return None

    def formatted(self, text: ast.expr, values: Sequence[ast.expr]) -> Iterator[str]:
        """What `text % values` may say, as a logger writes it."""
        found = self.texts(text)
        if found == [UNKNOWN]:  # chosen elsewhere, of what the module keeps
            kept = (self.texts(value) for _, value in assigned(self.module.body))
            found = [one for texts in kept for one in texts if one != UNKNOWN] or found
        for form in found:
            pieces = re.split(r"%[.\d]*[a-z]", form)
            known = [self.texts(v) for v in values] + [[UNKNOWN]] * len(pieces)
            for some in product(*known[: len(pieces) - 1]):
                yield "".join(map("".join, zip(pieces, [*some, ""], strict=True)))


def assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Names and what they are, or what they go through."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = list(zip(names, values, strict=True))
            case ast.Assign(targets=[name], value=value):
                pairs = [(name, value)]
            case ast.For(target=name, iter=value):
                pairs = [(name, value)]
            case _:
                continue
        yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def scopes() -> Iterator[Scope]:
    for page, module in MODULES:
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                yield Scope(page, module, node)


def given_by(page: str, name: str) -> list[str]:
    """What the function of that name returns or yields."""
    return [
        text
        for scope in scopes()
        if (scope.page, scope.function.name) == (page, name)
        for node in ast.walk(scope.function)
        if isinstance(node, ast.Return | ast.Yield) and node.value is not None
        for text in scope.texts(node.value)
    ]


def messages() -> Iterator[tuple[str, str]]:
    """By page: notes, errors, and what `umbel doctor` finds amiss, which may be one of them."""
    for scope in scopes():
        # what is passed on as a whole was said elsewhere
        yield from ((scope.page, text) for text in said_in(scope) if text != UNKNOWN)


def said_in(scope: Scope) -> Iterator[str]:
    for node in ast.walk(scope.function):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[text, *values]
            ) if level != "debug":
                yield from scope.formatted(text, values)
            case ast.Call(func=ast.Name(id=name), args=[text, *_]) if name in ERRORS:
                yield from scope.texts(text)
            case ast.Call(
                func=ast.Name(id="Finding"), args=[ast.Constant(value=kind), text, *_]
            ) if kind not in ("ok", "error"):
                yield from scope.texts(text)


MESSAGES = sorted(set(messages()))


def letters(text: str) -> int:
    """That are its own: between backticks stands what the reader typed."""
    return sum(map(str.isalpha, re.sub("`.*?`", "", text)))


def is_told(message: str, rows: Iterable[str]) -> bool:
    """Whether the parts of a row stand in it in their order, and are more than half of it, or
    of what it says before a colon."""
    wanted = min(filter(None, map(letters, (message, message.partition(": ")[0]))))
    for row in rows:
        parts = [part.strip() for part in row.split(UNKNOWN)]
        there = re.search(".*".join(map(re.escape, parts)), message)
        if there and 2 * sum(map(letters, parts)) > wanted:
            return True
    return False


def test_messages_are_found():
    """Of all three kinds, whole or in pieces."""
    assert {
        "the system refuses to pin threads to CPUs: they may leave their node",
        "the engine cannot start ... threads",
        "huge pages are off: weights are read up to a fifth slower",
        "an NPU was in use before this process was forked: a child cannot use it",
    } <= {message for _, message in MESSAGES}
    assert [m for _, m in MESSAGES if letters(m) < 10] == []


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("... cannot be read, and is not used: ...", True),
        ("... cannot be read, and ...", True),
        ("... is not used: ...", False),
        ("... cannot be written, and is not used: ...", False),
    ],
)
def test_what_counts_as_told(row, told):
    assert is_told("... cannot be read, and is not used: ...", [row]) is told


@pytest.mark.parametrize(("page", "message"), MESSAGES)
def test_a_message_is_on_the_page(page, message):
    """Whoever looks up what a backend says finds it."""
    text = (ROOT / page).read_text("utf-8")
    assert is_told(message, re.findall(r"^\| `(.*?)` \|", text, re.M))
