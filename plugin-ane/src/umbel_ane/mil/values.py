"""Types and values with their types, out of text: `tensor<fp16, [2]>([0x1p+0, -1])`.

    literal = type "(" (value | blob) ")"
    blob    = "BLOBFILE" "(" "path" "=" literal "," "offset" "=" literal ")"
    nested  = ("dict" | "tuple" | "list") "<" ... ">" "(" value? ")"

The older dialect writes a scalar as a tensor without axes, `tensor<fp16, []>(1)`: it is read as
the scalar that it is.
"""

from __future__ import annotations

import math

import numpy as np

from umbel_ane.mil import literals
from umbel_ane.mil.program import Blob, Dims, Literal, Nested, Type
from umbel_ane.mil.reader import Reader
from umbel_ane.mil.tokens import shown

CONTAINERS = ("dict", "tuple", "list")


def read_type(reader: Reader) -> Type:
    if reader.words[reader.at] != "tensor":
        return Type(_dtype(reader))
    start = reader.at
    key = tuple(reader.until(">"))
    found = reader.types.get(key)
    if found is None:
        reader.at = start + 1
        reader.take("<")
        dtype = _dtype(reader)
        reader.take(",")
        reader.take("[")
        dims: Dims = tuple(reader.many("]", lambda: _dim(reader)))
        reader.take(">")
        found = reader.types[key] = Type(dtype, dims or None)
    return found


def read_literal(reader: Reader) -> Literal:
    start = reader.at
    kind = read_type(reader)
    reader.take("(")
    data: bool | int | float | str | np.ndarray | Blob
    if reader.words[reader.at] == "BLOBFILE":
        data = _blob(reader)
    elif kind.dims is None:
        data = reader.convert(lambda word: literals.scalar(word, kind.dtype))
    elif None in kind.dims:
        reader.fail("a value whose size is not known", "a type without ?", start, kind)
    else:
        dims = tuple(d for d in kind.dims if d is not None)
        data = _tensor(reader, kind.dtype, dims)
    reader.take(")")
    return Literal(kind, data)


def read_attribute(reader: Reader) -> Literal | Nested:
    if reader.words[reader.at] not in CONTAINERS:
        return read_literal(reader)
    kind = _nested_type(reader, 0)
    reader.take("(")
    data = None if reader.words[reader.at] == ")" else _nested_value(reader, 0)
    reader.take(")")
    return Nested(kind, data)


# -- types


def _dtype(reader: Reader) -> str:
    word = reader.words[reader.at]
    if word not in literals.TYPES:
        reader.fail("there is no such type", "tensor<...>, fp16, int32, string ...")
    reader.at += 1
    return word


def _dim(reader: Reader) -> int | None:
    word = reader.words[reader.at]
    if word != "?" and not (word.isascii() and word.isdecimal() and len(word) < 20):
        reader.fail("a dimension that is no size", "a whole number or ?")
    reader.at += 1
    return None if word == "?" else int(word)


def _nested_type(reader: Reader, depth: int) -> str:
    """Its text: what it means is told by the value."""
    reader.not_deeper(depth)
    word = reader.words[reader.at]
    if word == "?" or word[:1].isdigit():  # the length of a list
        size = _dim(reader)
        return "?" if size is None else str(size)
    if word in CONTAINERS:
        reader.at += 1
        reader.take("<")
        parts = reader.many(">", lambda: _nested_type(reader, depth + 1))
        return f"{word}<{', '.join(parts)}>"
    kind = read_type(reader)
    older = word == "tensor" and kind.dims is None
    return f"tensor<{kind.dtype}, []>" if older else str(kind)


# -- values


def _blob(reader: Reader) -> Blob:
    start = reader.at
    reader.at += 1
    reader.take("(")
    given = reader.named(")", lambda: read_literal(reader))
    if sorted(given) != ["offset", "path"]:
        got = ", ".join(given) or "nothing"
        reader.fail("a BLOBFILE with other arguments", "path and offset", start, got)
    path, offset = given["path"], given["offset"]
    if not isinstance(path.data, str) or path.type.dtype != "string":
        reader.fail("the path of a BLOBFILE has another type", "string", start, path.type)
    if not isinstance(offset.data, int) or offset.type.dtype != "uint64":
        reader.fail("the offset of a BLOBFILE has another type", "uint64", start, offset.type)
    return Blob(path.data, offset.data)


def _tensor(reader: Reader, dtype: str, dims: tuple[int, ...]) -> np.ndarray:
    """Brackets as the axes say, and so many values."""
    start = reader.at
    words: list[str] = []
    _axis(reader, dims, 0, words)
    try:
        values = literals.array(words, dtype)
    except ValueError as error:
        got = shown(", ".join(words))
        reader.fail("a value of a tensor cannot be read", str(error), start, got)
    if values.size != math.prod(dims):  # no brackets stand within an axis of no values
        reader.fail("an axis without values is followed by others", "[]", start)
    return values.reshape(dims)


def _axis(reader: Reader, dims: tuple[int, ...], depth: int, words: list[str]) -> None:
    reader.not_deeper(depth)
    start = reader.at
    reader.take("[")
    if depth + 1 < len(dims):
        rows = reader.many("]", lambda: _axis(reader, dims, depth + 1, words))
        count = len(rows)
    else:
        row = reader.until("]")
        words += row[::2]
        count = (len(row) + 1) // 2
        if any(comma != "," for comma in row[1::2]) or (row and len(row) % 2 == 0):
            reader.fail("values of an axis do not follow each other", "a, b, c", start)
    if count != dims[depth]:
        what = "an axis has another number of values than its type says"
        reader.fail(what, dims[depth], start, count)


def _nested_value(reader: Reader, depth: int) -> object:
    """Of a dict `{{k, v}, ...}`, a tuple `(a, b)`, a list `[a, b]`, or a plain one."""
    reader.not_deeper(depth)
    word = reader.words[reader.at]
    if word == "{":
        reader.at += 1
        return dict(reader.many("}", lambda: _pair(reader, depth + 1)))
    if word in ("(", "["):
        reader.at += 1
        close = ")" if word == "(" else "]"
        values = reader.many(close, lambda: _nested_value(reader, depth + 1))
        return tuple(values) if word == "(" else values
    if reader.opens():
        held = read_literal(reader).data
        return held.tolist() if isinstance(held, np.ndarray) else held
    return reader.convert(_plain)


def _pair(reader: Reader, depth: int) -> tuple[str, object]:
    reader.take("{")
    key = reader.convert(literals.string)
    reader.take(",")
    value = _nested_value(reader, depth)
    reader.take("}")
    return key, value


def _plain(word: str) -> bool | int | float | str:
    """A value without a type: what it looks like."""
    if word in ("true", "false"):
        return word == "true"
    if word[:1] == '"':
        return literals.string(word)
    try:
        return literals.scalar(word, "int64")
    except ValueError:
        return literals.scalar(word, "fp64")
