"""Text to a program: a recursive descent over both dialects of MIL.

    program   = "program" "(" version ")" attributes? "{" function+ "}"
    function  = "func" NAME "<" NAME ">" "(" (type NAME),* ")" attributes? "{" statement* "}"
                "->" "(" NAME,* ")" ";"
    statement = (type NAME),+ "=" NAME "(" (NAME "=" argument),* ")" attributes? ";"
    argument  = NAME | literal | "(" (NAME | literal),* ")"
    attributes = "[" (NAME "=" (literal | nested)),* "]"

What names mean is not looked at, but for a name that is given twice.
"""

from __future__ import annotations

from umbel_ane.mil.program import (
    Argument,
    Function,
    Literal,
    Nested,
    Program,
    Ref,
    Statement,
    Value,
)
from umbel_ane.mil.reader import Reader
from umbel_ane.mil.tokens import END, MilError, tokenize
from umbel_ane.mil.values import read_attribute, read_literal, read_type

__all__ = ["MilError", "parse"]


def parse(text: str | bytes) -> Program:
    """The program that `text` is; `MilError` says where it is none."""
    reader = Reader(tokenize(text))
    reader.take("program")
    reader.take("(")
    version = reader.words[reader.at]
    if not version[:1].isdigit():
        reader.fail("the program has no version", "a number such as 1.3")
    reader.at += 1
    reader.take(")")
    info = _attributes(reader).get("buildInfo")
    reader.take("{")
    functions = []
    while reader.words[reader.at] != "}":
        functions.append(_function(reader))
    if not functions:
        reader.fail("a program without a function", "func")
    reader.at += 1
    if reader.words[reader.at] != END:
        reader.fail("there is more text after the program", "the end of the text")
    return Program(version, tuple(functions), _build_info(info))


def _function(reader: Reader) -> Function:
    reader.take("func")
    name = reader.name("the name of a function")
    reader.take("<")
    opset = reader.name("an opset such as ios18")
    reader.take(">")
    reader.take("(")
    names: set[str] = set()
    inputs = reader.many(")", lambda: _value(reader, names))
    attributes = _attributes(reader)
    reader.take("{")
    statements = []
    while reader.words[reader.at] != "}":
        statements.append(_statement(reader, names))
    reader.at += 1
    reader.take("->")
    reader.take("(")
    outputs = reader.many(")", lambda: reader.name("the name of an output"))
    reader.take(";")
    return Function(name, opset, tuple(inputs), tuple(statements), tuple(outputs), attributes)


def _statement(reader: Reader, names: set[str]) -> Statement:
    line = reader.tokens.line(reader.at)
    results = [_value(reader, names)]
    while reader.words[reader.at] == ",":
        reader.at += 1
        results.append(_value(reader, names))
    reader.take("=")
    op = reader.name("an operation")
    reader.take("(")
    args = reader.named(")", lambda: _argument(reader))
    attributes: dict[str, Literal] = {}
    if reader.words[reader.at] == "[":
        reader.at += 1
        attributes = reader.named("]", lambda: read_literal(reader))
    reader.take(";")
    return Statement(op, tuple(results), args, attributes, line)


def _value(reader: Reader, names: set[str]) -> Value:
    kind = read_type(reader)
    name = reader.name("a name")
    if name in names:
        reader.fail("a name is given twice", "a name that is new", reader.at - 1)
    names.add(name)
    return Value(name, kind)


def _argument(reader: Reader) -> Argument:
    if reader.words[reader.at] == "(":
        reader.at += 1
        return tuple(reader.many(")", lambda: _operand(reader)))
    return _operand(reader)


def _operand(reader: Reader) -> Ref | Literal:
    if reader.opens():
        return read_literal(reader)
    return Ref(reader.name("a name, or a value with its type"))


def _attributes(reader: Reader) -> dict[str, Literal | Nested]:
    if reader.words[reader.at] != "[":
        return {}
    reader.at += 1
    return reader.named("]", lambda: read_attribute(reader))


def _build_info(info: Literal | Nested | None) -> dict[str, str]:
    data = info.data if isinstance(info, Nested) else None
    return {k: str(v) for k, v in data.items()} if isinstance(data, dict) else {}
