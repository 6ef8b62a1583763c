"""Text to programs: what is read, and what is said of texts that are none."""

from __future__ import annotations

import contextlib
import math
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from umbel_ane.mil.parse import MilError, parse
from umbel_ane.mil.program import Blob, Literal, Program, Ref, Type, Value


def program(statements: str = "", outputs: str = "x") -> str:
    body = f"func main<ios18>(tensor<fp16, [1, 4]> x) {{\n{statements}\n}} -> ({outputs});"
    return f"program(1.3)\n{{\n{body}\n}}\n"


def value(text: str) -> object:
    """The data of a literal, read where an argument stands."""
    (statement,) = parse(program(f"fp16 y = f(a = {text});")).main.statements
    given = statement.args["a"]
    assert isinstance(given, Literal)
    return given.data


def test_newer(newer: str) -> None:
    found = parse(newer)
    main = found.main
    assert (found.version, main.name, main.opset) == ("1.3", "main", "ios18")
    assert found.build_info == {"made-by": "hand", "says": 'a "quoted" word\n'}
    assert main.inputs[0] == Value("a00_x", Type("fp16", (1, 8, 1, 16)))
    assert main.outputs == ("b00_y", "b01_shares")
    by_name = {s.name: s for s in main.statements}
    up = by_name["up"].attributes["val"]
    assert (up.type, up.data) == (
        Type("fp16", (8, 8, 1, 1)),
        Blob("@model_path/weights/weight.bin", 64),
    )
    assert by_name["small"].attributes["val"].data == float(np.float16(1e-5))
    assert by_name["keep"].attributes["val"].data is True
    assert [v.name for v in by_name["left"].results] == ["left", "right"]
    assert by_name["b00_y"].args["values"] == (Ref("left"), Ref("masked"))
    assert newer.splitlines()[by_name["up"].line - 1].lstrip().startswith("tensor<fp16, [8, 8")


def test_older(older: str) -> None:
    """Scalars are scalars; what the function says of its shapes is kept."""
    found = parse(older)
    main = found.main
    assert found.build_info == {"made-by": "hand"}
    assert main.inputs[0].type == Type("fp32", (1, None, 4))
    shapes = main.attributes["FlexibleShapeInformation"].data
    assert shapes == (
        ("DefaultShapes", {"x": [1, 1, 4]}),
        ("RangeDims", {"x": [[1, 1], [1, 512], [4, 4]]}),
    )
    values = {s.name: s.attributes["val"] for s in main.statements if s.op == "const"}
    assert values["axis"].type == Type("int32")
    assert values["axis"].data == -2
    table = values["table"].data
    assert isinstance(table, np.ndarray)
    expected = np.array([[1, -3, 0, 65504], [-0.0, np.inf, 2.0**-24, np.nan]], np.float16)
    np.testing.assert_array_equal(table, expected)
    assert np.signbit(table[1, 0])
    assert types_of(found)["best_1"] == Type("int32", (1, 1, None))


def types_of(found: Program) -> dict[str, Type]:
    return found.main.types()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fp16(0x1.5p-17)", float(np.float16(1e-5))),
        ("fp16(0.00001)", float(np.float16(1e-5))),
        ("fp16(-1.5E+2)", -150.0),
        ("fp32(0X.8P1)", 1.0),
        ("fp32(.5)", 0.5),
        ("fp16(\N{MINUS SIGN}0x1p\N{MINUS SIGN}3)", -0.125),
        ("fp16(2049)", 2048.0),
        ("fp16(0x1p-26)", 0.0),
        ("fp32(-inf)", -math.inf),
        ("int32(-2147483648)", -(2**31)),
        ("uint64(0xff)", 255),
        ("int4(\N{MINUS SIGN}8)", -8),
        ("bool(false)", False),
        (r'string("a\"\\\n\x41é")', 'a"\\\nAé'),
        ('tensor<string, []>("valid")', "valid"),
    ],
)
def test_scalars(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_tensors() -> None:
    found = value("tensor<int32, [2, 1, 2]>([[[1, -2]], [[3, 4]]])")
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.tolist()) == (np.int32, [[[1, -2]], [[3, 4]]])
    empty = value("tensor<fp16, [2, 0]>([[], []])")
    assert isinstance(empty, np.ndarray)
    assert empty.shape == (2, 0)
    words = value('tensor<string, [2]>(["a, b", "]"])')
    assert isinstance(words, np.ndarray)
    assert words.tolist() == ["a, b", "]"]


