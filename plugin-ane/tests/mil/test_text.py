"""Programs to text and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mil_programs import programs, same
from umbel_ane.mil.diff import differences
from umbel_ane.mil.literals import written
from umbel_ane.mil.parse import parse
from umbel_ane.mil.program import Literal, Nested, Program, Statement
from umbel_ane.mil.text import summary, write

FLOATS = ("hex", "decimal")


@settings(deadline=None)
@given(programs(), st.sampled_from(FLOATS))
def test_round_trip(program: Program, floats: str) -> None:
    """What is written is read as the same, to the last bit."""
    text = write(program, floats)
    found = parse(text)
    assert (found.version, found.build_info) == (program.version, program.build_info)
    assert differences(program, found) == []
    one, two = program.main, found.main
    assert (two.inputs, two.outputs, two.opset) == (one.inputs, one.outputs, one.opset)
    for key, given_ in one.attributes.items():
        read = two.attributes[key]
        assert isinstance(given_, Nested)
        assert isinstance(read, Nested)
        assert same(given_.data, read.data)
    for before, after in zip(one.statements, two.statements, strict=True):
        assert_same(before, after)
    assert write(found, floats) == text


def assert_same(before: Statement, after: Statement) -> None:
    assert (before.op, before.results) == (after.op, after.results)
    named = {"name": None, **before.attributes}
    assert list(named) == list(after.attributes)
    assert list(before.args) == list(after.args)
    for key, argument in before.args.items():
        parts = argument if isinstance(argument, tuple) else (argument,)
        found = after.args[key]
        others = found if isinstance(found, tuple) else (found,)
        for one, two in zip(parts, others, strict=True):
            if isinstance(one, Literal):
                assert isinstance(two, Literal)
                assert one.type == two.type
                assert same(one.data, two.data)
            else:
                assert one == two


@pytest.mark.parametrize("floats", FLOATS)
def test_samples(newer: str, older: str, floats: str) -> None:
    for text in (newer, older):
        program = parse(text)
        assert differences(program, parse(write(program, floats))) == []


def test_dialects(older: str) -> None:
    """A scalar has brackets in the older one."""
    text = write(parse(older))
    assert 'tensor<int32, []> axis = const()[name = tensor<string, []>("axis")' in text
    assert "val = tensor<int32, []>(-2)];" in text
    assert "offset = tensor<uint64, []>(64)" in text
    newer = text.replace("program(1.0)", "program(1.3)")
    assert 'int32 axis = const()[name = string("axis"), val = int32(-2)];' in write(
        parse(newer)
    )


@pytest.mark.parametrize(
    ("value", "dtype", "hexadecimal", "decimal"),
    [
        (1e-5, "fp16", "0x1.5p-17", "1e-05"),
        (1.0, "fp16", "0x1p+0", "1.0"),
        (-0.0, "fp32", "-0x0p+0", "-0.0"),
        (0.1, "fp16", "0x1.998p-4", "0.1"),
        (0.1, "fp32", "0x1.99999ap-4", "0.1"),
        (2.0**-24, "fp16", "0x1p-24", "6e-08"),
        (-65504, "fp16", "-0x1.ffcp+15", "-6.55e+04"),
        (float("nan"), "fp16", "nan", "nan"),
        (-float("inf"), "fp32", "-inf", "-inf"),
    ],
)
def test_floats(value: float, dtype: str, hexadecimal: str, decimal: str) -> None:
    assert written(value, dtype, "hex") == hexadecimal
    assert written(value, dtype, "decimal") == decimal


def test_every_half() -> None:
    """All 65,536 values of fp16, in both spellings."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for floats in FLOATS:
        text = ", ".join(written(v, "fp16", floats) for v in every.tolist())
        body = f"tensor<fp16, [65536]> y = const()[val = tensor<fp16, [65536]>([{text}])];"
        program = parse(f"program(1.3) {{ func f<ios18>() {{ {body} }} -> (y); }}")
        found = program.main.statements[0].attributes["val"].data
        assert isinstance(found, np.ndarray)
        numbers = ~np.isnan(every)
        np.testing.assert_array_equal(
            found.view(np.uint16)[numbers], every.view(np.uint16)[numbers]
        )
        assert np.isnan(found[~numbers]).all()


def test_summary(newer: str) -> None:
    """A weight that two statements read counts once."""
    up = next(line for line in newer.splitlines() if "> up = " in line)
    more = newer.replace("    } ->", up.replace(" up ", " again ") + "} ->")
    for text in (newer, more):
        lines = summary(parse(text)).splitlines()
        assert "    a00_x: tensor<fp16, [1, 8, 1, 16]>" in lines
        assert "    b01_shares: tensor<fp16, [1, 4, 1, 16]>" in lines
        assert "    mul: 4" in lines
        assert "    @model_path/weights/weight.bin: 144 bytes in 2" in lines
    assert "  operations: 14, and 15 constants" in summary(parse(newer))
