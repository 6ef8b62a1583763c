"""Programs compared by meaning."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mil_programs import programs
from umbel_ane.mil.blob import reader, write_blob
from umbel_ane.mil.diff import differences
from umbel_ane.mil.parse import parse
from umbel_ane.mil.program import Program, Ref, Statement, Value
from umbel_ane.mil.text import write

PATH = "@model_path/weights/weight.bin"


def renamed(program: Program, new: dict[str, str]) -> Program:
    """Every name that is in `new`, as that one."""

    def part(p: object) -> object:
        return Ref(new.get(p.name, p.name)) if isinstance(p, Ref) else p

    def value(v: Value) -> Value:
        return Value(new.get(v.name, v.name), v.type)

    def statement(s: Statement) -> Statement:
        args = {
            k: tuple(map(part, a)) if isinstance(a, tuple) else part(a)
            for k, a in s.args.items()
        }
        return attrs.evolve(s, results=tuple(map(value, s.results)), args=args)

    main = program.main
    changed = attrs.evolve(
        main,
        inputs=tuple(map(value, main.inputs)),
        statements=tuple(map(statement, main.statements)),
        outputs=tuple(new.get(name, name) for name in main.outputs),
    )
    return attrs.evolve(program, functions=(changed,))


@settings(deadline=None)
@given(programs(), st.randoms())
def test_names_say_nothing(program: Program, random: object) -> None:
    """Inputs and outputs keep their places, everything else gets any name."""
    main = program.main
    bound = sorted({v.name for v in main.inputs} | set(main.outputs))
    others = [n for n in main.types() if n not in bound]
    random.shuffle(others)  # type: ignore[attr-defined]
    new = {name: f"a{i:03}" for i, name in enumerate(bound)}
    new |= {name: f"b{i}" for i, name in enumerate(others)}
    assert differences(program, renamed(program, new)) == []


def test_what_says_nothing(newer: str) -> None:
    """Dialect, opset, spelling, order of statements, inline constants, dead ones."""
    program = parse(newer)
    main = program.main
    in_another_dialect = parse(
        write(attrs.evolve(program, version="1.0"), "decimal").replace("<ios18>", "<ios16>")
    )
    assert differences(program, in_another_dialect) == []
    constants = {s.name: s.attributes["val"] for s in main.statements if s.op == "const"}
    inline = tuple(
        attrs.evolve(
            s,
            args={
                k: constants.get(a.name, a) if isinstance(a, Ref) else a
                for k, a in s.args.items()
            },
        )
        for s in main.statements
        if s.op != "const"
    )
    assert len(inline) == 14
    without = attrs.evolve(main, statements=inline)
    assert differences(program, attrs.evolve(program, functions=(without,))) == []
    dead = newer.replace("    } ->", "fp16 dead = exp(x = small)[];\n} ->")
    assert differences(program, parse(dead)) == []
    first, second = (newer.index(f"fp16 {name} =") for name in ("eighth", "small"))
    end = newer.index("fp16 minus_half")
    swapped = newer[:first] + newer[second:end] + newer[first:second] + newer[end:]
    assert swapped != newer
    assert differences(program, parse(swapped)) == []


@pytest.mark.parametrize(
    ("old", "new", "where", "what", "a", "b"),
    [
        ("gate = sigmoid(x", "gate = tanh(x", "gate", "another operation", "sigmoid", "tanh"),
        ("0x1p-3", "0.126", "mean, mul, y", "1 of 1 values differ", "0.125", "0.126"),
        ("fp16(-0.5)", "fp16(0)", "scale, pow, y", "1 of 1 values differ", "-0.5", "0.0"),
        ("int32(-1)", "int32(3)", "b01_shares, softmax, axis", "the first at 0", "-1", "3"),
        (
            'fp16 small = const()[name = string("small"), val = fp16(',
            'fp32 small = const()[name = string("small"), val = fp32(',
            "shifted, add, y",
            "a constant of another type",
            "fp16",
            "fp32",
        ),
        (
            "add(x = right, y = a01_mask)",
            "add(x = right, y = right)",
            "masked, add, y",
            "comes from something else",
            "input 1, a01_mask",
            "right, split",
        ),
        ("x = right,", "x = left,", "right (left)", "another result of split", "2 of", "1 of"),
        ("(left, masked)", "(left, masked, left)", "concat, values", "number of", "2", "3"),
        ("(axis = last, x", "(x", "softmax, axis", "one only", "given", "not given"),
        (
            "x = a00_x, y = a00_x",
            "x = a00_x, y = a01_mask",
            "squares, mul, y",
            "another input",
            "input 0, a00_x",
            "input 1, a01_mask",
        ),
        ("16]> wide", "17]> wide", "wide", "conv gives another type", "16", "17"),
        ("16]> a01", "17]> a01", "input 1, a01_mask", "another type", "16", "17"),
        ("(b00_y, b01_shares)", "(b00_y)", "outputs", "number of outputs", "b01_sh", "b00_y"),
        ("a01_mask) {", "a01_mask, fp16 z) {", "inputs", "number of inputs", "a01_mask", "z"),
    ],
)
def test_what_differs(
    newer: str, old: str, new: str, where: str, what: str, a: str, b: str
) -> None:
    """One change is one difference that names the place and both sides."""
    changed = newer.replace(old, new)
    assert changed != newer
    found = differences(parse(newer), parse(changed))
    told = list(map(str, found))
    (fits,) = [d for d in found if where in d.where and what in d.what] or [None]
    assert fits, told
    assert (a in fits.a, b in fits.b) == (True, True), told
    assert differences(parse(changed), parse(changed)) == []


def test_order_of_inputs_and_outputs() -> None:
    """Sorted names bind: the order in which they are declared says nothing."""
    body = "fp16 {y} = sub(x = {a}, y = {b}); fp16 {z} = exp(x = {a});"
    head = "program(1.3) {{ func main<ios18>(fp16 {a}, fp16 {b})"
    text = f"{head} {{{{ {body} }}}} -> ({{y}}, {{z}}); }}}}"
    one = parse(text.format(a="a", b="b", y="y", z="z"))
    assert differences(one, parse(text.format(a="c", b="d", y="k", z="l"))) == []
    assert [d.what for d in differences(one, parse(text.format(a="b", b="a", y="y", z="z")))]
    crossed = differences(one, parse(text.format(a="a", b="b", y="z", z="y")))
    assert [(d.where, d.a, d.b) for d in crossed] == [
        ("y", "sub", "exp"),
        ("z", "exp", "sub"),
    ]
    declared = attrs.evolve(one.main, inputs=one.main.inputs[::-1], outputs=("z", "y"))
    assert differences(one, attrs.evolve(one, functions=(declared,))) == []


def test_weights(newer: str) -> None:
    """By their values where files are given, whatever the file and the offset."""
    rng = np.random.default_rng(5)
    up, bias = (rng.standard_normal(n).astype(np.float16) for n in (64, 8))
    ours, (first, second) = write_blob([up, bias])
    assert (first, second) == (64, 256)
    theirs, (other,) = write_blob([bias])
    moved = newer.replace(f'"{PATH}"), offset=uint64(256)', f'"b.bin"), offset=uint64({other})')
    assert moved != newer
    a, b = parse(newer), parse(moved)
    assert differences(a, b) == []
    files = {PATH: ours, "b.bin": theirs}
    assert differences(a, b, reader(files), reader(files)) == []
    bias[3] += 1
    files["b.bin"] = write_blob([bias])[0]
    (found,) = differences(a, b, reader({PATH: ours}), reader(files))
    assert found.where == "biased, add, y"
    assert "1 of 8 values differ, the first at 3" in found.what


def test_weight_against_text(newer: str) -> None:
    """Inline values equal those of a file, where the file is given."""
    values = np.arange(8, dtype=np.float16)
    blob = f'BLOBFILE(path=string("{PATH}"), offset=uint64(256))'
    inline = f"[{', '.join(f'[[{v}]]' for v in values.tolist())}]"
    a, b = parse(newer), parse(newer.replace(blob, f"[{inline}]"))
    (found,) = differences(a, b)
    assert "without its file" in found.what
    files = {PATH: write_blob([np.zeros(64, np.float16), values])[0]}
    assert differences(a, b, reader(files), reader(files)) == []


def test_deep(newer: str) -> None:
    """A chain of 20,000 operations is walked without recursion."""
    lines = "".join(f"fp16 v{i + 1} = exp(x = v{i})[];" for i in range(20_000))
    text = f"program(1.3) {{ func main<ios18>(fp16 v0) {{ {lines} }} -> (v20000); }}"
    program = parse(text)
    assert differences(program, program) == []
    (found,) = differences(program, parse(text.replace("v1 = exp", "v1 = tanh")))
    assert found.where == "v1"