@pytest.mark.parametrize(
    ("text", "line", "column", "what", "expected"),
    [
        ("", 1, 1, "program is missing", "program"),
        ("program(1.3)\n  {}", 2, 4, "without a function", "func"),
        ("program(x)", 1, 9, "no version", "1.3"),
        (program("fp16 y = f(x = )"), 4, 16, "name is missing", "a value with its type"),
        (program("fp17 y = f();"), 4, 1, "no such type", "tensor"),
        (program("fp16 x = f();"), 4, 6, "given twice", "new"),
        (program("fp16 y = f(a = x, a = x);"), 4, 19, "given twice", "each once"),
        (program("fp16 y = f(a = fp16(1e5));"), 4, 21, "cannot be read", "fp16 can hold"),
        (program("fp16 y = f(a = int8(128));"), 4, 21, "cannot be read", "-128 to 127"),
        (program("fp16 y = f(a = int32(1.5));"), 4, 22, "cannot be read", "integer"),
        (program("fp16 y = f(a = bool(1));"), 4, 21, "cannot be read", "true or false"),
        (program("fp16 y = f(a = bf16(1));"), 4, 21, "cannot be read", "BLOBFILE"),
        (program(r'fp16 y = f(a = string("\q"));'), 4, 23, "cannot be read", "escape"),
        (program('fp16 y = f(a = string("'), 4, 23, "string does not end", '"'),
        (program("/* "), 4, 1, "comment does not end", "*/"),
        (program("fp16 y = £;"), 4, 10, "character", "a name"),
        (program("fp16 y = f(a = tensor<fp16, [2]>([1]));"), 4, 34, "number of values", "2"),
        (program("fp16 y = f(a = tensor<fp16, [1]>([1 2]));"), 4, 34, "follow", "a, b"),
        (program("fp16 y = f(a = tensor<fp16, [?]>([1]));"), 4, 16, "not known", "without ?"),
        (program("tensor<fp16, [-1]> y = f();"), 4, 15, "no size", "whole number"),
        (program("fp16 y = f(a = fp16(BLOBFILE(offset = uint64(1))));"), 4, 21, "BLOB", "path"),
        (program("fp16 y = f()"), 5, 1, "; is missing", ";"),
        (program() + "}", 7, 1, "more text", "the end"),
        (program().replace("(1.3)", f"(1.3)[a = {'tuple<' * 99}"), 1, 402, "brackets", "64"),
    ],
)  # fmt: skip
def test_refused(text: str, line: int, column: int, what: str, expected: str) -> None:
    """The message names the place, what stands there and what was expected."""
    with pytest.raises(MilError, match=re.escape(what)) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert expected in str(caught.value.expected)
    assert caught.value.got


def test_bytes(newer: str) -> None:
    assert parse(newer.encode()).main.outputs == parse(newer).main.outputs
    with pytest.raises(MilError, match="UTF-8") as caught:
        parse(b"program(1.3)\n{ \xff")
    assert (caught.value.line, caught.value.column) == (2, 3)


def test_truncated(newer: str, older: str) -> None:
    """No beginning of a program is a program."""
    for text in (newer.rstrip(), older.rstrip()):
        for end in range(0, len(text), 7):
            with pytest.raises(MilError):
                parse(text[:end])


@given(st.data())
def test_mutated(newer: str, older: str, data: st.DataObject) -> None:
    """Bytes that are changed, lost or put in: a program or `MilError`, nothing else."""
    text = bytearray(data.draw(st.sampled_from((newer, older))).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 3))
        fresh = data.draw(st.binary(max_size=3) | st.sampled_from(SIGNS))
        text[at : at + length] = fresh
    with contextlib.suppress(MilError):
        assert isinstance(parse(bytes(text)), Program)


SIGNS = (b"[", b"]", b"(", b")", b"{", b"<", b">", b'"', b"/*", b"9" * 5000, b"0x1p9999", b"-")


@pytest.mark.parametrize("text", ["// /* ", "/* */", "[", "(", "tensor<", '"\\', "0x", " "])
def test_no_sense_at_length(text: str) -> None:
    """Time grows with the length, and recursion has a bound."""
    before = time.process_time()
    for where in (text * 20_000, program("fp16 y = f(a = " + text * 20_000)):
        with pytest.raises(MilError):
            parse(where)
    assert time.process_time() - before < 2


@pytest.mark.clock
def test_speed() -> None:
    """2,000 statements in less than 0.3 s."""
    line = "tensor<fp16, [1, 4]> v{} = conv(dilations = d, pad = p, strides = s, x = v{})"
    more = '[name = string("v{}"), val = tensor<fp16, [4]>([0x1p+0, 0.5, 1, -2])];'
    lines = [(line + more).format(i + 1, i, i) for i in range(2000)]
    text = program("\n".join(lines))
    times = []
    for _ in range(3):
        before = time.process_time()
        assert len(parse(text).main.statements) == 2000
        times.append(time.process_time() - before)
    assert min(times) < 0.3
